"""Texts: a translation is one file, chosen by person, browser or site; nothing stands unmarked or left over."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.dashboard.access_rights import RIGHTS
from appliance.router import decide as router
from appliance.web import assets, texts
from appliance.web.templating import figure, lasting, percent, size, span
from appliance.web.texts import Catalogue, choose_language
from tests.page_sentences import SENTENCES
from tests.page_texts import DASHBOARD, WEB, bare_script_words, bare_words, updated, wanted
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
GERMAN = {"Accept-Language": "de-CH,de;q=0.9,en;q=0.5"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    site = Site(tmp_path, ManualClock(T0 + 100))
    site.live("gate", T0)
    with site.client() as made:
        yield made
    site.close()


def test_the_person_comes_before_their_browser_and_that_before_the_site() -> None:
    assert choose_language("de", "en", "en") == "de"
    assert choose_language("", "de-AT;q=0.8, en;q=0.3", "en") == "de"
    assert choose_language("", "en-GB, de", "de") == "en"
    assert choose_language("", "fr, ja;q=0.5", "de") == "de"
    assert choose_language("", "de;q=0, *", "da") == "en"
    assert choose_language("xx", "de;q=nonsense,,;;", "xx") == "en"


def test_a_translation_is_read_as_gettext_writes_it(tmp_path: Path) -> None:
    header = '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
    text = f"""msgid ""\nmsgstr ""\n{header}

# by whom
#: static/a.js
msgid "{{n}} \\"cat\\""
msgid_plural "{{n}} cats"
msgstr[0] "{{n}} Katze"
msgstr[1] "{{n}} "
"Katzen"

#~ msgid "gone"
#~ msgstr "weg"
"""
    _, cat = texts.read(text)
    assert (cat.key, cat.plural, cat.texts) == ('{n} "cat"', "{n} cats", ("{n} Katze", "{n} Katzen"))
    assert (cat.places, cat.comments) == (("static/a.js",), ("# by whom",))
    (tmp_path / "de.po").write_text(text)
    spoken = Catalogue("de", "Deutsch", [tmp_path / "de.po"])
    assert [spoken.counted(cat.key, cat.plural, n) for n in (0, 1, 2)] == [cat.texts[1], cat.texts[0], cat.texts[1]]
    assert '"{n} Katze"' in spoken.script()
    with pytest.raises(ValueError, match="not a line"):
        list(texts.read("msgid nothing quoted"))


# Words that stand alone in several places, of which a person has looked whether they mean the same in all of them.
ONE_MEANING = set(
    """
    Filter Camera From To Show Clear None. Delete on Remove Add Cameras All Network Object Hours Alerts Answers
    now Deleted Evidence Boxes Timeline Why? Undo Name Tracks none Why paused Settings Still What Pause Stream
    Picture Examined Decoded Detector Health Save Make User Record everything nothing Site Alert Sound Better
    Worse Models Cancel Notifications disabled until Closer Wider Savings Begin Appliance Day Scenarios Clip
    Users Versions Snooze Storage Database System Recording Clock recorded alert reported Saved. Detection
    Decoding
