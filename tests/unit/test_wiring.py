"""How the appliance is put together: three steps, no callback set from outside, no field born outside `__init__`."""

from __future__ import annotations

import ast
import errno
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import MissingDependency
from appliance.base.threads import ServiceGroup
from appliance.config import SiteConfig, StorageConfig
from appliance.core.app import Appliance, build, recover, storage_folder
from appliance.media.segment_reader import recover_segment
from appliance.store.arming import ArmingRow
from appliance.store.database import Database
from tests.support.python_source import parsed
from tests.support.sensor_files import heat

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "appliance").rglob("*.py"))


def site(**sections: Any) -> SiteConfig:
    return SiteConfig.model_validate(
        {"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}, "dashboard": {"enabled": False}, **sections}
    )


def built(folder: Path, db: Database, **sections: Any) -> Appliance:
    """Build an appliance of a site file in this folder."""
    config, path = site(**sections), folder / "site.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return build(config, folder, db, db.clock, ServiceGroup(), path)


@pytest.mark.parametrize(
    ("sections", "between"),
    [
        ({}, []),
        ({"uplink": {"url": "nats://127.0.0.1:4222"}}, ["uplink"]),
        ({"notify": {"phone": {"kind": "webhook", "url": "http://127.0.0.1:1/x"}}}, ["notifier"]),
        ({"mqtt": {"url": "mqtt://127.0.0.1:1"}}, ["mqtt"]),
        ({"mqtt": {"url": "mqtt://127.0.0.1:1", "enabled": False}}, []),
    ],
    ids=["edge only", "uplink", "notify", "mqtt", "mqtt off"],
)
def test_build_makes_every_service_and_starts_none(
    sections: dict[str, Any], between: list[str], tmp_path: Path
) -> None:
    clock = ManualClock()
    db = Database(tmp_path / "vedette.db", clock)
    threads = threading.active_count()
    appliance = built(tmp_path, db, **sections)
    names = [service.name for service in appliance.services]
    assert names == [
        "meter",
        "memory",
        "sensors",
        "disk",
        "networks",
        "shadow",
        "retention",
        "ring",
        "drift",
        "evidence",
        "rechecks",
        *between,
        "proof",
        "core",
    ]
    assert threading.active_count() == threads
    assert appliance.stores.cameras.all() == []
    recover(site(**sections), tmp_path, appliance.stores, clock, recover_segment)
    assert [camera.name for camera in appliance.stores.cameras.all()] == ["gate"]
    db.close()


def test_a_site_that_is_disarmed_says_so_also_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    for disarmed in (False, True):
        db = Database(tmp_path / "vedette.db", clock)
        appliance = built(tmp_path, db)
        health = appliance._background.dashboard_probes.health
        assert health is not None
        assert any("disarmed" in text for text in health().warnings) is disarmed
        appliance.stores.arming.put(ArmingRow(profile="disarmed", since_t=clock.now(), until_t=None, who="anna"))
        assert any("disarmed" in text for text in health().warnings)
        db.close()


def test_the_router_goes_by_the_sensors_that_shedding_goes_by(tmp_path: Path) -> None:
    """Those of the box that `sensors.root` shows, not those of whatever /sys lies here."""
    clock = ManualClock()
    db = Database(tmp_path / "vedette.db", clock)
    heat(tmp_path / "host", 61)
    sections: dict[str, Any] = {
        "uplink": {"url": "nats://127.0.0.1:4222"}, "sensors": {"root": str(tmp_path / "host")},
    }  # fmt: skip
    appliance = built(tmp_path, db, **sections)
    maintenance = appliance._background.core_settings.maintenance
    assert maintenance is not None
    assert maintenance._system_load().temperature_c is None, "no sensor was read yet"
    appliance._lasting.monitor.run_once()
    assert maintenance._system_load().temperature_c == 61.0
    db.close()


def test_what_an_earlier_version_left_open_is_closed_to_others(tmp_path: Path) -> None:
    for name in ("segments", "evidence"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "vedette.db").touch(mode=0o644)
    (tmp_path / "mine").mkdir(mode=0o755)
    for path in tmp_path.iterdir():  # whatever umask a test before left behind
        path.chmod(0o644 if path.is_file() else 0o755)
    tmp_path.chmod(0o755)
    storage_folder(StorageConfig(dir=tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o750
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in tmp_path.iterdir()}
    assert modes == {"segments": "0o750", "evidence": "0o750", "vedette.db": "0o640", "mine": "0o755"}


def test_a_command_before_the_first_start_writes_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(f"storage: {{dir: {tmp_path / 'data'}}}\ncameras: {{}}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("four words to remember\n"))
    before = os.umask(0o022)
    try:
        assert main(["users", "add", "anna", "--role", "admin", "--config", str(tmp_path / "site.yaml")]) == 0
    finally:
        mask_after = os.umask(before)
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in (tmp_path / "data").iterdir()}
    assert modes["vedette.db"] == "0o600"
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert not [name for name, mode in modes.items() if not mode.endswith("00")]
    assert mask_after == 0o022, "who calls it from Python keeps their own"


def test_a_storage_folder_that_cannot_be_used_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingDependency, match="cannot be made: File exists: name a folder"):
        storage_folder(StorageConfig(dir=tmp_path / "file"))
    (tmp_path / "segments").mkdir(mode=0o755)
    (tmp_path / "segments").chmod(0o755)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(MissingDependency, match=r"/segments cannot be closed .*Operation not permitted\): chown"):
        storage_folder(StorageConfig(dir=tmp_path))


def test_pictures_of_a_question_that_a_kill_left_without_a_row_are_deleted_at_the_start(tmp_path: Path) -> None:
    left, of_an_alert = tmp_path / "evidence" / "ask-0123456789abcdef", tmp_path / "evidence" / "5d1f0c"
    for is_new in (True, False):
        for folder in (left, of_an_alert):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "frame-0.jpg").write_bytes(b"x")
        clock = ManualClock()
        db = Database(tmp_path / f"{is_new}.db", clock)
        stores = built(tmp_path, db).stores
        recover(site(), tmp_path, stores, clock, recover_segment, new_database=is_new)
        assert of_an_alert.exists()
        assert left.exists() is is_new, "a copy of the database that is put back may know it"
        db.close()


