"""Areas in which faults are planted, and the tests that are asked about them: the closest first."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation.edits import is_python, is_shell, python_edits, shell_edits
from benchmarks.mutation.fault_list import Edit, Fault, fault_of

ROOT = Path(__file__).parents[2]


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
            "appliance/savings/ledger.py", "appliance/store/meter.py",
            "appliance/dashboard/savings_api.py",
            "appliance/dashboard/savings_history_api.py", "appliance/dashboard/savings_page.py",
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
