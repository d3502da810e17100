"""Names use the glossary of docs/design.md: no private word, no *box* for the appliance, no class name twice.

Every name that the product and the test helpers define is read: modules, classes, functions, parameters, variables and
attributes in Python, all identifiers in JavaScript, and classes, ids and custom properties in style sheets. Names that
a contract fixes lie in vocabulary_exceptions.txt beside this file; `--update` takes out of it what is gone and adds
nothing.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.python_source import parsed

ROOT = Path(__file__).parents[2]
PACKAGES = ("appliance", "cloud_worker")
HELPERS = ("tests/support", "tests/servers")
EXCEPTIONS = Path(__file__).with_name("vocabulary_exceptions.txt")

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
# Beside these words in a name, *box* is the device that Vedette runs on: the field says appliance. Elsewhere it is a
# bounding box.
OF_THE_DEVICE = frozenset(
    {
        "config", "cpu", "disk", "fault", "faults", "file", "files", "folder", "health", "heat", "host", "hot", "load",
        "log", "memory", "monitor", "of", "off", "on", "online", "process", "reading", "sensor", "sensors", "settings",
        "site", "started", "status", "temperature", "the", "this", "version", "watch",
    }
)  # fmt: skip
# A variable *box* that is made from, or declared as, a type with one of these words.
DEVICE_TYPES = frozenset({"appliance", "host", "monitor", "process", "reading", "sensor", "sensors"})

_JS_NOISE = re.compile(
    r"/\*.*?\*/|(?<![:\\])//[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(?<=[(=,:])\s*/(?:\\.|[^/\\\n])+/[a-z]*",
    re.DOTALL,
)
_JS_TEMPLATE_TEXT = re.compile(r"`[^`]*`")
_JS_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")


def sources() -> list[Path]:
    folders = [*PACKAGES, *HELPERS]
    kinds = ("*.py", "*.js", "*.css")
    return [path for folder in folders for kind in kinds for path in sorted((ROOT / folder).rglob(kind))]


def words(name: str) -> list[str]:
    """Split a name into lower-case words: `SendQueue` and `send_queue` are both send, queue."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@functools.cache  # most names stand in many files
def complaint(name: str) -> str:
    """Return why a name may not be used, or nothing."""
    found = words(name)
    private = [f"{word} (say {PRIVATE_WORDS[word]})" for word in found if word in PRIVATE_WORDS]
    if "box" in found and OF_THE_DEVICE.intersection(found):
        private.append("box (say appliance)")
    return ", ".join(private)


def last_name(target: ast.expr) -> str:
    return getattr(target, "attr", "") or getattr(target, "id", "") or ast.unparse(target).rpartition(".")[2]


def python_names(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each name that a module defines, with the type that it is declared as or made from."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, None
        elif isinstance(node, ast.arg):
            yield node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            yield last_name(node.target), node.annotation
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in (each for each in node.targets if not isinstance(each, ast.Tuple)):
                yield last_name(target), node.value.func
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, None
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, None
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, None


def script_names(text: str) -> set[str]:
    """Return all identifiers of a script, without its comments and texts."""
    inside = " ".join(_JS_INTERPOLATION.findall(text))
    return set(re.findall(r"[A-Za-z_$][\w$]*", _JS_TEMPLATE_TEXT.sub("", _JS_NOISE.sub("", text)) + " " + inside))


def style_names(text: str) -> set[str]:
    """Return the classes, ids, custom properties and animations of a style sheet."""
    bare = re.sub(r"/\*.*?\*/|\"[^\"]*\"|url\([^)]*\)", "", text, flags=re.DOTALL)
    return set(re.findall(r"(?:[.#]|--|@keyframes )([A-Za-z_][\w-]*)", bare))


def complaints(path: Path) -> dict[str, str]:
    """Return the names of a file that may not be used, with the reason."""
    found = {}
    if path.suffix == ".py":
        for name, of in python_names(parsed(path)):
            if words(name) == ["box"] and of is not None and DEVICE_TYPES.intersection(words(ast.unparse(of))):
                found[name] = "box (say appliance)"
            elif why := complaint(name):
                found[name] = why
    else:
        text = path.read_text()
        names = script_names(text) if path.suffix == ".js" else style_names(text)
        found = {name: why for name in names if (why := complaint(name))}
    if why := complaint(path.stem):
        found[path.stem] = why
    return found


def package_of(path: Path) -> str:
    """Return the folder, at most two deep, to which a file's exceptions belong."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


def exceptions() -> dict[tuple[str, str], str]:
    """Read package, name and reason of each exception."""
    lines = [line for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")]
    rows = [line.split(maxsplit=2) for line in lines]
    return {(package, name): reason for package, name, reason in rows}


def test_names_are_the_field_s(update: bool) -> None:
    allowed = exceptions()
    found: dict[tuple[str, str], str] = {}
    for path in sources():
        for name, why in complaints(path).items():
            found[package_of(path), name] = f"{path.relative_to(ROOT)}: {name}: {why}"
    if update:
        kept = [line for line in EXCEPTIONS.read_text().splitlines() if line.startswith("#") or not line]
        rows = [f"{package} {name} {reason}" for (package, name), reason in allowed.items() if (package, name) in found]
        EXCEPTIONS.write_text("\n".join([*kept, *sorted(rows)]) + "\n")
        allowed = exceptions()
    fresh = [why for at, why in sorted(found.items()) if at not in allowed]
    assert not fresh, "\n".join(fresh)
    stale = sorted(" ".join(at) for at in allowed.keys() - found.keys())
    assert not stale, f"no longer there, take them out (--update): {stale}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_stands_twice(package: str) -> None:
    places = defaultdict(list)
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in re.findall(r"^ *class ([A-Za-z]\w*)[(:]", path.read_text(), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("clerk_desk.py", "", {"clerk_desk"}),
        ("a.py", "class NightClerk:\n told_t: int\n def _said(ill): pass", {"NightClerk", "told_t", "_said", "ill"}),
        ("a.py", "self._reel, wish = 1, 2\nfor stir in a: pass\nimport b as vigil", {"_reel", "wish", "stir", "vigil"}),
        ("a.py", "box_version = 1\nbox: BoundingBox\nis_box = box_xy = 2\nSendQueue = unlooked = 3", {"box_version"}),
        ("a.py", "def f(box: ApplianceMonitor): pass", {"box"}),
        ("a.py", "self.box = ApplianceMonitor(1)", {"box"}),
        ("a.py", "# the clerk said\nx = 'question'\nx.picture()", set()),
        ("a.js", "// told\nlet lastLooks = `said ${toldOnce}` + 'film'; a.veil", {"lastLooks", "toldOnce", "veil"}),
        ("a.css", "/* film */ .picture-row { --stir: url(reel.png) } #shelf {}", {"picture-row", "stir", "shelf"}),
    ],
)  # fmt: skip
def test_a_private_word_is_found_wherever_a_name_stands(tmp_path: Path, file: str, text: str, names: set[str]) -> None:
    (tmp_path / file).write_text(text)
    assert set(complaints(tmp_path / file)) == names


def test_the_helpers_are_read() -> None:
    read = {path.relative_to(ROOT).as_posix() for path in sources()}
    assert {"tests/support/waiting.py", "tests/servers/nats.py", "appliance/web/static/style.css"} <= read
    assert len([path for path in read if path.endswith(".js")]) > 20


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
