"""The documents name what exists: links, anchors, modules, commands and keys; and they keep their length."""

from __future__ import annotations

import re
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from appliance.__main__ import commands
from appliance.config import SiteConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
COLUMNS_MAX = 120


def prose(page: Path) -> str:
    """The page without its blocks of code, and tables."""
    return re.sub(r"(?ms)^```.*?^```$|^(    |\|).*?$", "", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings as GitHub names them, and the ids that it gives itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    named = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    return named | set(re.findall(r'<a id="([^"]+)"', text))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """File and anchor of each relative link."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


@cache
def tracked() -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    return frozenset(listed or (str(each.relative_to(ROOT)) for each in ROOT.rglob("*") if ".venv" not in each.parts))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {file}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {file}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_and_test_that_is_named_exists(page: Path) -> None:
    names = {Path(each).name for each in tracked()}
    for name in re.findall(r"`(?:[\w./]*/)?(\w+\.py)`", prose(page)):
        assert name in names, f"{page.name} names {name}"
    for path in re.findall(
        r"`((?:appliance|cloud_worker|models|tests|benchmarks|deploy|fixtures)/[\w./-]+)`", prose(page)
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_named_exists(page: Path) -> None:
    known = {each.name.split()[0] for each in commands()} | {"--help", "--version"}
    for word in re.findall(r"`vedette ([a-z][\w-]*)", prose(page)):
        assert word in known, f"{page.name} names `vedette {word}`"
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for target in re.findall(r"`make ([a-z-]+)", prose(page)):
        assert target in targets, f"{page.name} names `make {target}`"


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that a field's annotation holds, wherever in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, type):
        return
    for each in typing.get_args(annotation):
        if not isinstance(each, str | int | float | types.NoneType):
            yield from models_in(each)


def has_key(model: type[BaseModel], keys: list[str]) -> bool:
    """Whether a dotted key stands for something below a model; a key of a mapping may be any name."""
    if not keys:
        return True
    field = model.model_fields.get(keys[0])
    if field is None:
        return False
    below = list(models_in(field.annotation))
    return len(keys) == 1 or any(has_key(each, keys[1:]) or has_key(each, keys[2:]) for each in below)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_key_of_the_site_file_that_is_named_exists(page: Path) -> None:
    sections = "|".join(sorted(SiteConfig.model_fields))
    for key in re.findall(rf"`((?:{sections})\.[a-z_]+(?:\.[a-z_]+)*)`", prose(page)):
        if not key.endswith((".py", ".yaml", ".json", ".jsonl", ".html", ".md", ".js", ".db", ".svg")):
            assert has_key(SiteConfig, key.split(".")), f"{page.name} names the key {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_a_terminal(page: Path) -> None:
    for line in prose(page).splitlines():
        assert len(line) <= COLUMNS_MAX, f"{page.name}: {line[:60]}…"


@pytest.mark.parametrize(("name", "lines_max"), [("README.md", 130), ("CHANGELOG.md", 120)])
def test_a_page_that_everybody_reads_stays_short(name: str, lines_max: int) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert len(text) <= lines_max
    if name == "README.md":
        assert all(len(line) <= COLUMNS_MAX for line in text)


def test_each_decision_has_a_number_of_its_own_and_a_status() -> None:
    numbers: list[int] = []
    for page in DECISIONS:
        text = page.read_text(encoding="utf-8")
        entries = re.findall(r'(?m)^- <a id="(\d+)"></a>\*\*(\d+)\. (.*?)(?=^- <a|\Z)', text, re.S)
        assert page.name == "README.md" or entries
        for anchor, number, rest in entries:
            numbers.append(int(number))
            assert anchor == number
            status = re.search(r"\*(In force[^*]*|Replaced by \d+[^*]*)\.\*", " ".join(rest.split()))
            assert status, f"{page.name}: {number} has no status"
            for named in re.findall(r"\d+", status[1]):
                assert int(named) <= 1000
    assert len(numbers) == len(set(numbers)) > 100
    assert sum(len(page.read_text(encoding="utf-8").splitlines()) for page in DECISIONS) <= 370


def test_a_decision_that_code_or_a_page_names_is_there() -> None:
    there = {number for page in DECISIONS for number in re.findall(r'<a id="(\d+)"', page.read_text(encoding="utf-8"))}
    for name in sorted(tracked()):
        if name.endswith((".py", ".md", ".sh", ".js")) and name != "tests/unit/test_documents.py":
            text = (ROOT / name).read_text(encoding="utf-8", errors="replace") if (ROOT / name).is_file() else ""
            for number in re.findall(r"\bdecision (\d+)\b(?! ms|\.)", text):
                assert number in there, f"{name} names decision {number}"
