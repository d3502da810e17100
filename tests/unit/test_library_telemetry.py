"""Telemetry of libraries is off in whatever process of ours is begun, and what it left before is removed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base.telemetry import remove_identifiers
from appliance.detect.accelerators import _environment
from appliance.sandbox.sandbox import child_environment

ROOT = Path(__file__).parents[2]
OFF = "ORT_DISABLE_TELEMETRY"
TELLING = {"onnxruntime", "openvino"}
ONNX = tuple(f".cache/Microsoft/DeveloperTools/.onnxruntime/{each}" for each in ("deviceid", "onnxruntime.db"))
OPENVINO = ("intel/openvino_ga_cid", "intel/stats")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def names_one(path: Path) -> bool:
    text = path.read_text()  # to parse all of them takes seconds
    return any(each in text for each in TELLING)


def test_whatever_loads_such_a_library_imports_the_appliance_before() -> None:
    """By the package that it is in: sorted imports would put the library first."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    paths = [Path(each) for each in listed.splitlines() if not each.startswith("tests/") and (ROOT / each).is_file()]
    loading = [path for path in paths if names_one(ROOT / path) and imports(ROOT / path) & TELLING]
    assert {"appliance", "models", "benchmarks"} <= {path.parts[0] for path in loading}
    for path in loading:
        packages = [ROOT / folder / "__init__.py" for folder in path.parents]
        before = {name for each in packages if each.is_file() for name in imports(each)}
        assert path.parts[0] == "appliance" or "appliance" in before, path


@pytest.mark.parametrize("module", ["appliance", "cloud_worker.__main__", "models", "benchmarks", "fixtures.render"])
def test_it_is_off_after_the_first_import_whatever_was_set_before(module: str) -> None:
    code = f"import {module}, os, sys; print(os.environ[{OFF!r}], sys.modules['openvino_telemetry'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, OFF: "0"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "None"]


def test_a_child_has_it_in_its_environment() -> None:
    assert child_environment()[OFF] == _environment()[OFF] == "1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def leave(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("11111111-2222")


def there(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def test_what_was_left_goes_with_the_folders_that_are_empty_then(home: Path) -> None:
    leave(home, *ONNX, *OPENVINO)
    remove_identifiers()
    assert there(home) == [".cache"]
    remove_identifiers()  # nothing is there


def test_what_else_is_there_stays(home: Path) -> None:
    others = (".cache/Microsoft/DeveloperTools/deviceid", "intel/openvino_telemetry", "intel/oneapi/settings")
    leave(home, *ONNX, *OPENVINO, *others)
    remove_identifiers()
    assert there(home) == sorted({str(parent) for each in others for parent in [Path(each), *Path(each).parents][:-1]})


def test_the_folder_for_caches_may_be_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    leave(home, "elsewhere/Microsoft/DeveloperTools/.onnxruntime/deviceid")
    remove_identifiers()
    assert there(home) == ["elsewhere"]


@pytest.mark.parametrize("linked", ["intel", "intel/openvino_ga_cid", ".cache/Microsoft"])
def test_no_link_is_followed(home: Path, tmp_path_factory: pytest.TempPathFactory, linked: str) -> None:
    others = tmp_path_factory.mktemp("others")
    leave(others, "openvino_ga_cid", "DeveloperTools/.onnxruntime/deviceid")
    target = others / "openvino_ga_cid" if linked.endswith("cid") else others
    before = there(others)
    (home / linked).parent.mkdir(parents=True, exist_ok=True)
    (home / linked).symlink_to(target)
    remove_identifiers()
    assert there(others) == before
    assert (home / linked).is_symlink()


def test_what_is_no_file_or_cannot_be_removed_stops_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "intel" / "openvino_ga_cid").mkdir(parents=True)
    leave(home, "intel/stats", ONNX[0])
    if os.geteuid() != 0:  # root is let in everywhere
        (home / "intel").chmod(0o500)
    remove_identifiers()
    (home / "intel").chmod(0o700)
    assert (home / "intel" / "openvino_ga_cid").is_dir()
    assert not (home / ONNX[0]).exists()
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    remove_identifiers()
