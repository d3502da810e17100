"""The commands that README and the first pages of the documents print work as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.__main__ import commands, main
from appliance.cli.command_table import Command, build_parser
from cloud_worker.__main__ import main as worker_main

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/install.md", "docs/replay.md", "docs/scenarios.md")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
# Who reads replaces these by names of their own; whatever else README names is there, or was made by a line before.
OURS = ("fixtures/", "deploy/", "models/", "docs/", "tests/", "site.yaml", "worker.yaml")
MADE_BY = ("--log", "--html", "--junit", "--to", "--json")
ON_THE_PATH = 'export PATH="$PWD/.venv/bin:$PATH"'


@dataclass(frozen=True)
class Line:
    """A line of a page's shell blocks, without its comment."""

    page: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def lines_of(page: str) -> Iterator[Line]:
    for fenced, indented in _BLOCK.findall((ROOT / page).read_text()):
        for text in (fenced or indented).splitlines():
            try:
                words = shlex.split(text, comments=True)
            except ValueError:
                continue  # a drawing or a log, no command
            if words and (fenced or words[0].startswith("vedette")):
                yield Line(page, tuple(words), text.strip())


def examples_of(command: Command) -> Iterator[Line]:
    """The lines of a command's help that run `vedette`, each up to a pipe."""
    for text in re.findall(r"^ +(?:\S.* \| )?(vedette .*)$", command.text, re.MULTILINE):
        words = shlex.split(re.split(r" (?:\||>|&&) ", text)[0], comments=True)
        yield Line(f"vedette {command.name} --help", tuple(words), text)


ALL = [line for page in PAGES for line in lines_of(page)]
VEDETTE = [line for line in ALL if line.words[0] == "vedette" and "…" not in line.text]
EXAMPLES = [line for command in commands() for line in examples_of(command)]


def parsed(words: tuple[str, ...]) -> object:
    if words[1:3] == ("replay", "diff"):
        words = ("vedette", "replay-diff", *words[3:])
    return build_parser(commands()).parse_args(words[1:])


@pytest.mark.parametrize("line", [*VEDETTE, *EXAMPLES], ids=str)
def test_a_printed_command_is_one_that_there_is(line: Line) -> None:
    code: object = 0
    try:
        parsed(line.words)
    except SystemExit as end:
        code = end.code
    assert code == 0, f"{line} is refused"


def test_there_are_commands_to_try() -> None:
    """Or the pages are written in a way that this does not read."""
    assert {line.page for line in VEDETTE} >= {"README.md", "docs/replay.md", "docs/scenarios.md"}
    assert len([line for line in VEDETTE if line.page == "README.md"]) >= 14


def test_commands_are_found_where_readme_says_before_it_uses_them() -> None:
    lines = [line for line in ALL if line.page == "README.md"]
    first = next(index for index, line in enumerate(lines) if line.words[0].startswith(("vedette", "pytest")))
    assert ON_THE_PATH in [line.text.split("  ")[0] for line in lines[:first]]
    assert lines[0].words[:2] == ("make", "demo"), "which installs them"
    assert not [str(line) for line in lines if ".venv/bin" in line.text and ON_THE_PATH not in line.text]


def test_what_readme_names_is_there_or_was_made_by_a_line_before() -> None:
    made: set[str] = set()
    for line in (each for each in ALL if each.page == "README.md"):
        before = ""
        for word in line.words[1:]:
            if word.startswith(OURS) and "://" not in word and before not in MADE_BY:
                copied = line.words[0] == "cp" and word == line.words[-1]
                assert copied or word in made or (ROOT / word).exists(), f"{line}: {word} is not there"
            if before in ("--log", "--html") or (line.words[0] == "cp" and word == line.words[-1]):
                made.add(word)
            before = word
        if line.words[:3] == ("vedette", "replay", "diff"):
            assert set(line.words[3:]) <= made, f"{line}: no line before it writes its logs"
    assert {"site.yaml", "worker.yaml"} <= made


def test_the_camera_of_the_example_is_the_one_that_readme_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps of a site up to its first replay; the footage itself is not played here."""
    copies = [line for line in ALL if line.page == "README.md" and line.words[0] == "cp"]
    for line in copies:
        shutil.copy(ROOT / line.words[1], tmp_path / line.words[2])
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    monkeypatch.chdir(tmp_path)
    replays = [line for line in VEDETTE if line.page == "README.md" and line.words[1] == "replay"]
    first = next(line for line in replays if "fixtures/clips/gate.mp4" in line.words)
    words = [word.replace("fixtures/clips/gate.mp4", "broken.mp4") for word in first.words[1:]]
    assert main(words) == 1, "site file and camera are right, the footage is not"
    assert "broken.mp4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        worker_main(["run", "--nonsense"])


@pytest.mark.slow
def test_what_readme_does_with_the_footage_that_comes_along_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fixtures", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    done = 0
    for line in (each for each in ALL if each.page == "README.md"):
        if line.words[0] == "cp":
            shutil.copy(line.words[1], line.words[2])
        elif line.words[0] == "vedette" and any(word.startswith("fixtures/") for word in line.words):
            if line.words[1] != "tune" and "curve" not in line.words:  # minutes each, of the same parts
                assert main(list(line.words[1:])) in ((0, 1) if "--with" in line.words else (0,)), line
                done += 1
        elif line.words[1:3] == ("replay", "diff"):
            assert main(list(line.words[1:])) == 1, "in rain people are found later"
            done += 1
    assert done >= 6


def test_readme_is_read_in_a_terminal_too() -> None:
    lines = enumerate((ROOT / "README.md").read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > 160] == []
