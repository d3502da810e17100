"""The systemd units say what the commands mean: names, options, exit codes and times; systemd itself accepts them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from appliance.__main__ import commands as table_of_commands
from appliance.cli.command_table import build_parser
from cloud_worker.__main__ import main as worker_main
from cloud_worker.config import HandlingConfig
from cloud_worker.worker import ARCHIVE_DRAIN_S

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
BOXES = sorted((ROOT / "deploy" / "systemd" / "accelerator.d").glob("*.conf"))
UDEV = ROOT / "deploy" / "udev" / "70-vedette.rules"


def read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and their values in order: a key may stand several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            section.setdefault(key, []).append(value)
    return found


@pytest.fixture(params=UNITS, ids=lambda path: path.stem)
def unit(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def commands(path: Path) -> list[list[str]]:
    service = read(path)["Service"]
    return [line.split() for key in ("ExecStartPre", "ExecStart") for line in service.get(key, ())]


def test_there_is_a_unit_for_the_appliance_and_one_for_the_worker() -> None:
    assert [path.name for path in UNITS] == ["vedette-worker.service", "vedette.service"]


def test_a_unit_is_an_ini_file_without_a_key_twice(unit: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    assert {"Unit", "Service", "Install"} == set(parser.sections())
    twice = {key for section in read(unit).values() for key, values in section.items() if len(values) > 1}
    assert twice == {"SystemCallFilter"}, "of which the second line takes away from the first"


def test_the_commands_exist_and_take_these_options(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for program, *options in commands(unit):
        name = Path(program).name
        assert name in scripts
        assert name == unit.stem
        if name == "vedette":
            build_parser(table_of_commands()).parse_args(options)
        else:
            with pytest.raises(SystemExit) as ended:
                worker_main([*options, "--help"])
            assert ended.value.code == 0
    capsys.readouterr()


def test_a_wrong_file_is_no_reason_to_start_again(unit: Path) -> None:
    service = read(unit)["Service"]
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == ["2"], "the exit code of a wrong file (ConfigError)"


def test_it_runs_without_rights_that_it_does_not_need(unit: Path) -> None:
    service = read(unit)["Service"]
    assert service["User"] == ["vedette"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert [f"/var/lib/{name}" for name in service["StateDirectory"]] == service["WorkingDirectory"]


def test_engines_that_were_built_outlive_an_upgrade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from appliance.detect.tensorrt_plan_cache import engine_folder

    (name,) = read(ROOT / "deploy" / "systemd" / "vedette.service")["Service"]["CacheDirectory"]
    monkeypatch.delenv("VEDETTE_ENGINES", raising=False)
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / name))
    assert engine_folder() == tmp_path / name / "engines"


def test_the_worker_may_drain_before_it_is_killed() -> None:
    (stop_s,) = read(ROOT / "deploy" / "systemd" / "vedette-worker.service")["Service"]["TimeoutStopSec"]
    assert int(stop_s) > HandlingConfig().drain_s + ARCHIVE_DRAIN_S


def test_passwords_are_read_from_a_file_and_stand_in_no_unit(unit: Path) -> None:
    service = read(unit)["Service"]
    assert service["EnvironmentFile"] == ["-/etc/vedette/environment"]
    assert service["Environment"] == ["ORT_DISABLE_TELEMETRY=1"], "libraries tell nobody"
    assert not re.search(r"(?i)(password|token|secret)=", unit.read_text())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is there: systemd looks for it."""
    program = shutil.which("true")
    assert program is not None
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^(Exec\w+=)\S+", rf"\g<1>{program}", unit.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == []


# Each closes a door of its own (systemd.exec(5)); what systemd-analyze calls exposure is their sum.
CLOSED = {
    "UMask": "0077", "StateDirectoryMode": "0700", "ProtectHome": "yes", "ProtectProc": "invisible",
    "ProtectClock": "yes", "ProtectHostname": "yes", "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes", "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes", "PrivateTmp": "yes", "PrivateUsers": "yes", "PrivateDevices": "yes",
    "CapabilityBoundingSet": "", "RestrictNamespaces": "yes", "RestrictRealtime": "yes", "RestrictSUIDSGID": "yes",
    "RemoveIPC": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes", "SystemCallArchitectures": "native",
}  # fmt: skip


