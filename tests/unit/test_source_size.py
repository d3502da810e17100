"""The counter of the sources: what it counts on a tree of a few lines, and the bounds that this tree keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.source_size import SEND_WORKERS, WAY_TO_NATS, Module, measure, reached

ROOT = Path(__file__).parents[2]
SOURCE = '''"""Module."""

import appliance.other

BARE = 3
TOLD = 4  # seconds: shorter is too short
ABOVE = BARE * 2


def many(a, b, c, d, e, f, g, h, i):
    """What it returns."""
    # no code
    return a
'''


def test_a_tree_is_counted(tmp_path: Path) -> None:
    (tmp_path / "appliance").mkdir()
    (tmp_path / "appliance" / "one.py").write_text(SOURCE)
    (tmp_path / "appliance" / "other.py").write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "decisions.md").write_text("a\nb\n")
    with pytest.raises(ValueError, match="max"):  # there is no class: the table of an empty tree has no meaning
        measure(tmp_path)
    (tmp_path / "appliance" / "rows.py").write_text("@dataclass\nclass Row:\n    a: int\n    b: int\n")
    found = measure(tmp_path)
    assert found["code lines (without blanks, comments, docstrings)"] == 6 + 4
    assert (found["modules"], found["modules with code"], found["most fields of a dataclass"]) == (3, 2, 2)
    assert found["functions with more than 8 parameters"] == 1
    assert found["docstrings that begin with What, Who, Of, That or So"] == 1
    assert (found["numeric constants"], found["numeric constants without a reason"]) == (3, 1)
    assert found["lines of the decisions"] == 2


def test_the_way_to_nats_is_followed_by_imports(tmp_path: Path) -> None:
    files = {
        "uplink/send_workers.py": "from appliance.base import clock\nROWS = 'appliance.store.rows:read'\n",
        "store/rows.py": "import appliance.broker.link\nA = 1  # one\n",
        "broker/link.py": "import appliance.uplink.send_workers\n",
        "store/other.py": "A = 1  # nobody imports it\n",
        "base/clock.py": "from appliance.store import other\n",
    }
    for name, text in files.items():
        (tmp_path / "appliance" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "appliance" / name).write_text(text)
    modules = [Module(tmp_path, path) for path in sorted((tmp_path / "appliance").rglob("*.py"))]
    found = reached(modules, SEND_WORKERS, WAY_TO_NATS)
    assert found == {"appliance.uplink.send_workers", "appliance.store.rows", "appliance.broker.link"}


def test_what_was_reached_is_kept() -> None:
    bounds = {
        "loose modules in appliance/": 6, "modules that name SiteConfig": 8,
        "functions with more than 8 parameters": 0, "lines of the decisions": 500,
        "docstrings that begin with What, Who, Of, That or So": 0,
        "modules from the send workers to NATS": 12,
    }  # fmt: skip
    found = measure(ROOT, bounds)
    assert {name: found[name] for name, most in bounds.items() if int(found[name]) > most} == {}
