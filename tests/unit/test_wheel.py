"""A wheel holds all that Vedette needs where there is no repository, and works there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_wheel_gets_every_file_that_the_program_opens() -> None:
    builders = pytest.importorskip(
        "hatchling.builders.wheel", reason="hatchling builds the wheel: pip install '.[dev]'"
    )
    files = {each.distribution_path for each in builders.WheelBuilder(str(ROOT)).recurse_included_files()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("appliance", "cloud_worker")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= files, "code, templates, static files, translations, schema and log schema"
    models = {"models.toml", "vedette-nano.onnx", "vedette-nano-int8.onnx"}
    assert {f"appliance/detect/models/{name}" for name in models} <= files
    assert {f"appliance/demo/clips/{name}.mp4" for name in ("yard", "gate")} <= files
    deploy = {path.removeprefix("appliance/deploy/") for path in files if path.startswith("appliance/deploy/")}
    assert deploy >= {
        "install.sh", "requirements.lock", "vedette.example.yaml", "vedette-worker.example.yaml",
        "systemd/vedette.service", "systemd/vedette-worker.service", "systemd/accelerator.d/nvidia.conf",
        "udev/70-vedette.rules",
    }  # fmt: skip
    assert not any(re.match(r"(tests|benchmarks|fixtures|docs|models)/|.*\.pyc$", path) for path in files)
    assert sum((ROOT / path).stat().st_size for path in files & wanted) < 10_000_000


@pytest.mark.slow
def test_an_installed_wheel_runs_its_demo_outside_the_repository(tmp_path: Path) -> None:
    """As pipx installs it: an environment of its own, the extra `demo` for the broker, nothing else on the way."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("vedette-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    commands = tmp_path / "venv" / "bin"
    install = [str(commands / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[demo]"]
    subprocess.run(install, check=True, cwd=tmp_path)
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def vedette(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(commands / "vedette"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False, timeout=120
        )

    assert vedette("--help").returncode == 0
    (tmp_path / "site.yaml").write_text("site: {name: depot}\nstorage: {dir: data}\ncameras: {}\n")
    assert vedette("check", "--no-probe", "site.yaml").returncode == 0
    assert "vedette-nano" in vedette("models", "list").stdout
    demo = vedette("demo", "--data", "demo", "--port", "0", "--no-browser", "--json", "--seconds", "60")
    assert demo.returncode == 0, demo.stderr
    assert {"alert", "verdict"} <= {json.loads(line)["event"] for line in demo.stdout.splitlines()}