def test_its_doors_are_closed_and_what_it_may_use_is_bounded(unit: Path) -> None:
    service = read(unit)["Service"]
    assert {key: service.get(key) for key in CLOSED} == {key: [value] for key, value in CLOSED.items()}
    assert set(service["RestrictAddressFamilies"][0].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert service["SystemCallFilter"][0].startswith("@system-service seccomp landlock_create_ruleset")
    assert service["SystemCallFilter"][1].startswith("~@privileged")
    assert int(service["LimitNOFILE"][0]) >= 4096
    assert service["MemoryMax"]
    assert service["TasksMax"]


def rate(*files: Path) -> None:
    """Held against 2.5 of 10."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", *map(str, files)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "offline" in done.stderr:
        pytest.skip("this systemd cannot rate a file")
    assert done.returncode == 0, done.stdout[-300:]
    assert "ignoring" not in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_calls_their_exposure_low_with_the_drop_in_of_each_box_too(tmp_path: Path) -> None:
    appliance = ROOT / "deploy" / "systemd" / "vedette.service"
    units = list(UNITS)
    for box in BOXES:
        units.append(tmp_path / f"vedette-{box.stem}.service")
        units[-1].write_text(appliance.read_text() + box.read_text())
    rate(*units)


def test_a_box_lets_in_the_devices_it_has_and_no_more_than_that() -> None:
    """What else the unit closes stays closed: a drop-in never empties a list and never gives rights back."""
    assert [box.stem for box in BOXES] == ["cpu", "intel", "jetson", "nvidia", "pi"]
    allowed = {"MemoryDenyWriteExecute", "PrivateDevices", "SupplementaryGroups", "DeviceAllow"}
    allowed |= {"TimeoutStartSec"}  # for the engines that TensorRT builds
    for box in BOXES:
        service = read(box)["Service"]
        assert set(service) <= allowed, box
        if "PrivateDevices" in service:
            assert service["SupplementaryGroups"] == ["render video"]
            assert all(re.fullmatch(r"char-[\w*]+ rw", each) for each in service["DeviceAllow"]), box
    compiles = {box.stem for box in BOXES if read(box)["Service"].get("MemoryDenyWriteExecute") == ["no"]}
    assert compiles == {"cpu", "intel", "jetson", "nvidia"}, "OpenVINO, CUDA and TensorRT write code and run it"


def test_device_rules_give_nodes_to_groups_and_to_nobody_else() -> None:
    rules = [line for line in UDEV.read_text().splitlines() if line and not line.startswith("#")]
    clause = re.compile(r'[A-Z]+(?:\{\w+\})?(==|=|\+=)"[^"]*"')
    for rule in rules:
        assert all(clause.fullmatch(part.strip()) for part in re.split(r",(?![^\"]*\"(?:,|$))", rule)), rule
        assert not re.search(r"MODE=\"0..[1-7]", rule), "for everybody"
    covered = set(re.findall(r'SUBSYSTEM=="(\w+)"', UDEV.read_text()))
    assert covered == {"drm", "video4linux", "media", "dma_heap", "accel", "hailo_chardev", "pci", "powercap"}


@pytest.mark.parametrize("box", ["nvidia", "jetson"])
def test_a_box_that_builds_engines_has_a_place_for_them_and_time(box: str) -> None:
    """systemd ends a start after 90 s, and the vedette user has no home: the place is the unit's for every box."""
    folder = ROOT / "deploy" / "systemd"
    text = (folder / "vedette.service").read_text() + (folder / "accelerator.d" / f"{box}.conf").read_text()
    assert {"CacheDirectory=vedette", "TimeoutStartSec=30min"} <= set(text.splitlines())