def test_recordings_without_their_database_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "segments" / "gate" / "2026-01-01"
    folder.mkdir(parents=True)
    (folder / "20260101T000000.000Z-abc.mp4").write_bytes(b"x")
    for is_new, told in ((True, ["database"]), (False, [])):
        clock = ManualClock()
        db = Database(tmp_path / f"{is_new}.db", clock)
        stores = built(tmp_path, db).stores
        recover(site(), tmp_path, stores, clock, recover_segment, new_database=is_new)
        assert [event.kind for event in stores.health.page()] == told
        db.close()


def classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            yield node


def assigned(function: ast.AST) -> set[str]:
    """Names of the fields of `self` that are assigned in a function."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", "") == "self"
    }


def born_late(node: ast.ClassDef) -> set[str]:
    """Fields that exist only once a method was called that `__init__` does not call. Of a subclass: unknown, none."""
    if any(ast.unparse(base) != "Protocol" for base in node.bases):
        return set()
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    born = {
        name.id
        for each in node.body
        for name in ast.walk(each)
        if isinstance(name, ast.Name) and each not in methods.values()
    }
    for name in ("__init__", "__post_init__"):
        if name in methods:
            born |= assigned(methods[name])
            called = (each.func for each in ast.walk(methods[name]) if isinstance(each, ast.Call))
            for each in called:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self" and each.attr in methods:
                    born |= assigned(methods[each.attr])
    return {field for method in methods.values() for field in assigned(method)} - born


def test_no_field_is_born_outside_init() -> None:
    late = {
        f"{path.relative_to(ROOT)}: {node.name}": sorted(fields)
        for path in SOURCES
        for node in classes(path)
        if (fields := born_late(node))
    }
    assert not late, f"fields that `__init__` does not have: {late}"


def test_a_field_that_is_born_late_is_found() -> None:
    code = "class A:\n def __init__(self): self.x = 1\n def go(self): self.y, self.x = 2, 3\n"
    assert born_late(ast.parse(code).body[0]) == {"y"}  # type: ignore[arg-type]


def changed_by(target: ast.expr) -> Iterator[ast.expr]:
    """Yield what an assignment changes: in `a[b.c], d.e = …` these are `a` and `d.e`."""
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from changed_by(each)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from changed_by(target.value)
    else:
        yield target


def test_what_an_assignment_changes_is_found() -> None:
    tree = ast.parse("a[b.c], (d.e, f.g[h.i]) = 1, (2, 3)").body[0]
    assert isinstance(tree, ast.Assign)
    assert [ast.unparse(each) for each in changed_by(tree.targets[0])] == ["a", "d.e", "f.g"]


@pytest.mark.parametrize(
    "name",
    [
        "core/app.py",
        "core/background_services.py",
        "core/ingest_supervisor.py",
        "alerts/pipeline.py",
        "ingest/process.py",
    ],
)
def test_what_is_put_together_gets_its_neighbours_as_arguments(name: str) -> None:
    """No callback is assigned to another object after it was made."""
    for node in ast.walk(ast.parse((ROOT / "appliance" / name).read_text())):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            for each in changed_by(target):
                if isinstance(each, ast.Attribute) and not ast.unparse(each).startswith("self."):
                    raise AssertionError(f"{name}: {ast.unparse(node)}")
