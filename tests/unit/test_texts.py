"""Texts: a translation is one file, chosen by person, browser or site; nothing stands unmarked or left over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.clock import ManualClock
from appliance.dashboard import texts
from appliance.dashboard.texts import Catalogue, choose_language
from tests.dashboard_site import Site
from tests.page_texts import DASHBOARD, bare_script_words, bare_words

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


def test_a_translation_is_read_as_gettext_writes_it() -> None:
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
    spoken = Catalogue("de", "Deutsch", {("", cat.key): cat})
    assert [spoken.counted(cat.key, cat.plural, n) for n in (0, 1, 2)] == [cat.texts[1], cat.texts[0], cat.texts[1]]
    assert '"{n} Katze"' in spoken.script()
    with pytest.raises(ValueError, match="not a line"):
        list(texts.read("msgid nothing quoted"))


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


@pytest.mark.parametrize("file", sorted((DASHBOARD / "templates").glob("*.html")), ids=lambda file: file.name)
def test_every_word_of_a_template_is_marked(file: Path) -> None:
    assert bare_words(file.read_text()) == []


@pytest.mark.parametrize("file", sorted((DASHBOARD / "static").glob("*.js")), ids=lambda file: file.name)
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