""".split()  # noqa: SIM905
)


@pytest.mark.parametrize("package", [DASHBOARD, WEB], ids=["dashboard", "web"])
def test_a_word_with_two_meanings_has_a_context(package: Path) -> None:
    """One that comes to stand in a second place goes on the list, gets a context, or is said in another way."""
    alone = {
        each.key for each in wanted(package).values()
        if len(each.places) > 1 and not each.context and re.fullmatch(r"[^ %{]+", each.key)
    }  # fmt: skip
    assert alone - ONE_MEANING == set()


def test_a_page_speaks_german_where_the_browser_asks_for_it(client: TestClient) -> None:
    english, german = client.get("/cameras"), client.get("/cameras", headers=GERMAN)
    assert '<html lang="en">' in english.text
    assert '<html lang="de">' in german.text
    assert "/static/texts/" not in english.text
    url = re.search(r'src="(/static/texts/de\.js\?\w+)"', german.text)
    assert url
    script = client.get(url[1])
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert script.text.startswith("globalThis.TEXTS = {")
    assert client.get("/static/texts/xx.js").status_code == 404


def test_the_choice_of_a_person_is_kept_in_their_browser(client: TestClient) -> None:
    assert client.post("/language", json={"language": "xx"}).status_code == 422
    assert client.post("/language", json={"language": "de"}).json() == {"language": "de"}
    assert '<html lang="de">' in client.get("/", headers={"Accept-Language": "en"}).text
    client.post("/language", json={"language": ""})
    assert '<html lang="en">' in client.get("/", headers={"Accept-Language": "en"}).text


@pytest.mark.parametrize("file", [*assets.files("templates", "*.html")], ids=lambda file: file.name)
def test_every_word_of_a_template_is_marked(file: Path) -> None:
    assert bare_words(file.read_text()) == []


@pytest.mark.parametrize("file", [*assets.files("static", "*.js")], ids=lambda file: file.name)
def test_every_sentence_of_a_script_is_marked(file: Path) -> None:
    assert bare_script_words(file.read_text()) == []


def test_what_is_not_marked_is_found() -> None:
    assert bare_words('<p class="muted">Nothing here.</p>') == ["Nothing here."]
    assert bare_words('<p>{{ _("None") }} of them {{ n }}</p>') == ["of them"]
    assert bare_words('<a aria-label="Older alerts">‹</a>') == ["Older alerts"]
    assert bare_words('{{ "Enable" if off else _("Disable") }}') == ["Enable"]
    assert bare_words('{% if kind == "alert" %}{% trans n=1 %}{{ n }} times{% endtrans %}{% endif %}') == []
    assert bare_script_words('say("Note saved");') == ['"Note saved"']
    assert bare_script_words("button.textContent = `Deleted ${name}`;") == ["`Deleted ${name}`"]
    assert bare_script_words('say(t("Note saved")); // Note saved') == []


GAP = re.compile(r"%\((\w+)\)s|\{(\w+)\}")
MARKUP = re.compile(r"</?\w+[^>]*>")


@pytest.mark.parametrize(
    "file", [*assets.files("translations", "*.po")], ids=lambda file: f"{file.parents[1].name}-{file.stem}"
)
def test_a_translation_holds_every_text_and_none_that_is_gone(file: Path) -> None:
    """`python -m tests.page_texts` adds what is new and takes out what is gone; the translating is left to people."""
    text = file.read_text(encoding="utf-8")
    _, *messages = texts.read(text)
    assert [each.key for each in messages if not each.is_translated] == []
    assert updated(file.parents[1], text) == text, "run python -m tests.page_texts"
    for each in messages:
        for form in each.texts:
            names = {found[0] or found[1] for found in GAP.findall(form)}
            allowed = {found[0] or found[1] for found in GAP.findall(each.key + each.plural)}
            optional = {"n"} if each.plural else set()  # "one rule"
            assert allowed - optional <= names <= allowed, form
            assert sorted(MARKUP.findall(form)) == sorted(MARKUP.findall(each.key)), form
            assert each.key.count("%%") == form.count("%%"), form
            assert '"' not in MARKUP.sub("", form), f"it may stand in an attribute: {form}"


def test_every_sentence_is_one_that_the_appliance_makes() -> None:
    files = [*DASHBOARD.parent.rglob("*.py"), DASHBOARD.parents[1] / "models" / "models.toml"]
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text()) for file in files)
    for sentence in SENTENCES:
        for clause in re.split(r"\{\w+\}|[;:,.()]", sentence):
            words = clause.split()
            for one, next_one in pairwise(words):
                stands = (f"{one} {next_one}", f"{one} {{", f"}} {next_one}", f'"{one}"')
                assert any(each in code for each in stands), f"{one} {next_one}: {sentence}"
            assert not words or words[0] in code, sentence


def test_what_the_appliance_says_is_told_in_german_with_its_numbers() -> None:
    texts.set_language("de")
    try:
        assert texts.tell("connected, but no picture for 12 s") == "verbunden, aber seit 12 s kein Bild"
        assert texts.tell("deleted: its time was up") == "gelöscht: die Frist war um"
        assert texts.tell("site.yaml: cameras.gate.url is missing") == "site.yaml: cameras.gate.url is missing"
        assert (size(4_200_000), span(26.5 * 3600), percent(0.0042)) == ("4,20 MB", "1 T 2 h", "0,42 %")
        assert (figure(12345.6, 1), lasting(0.2)) == ("12.345,6", "ein Moment")
    finally:
        texts.set_language("en")
    assert texts.tell("connected, but no picture for 12 s") == "connected, but no picture for 12 s"
    assert figure(12345.6, 1) == "12,345.6"


@pytest.mark.parametrize(
    "sentence",
    [
        "named at the first start", "back to version 4", "target phone", "target phone removed",
        "browsers are notified", "adjoining zones", "prices", "network yolox-nano",
        "the ingest process is started anew with other settings",
        "the ingest process ended (killed by signal 9); starting it again",
        "the ingest process said nothing for 10 s; starting it again",
    ],
)  # fmt: skip
def test_the_versions_and_the_interruptions_are_told_in_german(sentence: str) -> None:
    texts.set_language("de")
    try:
        assert texts.tell(sentence) != sentence
    finally:
        texts.set_language("en")


def test_pages_and_answers_are_german_for_who_reads_german(client: TestClient) -> None:
    page = client.get("/?camera=dock", headers=GERMAN).text
    assert "Zu diesem Filter passt nichts." in page
    assert "Alle Kameras" in page
    assert "Alerts" not in re.sub(r"<(?:script|option)[^>]*>.*?</\w+>|<[^>]*>", "", page)
    missing = client.get("/api/v1/cameras/nowhere", headers=GERMAN).json()
    assert missing["detail"] == "Diese Kamera gibt es in der Standortdatei nicht."
    assert client.get("/api/v1/cameras/nowhere").json()["detail"] == "There is no such camera in the site file."


def test_the_appliance_s_own_words_are_german_wherever_they_stand(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(T0 + 100))
    site.live("gate", T0)
    site.cameras.mark_all_lost(T0 + 50, "camera gate: a:1 ended the stream")
    site.answer(site.raise_alert("a", T0))
    with site.client() as client:
        assert '<span class="pill lost">getrennt</span>' in client.get("/cameras", headers=GERMAN).text
        page = client.get("/alerts/a", headers=GERMAN).text
        assert "Person 1 betrat yard (intruder)" in page
        assert '<span class="vote yes">ja</span>' in page
    site.close()


def test_what_the_access_log_says_is_told_in_every_language() -> None:
    words = {right.logged for right in RIGHTS.values() if right.logged}
    written = re.compile(r'log\.write\b.*"([a-z ]+)"|"(was refused: [a-z ]+)"')
    for file in [*DASHBOARD.glob("*.py"), *WEB.glob("*.py")]:
        words |= {one or other for one, other in written.findall(file.read_text())}
    assert words <= set(SENTENCES), words - set(SENTENCES)
    assert {"signed in", "was refused: wrong code"} <= words


def test_every_reason_of_the_router_is_told_in_german() -> None:
    tree = ast.parse(inspect.getsource(router))
    reasons = [*(f"a person asks; it {wait}" for wait in router.WAITS.values())]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in {"decide", "_refused", "_kept", "_flagged"}:
            parts = [each for part in node.body[1:] for each in ast.walk(part)]
            joined = [each for each in parts if isinstance(each, ast.JoinedStr)]
            inner = [piece for each in joined for piece in each.values]
            whole = [each for each in parts if isinstance(each, ast.Constant) and each not in inner]
            reasons += [ast.unparse(each) for each in (*joined, *whole) if " " in ast.unparse(each)]
    assert len(reasons) > 15
    texts.set_language("de")
    try:
        for reason in (re.sub(r"""^f?["']|["']$""", "", each) for each in reasons):
            assert texts.tell(reason) != reason
        told = texts.tell("audit sample: the appliance is sure: such alerts are hardly ever wrong")
        assert told == "Stichprobe: das Gerät ist sicher: solche Alarme sind fast nie falsch"
        assert texts.tell("Reported: person (gate), car (drive).") == "Gemeldet: Person (gate), Auto (drive)."
    finally:
        texts.set_language("en")


def test_numbers_in_a_sentence_are_written_as_the_language_does() -> None:
    texts.set_language("de")
    try:
        stayed = texts.tell("it stayed 10.2 of the 20 s that the rule wants in zone 1.5")
        assert "10,2" in stayed
        assert "1.5" in stayed, "the name of a zone is no number"
        lost = texts.tell("camera roof is lost: the camera does not answer")
        assert lost.startswith("Kamera roof ist getrennt: ")
    finally:
        texts.set_language("en")


def test_the_system_page_says_nothing_in_english_to_a_german(client: TestClient) -> None:
    page = client.get("/system", headers=GERMAN).text
    for sentence in ("the detector has not worked yet", "as the file", "took its place"):
        assert sentence not in page, sentence
