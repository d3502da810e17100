"""The planted faults: the areas they are drawn in, and the list that is kept in git.

An area has the tests that are asked about its faults, the closest first. The list is one JSON object a line, what was
planted and what came of it.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.mutation.edits import Edit, is_python, is_shell, python_edits, shell_edits

LIST = Path(__file__).parent / "faults.jsonl"
State = Literal["killed", "survived", "equivalent"]
STATES: tuple[State, ...] = ("killed", "survived", "equivalent")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Lines of a file and what they are replaced by; joined by newlines, `after` may be empty.

    line: of the first one when it was drawn, from 1. killed_by: the first test that failed, "timeout", or "start" where
    nothing could be imported. reason: why no test can tell an equivalent one.
    """

    area: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    state: State = "survived"
    killed_by: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a fault, wherever its lines have moved to."""
        return self.file, self.before, self.after

    def planted(self, text: str) -> str | None:
        """Return the file's text with the fault in it; None if its lines are there no more."""
        lines, before = text.split("\n"), self.before.split("\n")
        found = [at for at in range(len(lines)) if lines[at : at + len(before)] == before]
        if not found:
            return None
        at = min(found, key=lambda each: abs(each + 1 - self.line))
        return "\n".join([*lines[:at], *([self.after] if self.after else []), *lines[at + len(before) :]])


def fault_of(area: str, file: str, operator: str, text: str, mutated: str) -> Fault | None:
    """Return the fault that makes `mutated` of a file's text; None if they are the same."""
    lines, others = text.split("\n"), mutated.split("\n")
    changes = [each for each in difflib.SequenceMatcher(None, lines, others, False).get_opcodes() if each[0] != "equal"]
    if not changes:
        return None
    (_, first, _, other_first, _), (_, _, last, _, other_last) = changes[0], changes[-1]
    before, after = "\n".join(lines[first:last]), "\n".join(others[other_first:other_last])
    made = Fault(area=area, file=file, line=first + 1, operator=operator, before=before, after=after)
    return made if made.before and made.planted(text) == mutated else None


def read(path: Path = LIST) -> list[Fault]:
    """Read the faults of the list. Raise ValueError or TypeError if a line is no fault."""
    if not path.exists():
        return []
    return [Fault(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def write(faults: Iterable[Fault], path: Path = LIST) -> None:
    """Write the list in the order of areas, files and lines."""
    ordered = sorted(faults, key=lambda each: (each.area, each.file, each.line, each.before, each.after))
    text = "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in ordered)
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def killed_share(faults: Sequence[Fault]) -> float:
    """Return the killed share of those that are not equivalent; 0 when there are none."""
    told = [each for each in faults if each.state != "equivalent"]
    return sum(each.state == "killed" for each in told) / len(told) if told else 0.0


def table(faults: Sequence[Fault]) -> str:
    """Write a Markdown table: a row for each area and one for all."""
    rows = ["| area | planted | killed | equivalent | survived | share |", "|---|---|---|---|---|---|"]
    for area in [*dict.fromkeys(each.area for each in faults), ""]:
        mine = [each for each in faults if area in (each.area, "")]
        counts = [sum(each.state == state for each in mine) for state in ("killed", "equivalent", "survived")]
        rows.append(f"| {area or 'all'} | {len(mine)} | {' | '.join(map(str, counts))} | {killed_share(mine):.0%} |")
    return "\n".join(rows)


@dataclass(frozen=True, slots=True)
class Area:
    """files: of the product, from the root. tests: below tests/."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = (
    Area(
        "router",
        tuple(
            f"appliance/router/{name}.py"
            for name in (
                "decide", "escalation_budget", "escalation_planner", "track_stats", "router_maintenance",
            )
        ),
        (
            "unit/test_silent_audit.py", "unit/test_escalation_planner.py", "unit/test_escalation_budget.py",
            "unit/test_recent_escalations.py", "unit/test_system_load.py", "unit/test_pool_status.py",
            "unit/test_router.py", "unit/test_router_maintenance.py", "unit/test_load_shedding.py",
        ),
    ),
    Area(
        "calibration",
        tuple(f"appliance/router/{name}.py" for name in ("calibration", "calibration_fit")),
        ("unit/test_calibration.py", "unit/test_router_maintenance.py", "unit/test_cascade.py"),
    ),
    Area(
        "access rights", ("appliance/dashboard/access_rights.py",),
        ("unit/test_access.py", "unit/test_arming.py", "unit/test_proxy_headers.py"),
    ),
    Area(
        "guard", ("appliance/web/guard.py",),
        (
            "unit/test_dashboard_auth.py", "unit/test_setup.py", "unit/test_second_factor.py",
            "unit/test_proxy_headers.py", "unit/test_dashboard_connections.py", "unit/test_dashboard_tls.py",
            "unit/test_access.py",
        ),
    ),
    Area(
        "session", ("appliance/web/auth.py", "appliance/store/users.py", "appliance/base/credentials.py"),
        (
            "unit/test_dashboard_auth.py", "unit/test_second_factor.py", "unit/test_setup.py",
            "unit/test_proxy_headers.py", "unit/test_access.py",
        ),
    ),
    Area("sandbox", ("appliance/sandbox/sandbox.py",), ("unit/test_sandbox.py", "unit/test_recording_reader.py")),
    Area("metrics", ("appliance/dashboard/metrics_api.py",), ("unit/test_metrics.py",)),
    Area(
        "savings",
        (
            "appliance/store/savings.py", "appliance/store/meter.py",
            "appliance/dashboard/costs_api.py", "appliance/dashboard/savings_api.py",
             "appliance/dashboard/savings_page.py",
        ),
        (
            "unit/test_savings.py", "unit/test_meter.py", "unit/test_costs.py", "unit/test_savings_history.py",
            "unit/test_box_sensors.py",
        ),
    ),
    Area(
        "exports",
        ("appliance/lab/export_command.py", "appliance/lab/export_samples.py", "appliance/lab/export_folder.py"),
        ("unit/test_export_images.py", "replay/test_export.py"),
    ),
    Area("install.sh", ("deploy/install.sh",), ("unit/test_install_script.py",)),
)  # fmt: skip


def drawn(area: Area, seed: int, count: int, known: set[tuple[str, str, str]]) -> list[Fault]:
    """`count` faults besides those that are known, at most one a line: the lines by lot, then one of each."""
    draw = random.Random(f"{seed} {area.name}")
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in area.files}
    places: dict[tuple[str, int], list[Edit]] = {}
    for file, text in texts.items():
        for edit in shell_edits(text) if file.endswith(".sh") else python_edits(text, draw):
            places.setdefault((file, edit.line), []).append(edit)
    order = sorted(places)
    draw.shuffle(order)
    found: list[Fault] = []
    for file, line in order:
        if len(found) == count:
            break
        # A result that is dropped makes most callers crash: only where nothing subtler can be planted.
        subtle = [each for each in places[file, line] if each.operator != "result dropped"]
        edit = draw.choice(subtle or places[file, line])
        mutated = edit.applied(texts[file])
        still = is_shell if file.endswith(".sh") else is_python
        fault = fault_of(area.name, file, edit.operator, texts[file], mutated) if still(mutated) else None
        if fault is not None and fault.key not in known:
            found.append(fault)
    return found
