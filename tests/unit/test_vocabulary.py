"""Class, function and module names use the glossary of docs/design.md: no private words, no class name twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("appliance", "cloud_worker")

# Words that this code once had for itself, with what the field says instead. A name may hold none of them.
PRIVATE_WORDS = {
    "again": "retry, resend, repeat",
    "album": "frame history",
    "clerk": "handler",
    "company": "batch, neighbours",
    "courier": "publisher",
    "desk": "context, dependencies",
    "docket": "pending verdicts",
    "exhibit": "evidence file",
    "faint": "tentative",
    "film": "footage, clip",
    "glimpse": "crop request",
    "ill": "fault, unhealthy",
    "lookout": "backlog monitor",
    "lookouts": "backlog monitor",
    "looks": "inferences, detections",
    "notary": "commit batcher",
    "picture": "frame (decoded), image (encoded)",
    "pictures": "frames (decoded), images (encoded)",
    "portrait": "still",
    "purse": "budget",
    "question": "escalation",
    "questions": "escalations",
    "reel": "replay input",
    "said": "reported, emitted",
    "sentry": "tamper detector",
    "shelf": "store, archive",
    "shelves": "stores",
    "somebody": "person, object",
    "stir": "activity",
    "thrift": "decode policy",
    "told": "reported, notified",
    "toll": "rate limiter",
    "turnstile": "circuit breaker",
    "veil": "redaction",
    "vigil": "watchdog",
    "wish": "option",
    "wishes": "options",
}


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """Kind and name of each class and each public function or method of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield "function", node.name


def words(name: str) -> list[str]:
    """`SendQueue` and `send_queue` are both send, queue."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def private_words(name: str) -> list[str]:
    return [f"{word} (say {PRIVATE_WORDS[word]})" for word in words(name) if word in PRIVATE_WORDS]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_names_are_the_field_s(path: Path) -> None:
    found = [f"{kind} {name}: {bad}" for kind, name in definitions(path) if (bad := private_words(name))]
    if bad := private_words(path.stem):
        found.append(f"module {path.stem}: {bad}")
    assert not found, f"{path.relative_to(ROOT)}: " + "; ".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_stands_twice(package: str) -> None:
    places = defaultdict(list)
    for path in sorted((ROOT / package).rglob("*.py")):
        for kind, name in definitions(path):
            if kind == "class" and not name.startswith("_"):
                places[name].append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_a_private_word_in_a_name_is_found() -> None:
    assert private_words("NightClerk") == ["clerk (say handler)"]
    assert private_words("was_told") == ["told (say reported, notified)"]
    assert private_words("SendQueue") == private_words("unlooked") == []


def test_the_glossary_is_short_and_knows_every_word_that_replaces_another() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    glossary = design.split("## Glossary")[1].split("\n## ")[0]
    assert len(glossary.strip().splitlines()) <= 60
    for word in (
        "escalation",
        "frame",
        "image",
        "inference",
        "detection",
        "appliance",
        "box",
        "session",
        "dropped",
        "deadline",
    ):
        assert re.search(rf"\*\*[^*]*\b{word}\b[^*]*\*\*", glossary), f"the glossary does not explain {word}"
