"""The site file edited key by key: what was asked for is in it, all else stays byte for byte."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError, PreconditionError
from appliance.settings.settings_service import SiteVersions
from appliance.settings.site_editor import SiteEditor, SiteFileChanged, difference, digest_of, replace_text
from appliance.settings.yaml_edit import REMOVED, SiteChange, edit

EXAMPLE = Path("deploy/vedette.example.yaml").read_text()
SITE = """\
# our shop
site: {name: shop}   # in one line

cameras:
  gate:              # by the road
    url: ${GATE}
    rules:
    # the first
    - name: a
      kind: enter
      zone: yard     # all of it
    - {name: b, kind: enter, zone: yard}
    zones: {yard: [[0, 0], [1, 0], [1, 1]]}

  # the one at the back
  back:
    url: rtsp://x/y
"""


def _changed_lines(before: str, after: str) -> tuple[set[str], set[str]]:
    return set(before.splitlines()) - set(after.splitlines()), set(after.splitlines()) - set(before.splitlines())


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    text = edit(SITE, [SiteChange(("cameras", "gate", "rules", "a", "zone"), "drive")])
    assert _changed_lines(SITE, text) == ({"      zone: yard     # all of it"}, {"      zone: drive     # all of it"})


def test_a_new_key_stands_at_the_end_of_its_section_and_before_the_next_comment() -> None:
    text = edit(SITE, [SiteChange(("cameras", "gate", "zones", "door"), [[0, 0], [0.5, 0], [0.5, 1]])])
    assert "zones: {yard: [[0, 0], [1, 0], [1, 1]], door: [[0, 0], [0.5, 0], [0.5, 1]]}\n\n  # the one" in text
    text = edit(SITE, [SiteChange(("cameras", "gate", "record"), False)])
    assert "[1, 1]]}\n    record: false\n\n  # the one at the back\n" in text


def test_a_whole_section_given_again_changes_only_what_differs() -> None:
    gate = copy.deepcopy(yaml.safe_load(SITE)["cameras"]["gate"])
    gate["rules"][0]["kind"] = "exit"
    gate["rules"].append({"name": "c", "kind": "dwell", "zone": "yard", "seconds": 5})
    text = edit(SITE, [SiteChange(("cameras", "gate"), gate)])
    gone, new = _changed_lines(SITE, text)
    assert gone == {"      kind: enter"}
    assert new == {"      kind: exit", "    - name: c", "      kind: dwell", "      seconds: 5", "      zone: yard"}


def test_what_is_removed_takes_only_its_own_lines() -> None:
    text = edit(
        SITE, [SiteChange(("cameras", "gate", "rules", "a"), REMOVED), SiteChange(("cameras", "back"), REMOVED)]
    )
    assert "# the one at the back" in text
    assert "name: a" not in text
    assert yaml.safe_load(text)["cameras"] == {
        "gate": {
            "url": "${GATE}",
            "rules": [{"name": "b", "kind": "enter", "zone": "yard"}],
            "zones": {"yard": [[0, 0], [1, 0], [1, 1]]},
        }
    }


@pytest.mark.parametrize("before", ["", "# nothing yet\n", "site:\n", "site: {}\n", "site: null # later"])
def test_sections_are_made_where_there_are_none(before: str) -> None:
    text = edit(before, [SiteChange(("site", "name"), "x"), SiteChange(("cameras", "a", "url"), "file:a.mp4")])
    assert yaml.safe_load(text) == {"site": {"name": "x"}, "cameras": {"a": {"url": "file:a.mp4"}}}
    assert ("#" in before) == ("#" in text)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: *x\n",
        "a: {b: &x [1, 2]}\nc: *x\n",
    ],
)
def test_what_stands_for_several_places_is_not_touched(text: str) -> None:
    for path in (("a", "b"), ("c", "b"), ("c", 0)):
        if path == ("c", 0) and "{b: 1}" in text:
            continue
        with pytest.raises(ConfigError, match="edit the file by hand"):
            edit(text, [SiteChange(path, 5)])


def _paths(data: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in pairs for found in [(*at, key), *_paths(value, (*at, key))]]


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(0, 1), st.text("ab:#{}[]'\"-|> é,&*!%\n", max_size=9)
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["u", "v w", "x", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_FILES = st.sampled_from([EXAMPLE, SITE])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(_FILES, st.data())
def test_any_value_at_any_place_is_in_the_file_and_nothing_else_changes(text: str, data: st.DataObject) -> None:
    tree = yaml.safe_load(text)
    path = data.draw(st.sampled_from(_paths(tree)))
    value = data.draw(st.one_of(st.just(REMOVED), _VALUES))
    after = edit(text, [SiteChange(path, value)])  # it compares the whole data itself
    node = yaml.safe_load(after)
    if value is not REMOVED:
        for part in path:
            node = node[part]
        assert node == value
    top = path[0]
    for section in text.split("\n\n"):  # sections of other top-level keys are there as they were
        if not section.lstrip("# \n").startswith(f"{top}:") and f"\n{top}:" not in section:
            head = section.splitlines()[0]
            if head and not head.startswith(" "):
                assert head in after


@settings(max_examples=80, deadline=None)
@given(_VALUES, st.booleans(), st.data())
def test_any_file_that_an_emitter_writes_can_be_edited(root: Any, flow: bool, data: st.DataObject) -> None:
    tree = {"k": root, "other": [1, {"name": "n", "z": 1}]}
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    path = data.draw(st.sampled_from(_paths(tree)))
    value = data.draw(st.one_of(st.just(REMOVED), _VALUES))
    edit(text, [SiteChange(path, value)])


def _site(folder: Path) -> Path:
    path = folder / "site.yaml"
    path.write_text("cameras:\n  gate:\n    url: rtsp://u:geheim@h/1\ndashboard:\n  token: 'long enough token'  # t\n")
    path.chmod(0o640)
    return path


def test_a_proposal_shows_the_difference_without_secrets_and_is_written_whole(tmp_path: Path) -> None:
    path = _site(tmp_path)
    editor = SiteEditor(path)
    base = editor.read().digest
    changes = [
        SiteChange(("cameras", "gate", "record"), False),
        SiteChange(("cameras", "gate", "url"), "rtsp://u:anders@h/1"),
        SiteChange(("dashboard", "token"), "another long token"),
    ]
    proposal = editor.propose(changes, base)
    assert "+    record: false" in proposal.diff
    assert not {"geheim", "anders", "long"} & set(proposal.diff.replace("@", " ").replace(":", " ").split())
    assert digest_of(path.read_text()) == base, "nothing is written yet"
    editor.write(proposal)
    assert editor.read() == proposal.after
    assert editor.read().config.cameras["gate"].record is False
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["site.yaml"]


@pytest.mark.skipif(os.getuid() != 0, reason="root alone gives files away")
def test_what_root_writes_stays_the_services_own(tmp_path: Path) -> None:
    """`sudo vedette candidate NAME --use`: or the service could not read its site file at the next start."""
    path = _site(tmp_path)
    os.chown(path, 12345, 12346)
    replace_text(path, "cameras: {}\n")
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 12346, 0o640)


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\x0c"])
def test_a_line_end_of_another_kind_in_what_is_hidden_is_no_bug(end: str) -> None:
    """A form feed that an editor left makes the file no YAML, and the page of settings says so."""
    for before in (f"a: 1  # token: x{end}y\n", f"a: [1\nurl: rtsp://u:x{end}y@h/\n"):
        assert "+a: 2" in difference(before, "a: 2\n")


def test_a_change_for_another_file_or_to_a_wrong_one_is_refused(tmp_path: Path) -> None:
    path = _site(tmp_path)
    editor = SiteEditor(path)
    base = editor.read().digest
    with pytest.raises(ConfigError, match=r"line 5: cameras\.gate\.detect\.fps"):
        editor.propose([SiteChange(("cameras", "gate", "detect"), {"fps": -1})], base)
    proposal = editor.propose([SiteChange(("cameras", "gate", "record"), False)], base)
    path.write_text(path.read_text() + "# by hand\n")
    with pytest.raises(SiteFileChanged, match="load it again"):
        editor.write(proposal)
    with pytest.raises(SiteFileChanged):
        editor.propose([], base)
    assert "# by hand" in path.read_text()


def test_the_last_twenty_versions_are_kept_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    versions = SiteVersions(tmp_path / "v", ManualClock(1000.0))
    for number in range(25):
        versions.add(f"site: {{name: s{number}}}\n", "anna", "a new name")
    assert [each.number for each in versions.all()] == list(range(25, 5, -1))
    assert versions.text(25) == "site: {name: s24}\n"
    assert versions.add("site: {name: s24}\n", "file", "again").number == 25, "the same text is no new version"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "v").iterdir())
    (tmp_path / "v" / "000025.json").write_text('{"number": 1')
    assert versions.all()[0].number == 24
    with pytest.raises(PreconditionError, match="no version 25"):
        versions.text(25)
