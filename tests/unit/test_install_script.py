"""deploy/install.sh, into a root of its own with a fake Python and a fake systemctl: what lies where, and the way back.

What it asks a version (`python -m appliance.upgrade`) has a test of its own; here a few lines of shell answer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "install.sh"

PYTHON = """\
#!/bin/sh
echo "python $*" >>"$FAKES/log"
case $* in
  *' wheel '*)
    for source; do :; done; [ -d "$source" ] || exit 1
    while [ "$1" != -w ]; do shift; done; touch "$2/vedette-1.0-py3-none-any.whl" ;;
  *'-m venv '*) for place; do :; done; mkdir -p "$place/bin"; ln -s "$FAKES/python3" "$place/bin/python" ;;
  *'appliance.upgrade files')
    brings=$FAKES/deploy-$(basename "$(dirname "$(dirname "$0")")")
    if [ -d "$brings" ]; then echo "$brings"; else echo "$REPOSITORY/deploy"; fi ;;
  *'appliance.upgrade state '*)
    inforce=$(readlink "$ROOT/opt/vedette/current")
    [ "$(basename "$(dirname "$(dirname "$0")")")" = "$inforce" ] || exit 1  # another cannot ask it
    answer=$(cat "$FAKES/answers/${inforce%~*}")
    [ "$answer" != off ] || exit 2
    case "$answer $*" in ready* | alive*'--until alive') ;; *) exit 1 ;; esac ;;
  *'appliance.upgrade keep '*)
    mkdir -p "$FAKES/kept"; cp "$FAKES/database" "$FAKES/kept/database"; echo "$FAKES/kept" ;;
  *'appliance.upgrade put-back '*)
    for kept; do :; done; cp "$kept/database" "$FAKES/database"; echo 'the newer one is kept' ;;
  '- '*) touch "$3/requirements.lock" "$3/requirements-openvino.lock" ;;
esac
"""
SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >>"$FAKES/log"
case $1 in
  start | restart) echo "$(readlink "$ROOT/opt/vedette/current")" >"$FAKES/running"; sh "$FAKES/at-start" ;;
  stop | disable) rm -f "$FAKES/running" ;;
  is-active) test -e "$FAKES/running" ;;
  is-failed) test -e "$FAKES/failed" ;;
esac
"""
SYSUSERS = 'mkdir -p "$ROOT/etc"; echo "vedette:x:$(id -u):$(id -g)::/:/bin/false" >"$ROOT/etc/passwd"\n'


class Machine:
    """A root with fakes beside it; `answers` is what a version says of itself."""

    def __init__(self, folder: Path) -> None:
        self.root, self.fakes = folder / "root", folder / "fakes"
        self.opt = self.root / "opt" / "vedette"
        (self.fakes / "answers").mkdir(parents=True)
        self.root.mkdir()
        texts = {"python3": PYTHON, "systemctl": SYSTEMCTL, "systemd-sysusers": f"#!/bin/sh\n{SYSUSERS}"}
        for name, text in texts.items():
            (self.fakes / name).write_text(text)
            (self.fakes / name).chmod(0o755)
        (self.fakes / "at-start").touch()
        (self.fakes / "database").write_text("of 1.0")
        self.environment = {
            "PATH": f"{self.fakes}:{os.defpath}:/usr/sbin", "FAKES": str(self.fakes), "ROOT": str(self.root),
            "REPOSITORY": str(ROOT),
        }  # fmt: skip

    def answer(self, **versions: str) -> None:
        for name, state in versions.items():
            (self.fakes / "answers" / name.replace("v", "").replace("_", ".")).write_text(state)

    def wheel(self, version: str) -> str:
        path = self.fakes / f"vedette-{version}-py3-none-any.whl"
        path.touch()
        return str(path)

    def do(self, verb: str, *words: str, version: str = "", stdin: str | None = None) -> tuple[int, str]:
        command = ["sh", *(["-s", "--"] if stdin is not None else [str(SCRIPT)]), verb, "--root", str(self.root)]
        command += ["--systemctl", "systemctl", "--wait", "0", *words]
        command += ["--from", self.wheel(version)] if version else []
        done = subprocess.run(
            command, env=self.environment, cwd=self.fakes, input=stdin or "", capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def link(self, name: str) -> str:
        return os.readlink(self.opt / name) if (self.opt / name).is_symlink() else ""

    def running(self) -> str:
        path = self.fakes / "running"
        return path.read_text().strip() if path.exists() else ""

    def log(self) -> str:
        return (self.fakes / "log").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.answer(v1_0="ready", v2_0="ready", v3_0="ready")
    return made


@pytest.fixture
def installed(machine: Machine) -> Machine:
    code, said = machine.do("install", "--extras", "openvino", version="1.0")
    assert (code, said.splitlines()[0]) == (0, f"vedette: Vedette 1.0 for cpu, in {machine.opt}/1.0"), said
    return machine


def test_an_installation_has_all_its_parts_and_doing_it_again_changes_no_file_of_the_site(installed: Machine) -> None:
    root = installed.root
    assert installed.link("current") == installed.running() == "1.0"
    assert (root / "etc/systemd/system/vedette.service").read_text() == (
        ROOT / "deploy/systemd/vedette.service"
    ).read_text()
    assert (root / "etc/systemd/system/vedette.service.d/50-accelerator.conf").is_file()
    assert (root / "etc/udev/rules.d/70-vedette.rules").is_file()
    assert os.readlink(root / "usr/local/bin/vedette") == "/opt/vedette/current/bin/vedette"
    site, environment = root / "etc/vedette/site.yaml", root / "etc/vedette/environment"
    assert "dir: /var/lib/vedette" in site.read_text()
    assert 'host: "0.0.0.0", port: 8080' in site.read_text()
    modes = [path.stat().st_mode & 0o777 for path in (site, environment, site.parent, root / "var/lib/vedette")]
    assert modes == [0o640, 0o600, 0o750, 0o700]
    log = installed.log()
    assert re.search(r"--require-hashes -r \S+/requirements.lock -r \S+/requirements-openvino.lock", log)
    calls = [line.removeprefix("systemctl ") for line in log.splitlines() if line.startswith("systemctl ")]
    assert calls[:3] == ["daemon-reload", "enable vedette", "restart vedette"], "systemd reads what is new before"
    site.write_text("mine")
    assert installed.do("install", version="1.0")[0] == 0
    assert site.read_text() == "mine"
    code, said = installed.do("install", version="2.0")
    assert (code, installed.link("current")) == (2, "1.0")
    assert "upgrade" in said


def environments(machine: Machine) -> list[str]:
    """The folders in which an environment was begun, in order."""
    return re.findall(rf"-m venv {machine.opt}/(\S+)$", machine.log(), re.MULTILINE)


def folders(machine: Machine) -> list[str]:
    return sorted(path.name for path in machine.opt.iterdir() if path.is_dir() and not path.is_symlink())


def test_other_extras_another_appliance_or_another_wheel_of_the_same_version_make_it_anew(installed: Machine) -> None:
    """Beside the one that runs, which is deleted once the other one runs."""
    for words, folder in ((["--extras", ""], "1.0~2"), (["--appliance", "intel"], "1.0")):
        assert installed.do("install", *words, version="1.0")[0] == 0
        assert (installed.link("current"), installed.running(), folders(installed)) == (folder, folder, [folder])
    assert installed.do("install", version="1.0")[0] == 0
    assert environments(installed) == ["1.0", "1.0~2", "1.0"], "the same once more builds nothing"
    Path(installed.wheel("1.0")).write_text("corrected")
    code, said = installed.do("install", version="1.0")
    assert (code, installed.running(), folders(installed)) == (0, "1.0~2", ["1.0~2"]), said
    assert "version 1.0, before it none" in installed.do("status")[1]
    assert "here already" in installed.do("upgrade", version="1.0")[1]
    assert "1.0 is installed" in installed.do("install", version="2.0")[1]
    assert installed.do("upgrade", version="2.0")[0] == 0
    assert "1.0 is in force again" in installed.do("rollback")[1]
    assert installed.running() == "1.0~2"


def test_an_environment_that_cannot_be_made_anew_leaves_the_one_that_runs(installed: Machine) -> None:
    python, chosen = installed.fakes / "python3", (installed.opt / "choices").read_text()
    python.write_text(PYTHON.replace("case $* in", "case $* in\n  *--require-hashes*) exit 1 ;;", 1))
    assert installed.do("install", "--extras", "", version="1.0")[0] != 0
    assert (installed.link("current"), installed.running()) == ("1.0", "1.0")
    assert (installed.opt / "1.0" / ".whole").exists()
    assert (installed.opt / "choices").read_text() == chosen
    python.write_text(PYTHON)
    assert installed.do("install", "--extras", "", version="1.0")[0] == 0
    assert folders(installed) == ["1.0~2"]


def test_a_corrected_wheel_of_a_version_that_failed_is_taken(installed: Machine) -> None:
    installed.answer(v2_0="silent")
    assert installed.do("upgrade", version="2.0")[0] == 1
    Path(installed.wheel("2.0")).write_text("corrected")
    installed.answer(v2_0="ready")
    assert installed.do("upgrade", version="2.0")[0] == 0
    assert (environments(installed), installed.running()) == (["1.0", "2.0", "2.0"], "2.0")


def test_the_site_file_of_an_installation_is_one_that_vedette_takes(installed: Machine) -> None:
    from appliance import config

    site = config.load(installed.root / "etc/vedette/site.yaml")
    assert (site.dashboard.port, str(site.storage.dir), dict(site.cameras)) == (8080, "/var/lib/vedette", {})


@pytest.mark.parametrize("name", ["42", "no"])
def test_a_host_whose_name_yaml_takes_for_something_else_gives_the_site_its_name(machine: Machine, name: str) -> None:
    from appliance import config

    (machine.fakes / "uname").write_text(f"#!/bin/sh\necho {name}\n")
    (machine.fakes / "uname").chmod(0o755)
    assert machine.do("install", version="1.0")[0] == 0
    assert config.load(machine.root / "etc/vedette/site.yaml").site.name == name


def test_root_and_python_may_have_spaces_in_their_paths(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a card")
    machine.answer(v1_0="ready")
    code, said = machine.do("install", "--python", str(machine.fakes / "python3"), version="1.0")
    assert (code, machine.link("current")) == (0, "1.0"), said


def test_an_upgrade_keeps_the_version_before_and_forgets_older_ones(installed: Machine) -> None:
    code, said = installed.do("upgrade", version="2.0")
    assert code == 0, said
    assert (installed.link("current"), installed.link("previous"), installed.running()) == ("2.0", "1.0", "2.0")
    log = installed.log()
    assert log.index("upgrade keep") < log.index("systemctl start")
    assert log.rindex("systemctl stop") < log.index("upgrade keep"), "nothing writes while it is copied"
    assert installed.do("upgrade", version="3.0")[0] == 0
    assert sorted(path.name for path in installed.opt.iterdir() if path.name[0].isdigit()) == ["2.0", "3.0"]
    assert "here already" in installed.do("upgrade", version="3.0")[1]


@pytest.mark.parametrize("state", ["silent", "alive"])
def test_a_version_that_does_not_become_ready_is_undone_with_its_data(installed: Machine, state: str) -> None:
    """Where the version before was ready: serving is not enough."""
    installed.answer(v2_0=state)
    (installed.fakes / "at-start").write_text(
        'case $(readlink "$ROOT/opt/vedette/current") in 2.0) echo migrated >"$FAKES/database" ;; esac\n'
    )
    code, said = installed.do("upgrade", version="2.0")
    assert (code, installed.link("current"), installed.link("previous")) == (1, "1.0", "")
    assert installed.running() == "1.0"
    assert (installed.fakes / "database").read_text() == "of 1.0"
    assert "2.0 did not become ready" in said
    assert "1.0 is in force again" in said
    assert "the newer one is kept" in said
    assert not (installed.opt / "changing").exists()
    assert (installed.fakes / "upgrade-failed").read_text() == "2.0\n", "the appliance says so on its pages"
    installed.answer(v2_0="ready")
    assert installed.do("upgrade", version="2.0")[0] == 0, "mended, it is taken"
    assert not (installed.fakes / "upgrade-failed").exists()


def test_a_camera_that_is_switched_off_does_not_make_a_version_ready_that_is_not(installed: Machine) -> None:
    site = installed.root / "etc" / "vedette" / "site.yaml"
    site.write_text("cameras: {gate: {url: rtsp://192.168.1.20/main, enabled: false}}\n")
    installed.answer(v2_0="silent")
    assert installed.do("upgrade", version="2.0")[0] == 1
    assert (installed.link("current"), installed.running()) == ("1.0", "1.0")


def test_where_the_dashboard_is_off_it_is_enough_that_a_version_runs(installed: Machine) -> None:
    site = installed.root / "etc" / "vedette" / "site.yaml"
    site.write_text("dashboard: {enabled: false}\ncameras: {}\n")
    installed.answer(v1_0="off", v2_0="off")
    assert installed.do("upgrade", version="2.0")[0] == 0
    assert (installed.link("current"), installed.running()) == ("2.0", "2.0")


def test_a_service_that_gave_up_is_not_waited_for(installed: Machine) -> None:
    installed.answer(v2_0="silent")
    (installed.fakes / "at-start").write_text(
        'rm -f "$FAKES/failed"; case $(readlink "$ROOT/opt/vedette/current") in 2.0) touch "$FAKES/failed" ;; esac\n'
    )
    code, said = installed.do("upgrade", "--wait", "3000", version="2.0")
    assert (code, installed.running()) == (1, "1.0"), said
    assert installed.log().count("--until ready") == 1, "asked once, not for an hour"


def test_the_status_says_by_its_exit_code_whether_it_is_ready(installed: Machine) -> None:
    code, said = installed.do("status")
    assert (code, "version 1.0, before it none" in said) == (0, True)
    installed.answer(v1_0="silent")
    assert installed.do("status")[0] == 1
    (installed.fakes / "running").unlink()
    code, said = installed.do("status")
    assert (code, "vedette does not run" in said) == (1, True)


def test_a_folder_of_the_source_is_made_a_wheel_of(machine: Machine) -> None:
    code, said = machine.do("install", "--from", str(machine.fakes))
    assert (code, machine.link("current")) == (0, "1.0"), said
    assert "wheel -q --no-deps -w" in machine.log()


def test_packages_of_the_distribution_are_asked_for_and_those_that_it_has_not_are_said(machine: Machine) -> None:
    """Without --root they would be installed, so this only tells what would be done."""
    packages = {
        "dpkg-query": "case $* in *python3-venv*) echo 'install ok installed' ;; *) exit 1 ;; esac",
        "apt-cache": "case $* in *intel-media-va-driver* | *ffmpeg*) ;; *) exit 100 ;; esac", "apt-get": "exit 9",
    }  # fmt: skip
    for name, text in packages.items():
        (machine.fakes / name).write_text(f"#!/bin/sh\n{text}\n")
        (machine.fakes / name).chmod(0o755)
    command = ["sh", str(SCRIPT), "install", "--dry-run", "--appliance", "intel", "--from", machine.wheel("1.0")]
    for words, asked in (([], True), (["--no-apt"], False)):
        done = subprocess.run(
            [*command, *words], env=machine.environment, cwd=machine.fakes, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if "apt-get install" in line]
        assert [line.split("--no-install-recommends ")[1].split() for line in lines] == (
            [["intel-media-va-driver", "ffmpeg"]] if asked else []
        )
        assert ("this distribution has no intel-opencl-icd" in done.stdout) == asked
        assert done.stdout.count("apt-get update") == asked, "a fresh image has no list of packages"


def test_where_a_camera_was_lost_before_serving_is_enough(installed: Machine) -> None:
    installed.answer(v1_0="alive", v2_0="alive")
    code, said = installed.do("upgrade", version="2.0")
    assert (code, installed.link("current")) == (0, "2.0"), said
    assert "1.0 is not ready now" in said


def test_a_stopped_appliance_is_upgraded_and_stays_stopped(installed: Machine) -> None:
    (installed.fakes / "running").unlink()
    assert installed.do("upgrade", version="2.0")[0] == 0
    assert (installed.link("current"), installed.running()) == ("2.0", "")


def test_a_power_cut_in_an_upgrade_is_seen_and_undone(installed: Machine) -> None:
    (installed.fakes / "at-start").write_text('echo migrated >"$FAKES/database"; kill -9 $(ps -o ppid= $PPID)\n')
    assert installed.do("upgrade", version="2.0")[0] == -9
    (installed.fakes / "at-start").write_text("")
    code, said = installed.do("upgrade", version="3.0")
    assert (code, "cut off (1.0 to 2.0)" in said) == (2, True)
    assert "cut off" in installed.do("status")[1]
    assert installed.do("rollback")[0] == 0
    assert (installed.link("current"), installed.running()) == ("1.0", "1.0")
    assert (installed.fakes / "database").read_text() == "of 1.0"


@pytest.mark.parametrize("cut", ["before the copy", "at the copy", "after the copy"])
def test_an_upgrade_that_ends_before_the_versions_change_starts_the_one_that_is_there(
    installed: Machine, cut: str
) -> None:
    """Not the one before that, though there is one."""
    assert installed.do("upgrade", version="2.0")[0] == 0
    (installed.fakes / "database").write_text("of 2.0")
    python = installed.fakes / "python3"
    if cut == "before the copy":
        systemctl = installed.fakes / "systemctl"
        systemctl.write_text(
            SYSTEMCTL.replace("stop | disable)", 'stop) rm -f "$FAKES/running"; kill -9 $PPID ;; disable)')
        )
        assert installed.do("upgrade", version="3.0")[0] == -9
        systemctl.write_text(SYSTEMCTL)
        assert installed.do("rollback")[0] == 0
    elif cut == "at the copy":
        python.write_text(PYTHON.replace('mkdir -p "$FAKES/kept";', "exit 2;"))
        assert installed.do("upgrade", version="3.0")[0] == 2
    else:
        python.write_text(
            PYTHON.replace('echo "$REPOSITORY/deploy"', 'test -e $FAKES/running && echo "$REPOSITORY/deploy"')
        )
        assert installed.do("upgrade", version="3.0")[0] == 1
        python.write_text(PYTHON)
        assert installed.do("rollback")[0] == 0
    assert (installed.link("current"), installed.running()) == ("2.0", "2.0")
    assert (installed.fakes / "database").read_text() == "of 2.0"
    assert not (installed.opt / "changing").exists()


def test_who_breaks_an_upgrade_off_has_the_version_before_at_work(installed: Machine) -> None:
    (installed.fakes / "at-start").write_text(
        'case $(readlink "$ROOT/opt/vedette/current") in 2.0) kill -TERM $(ps -o ppid= $PPID) ;; esac\n'
    )
    code, said = installed.do("upgrade", version="2.0")
    assert (code, installed.link("current"), installed.running()) == (130, "1.0", "1.0"), said


def system_files(machine: Machine) -> dict[str, str]:
    """What a version brings to the system: units, device rules, its own way back, and to where commands lead."""
    root = machine.root
    places = (
        "etc/systemd/system/vedette.service", "etc/systemd/system/vedette.service.d/50-accelerator.conf",
        "etc/sysusers.d/vedette.conf", "etc/udev/rules.d/70-vedette.rules", "usr/local/sbin/vedette-install",
    )  # fmt: skip
    return {
        **{each: (root / each).read_text() for each in places},
        **{each.name: os.readlink(each) for each in sorted((root / "usr/local/bin").iterdir())},
    }


@pytest.mark.parametrize("how", ["by a person", "by itself", "after a power cut"])
def test_after_going_back_the_system_has_the_older_versions_files_again(installed: Machine, how: str) -> None:
    older = system_files(installed)
    brings = installed.fakes / "deploy-2.0"
    for folder in ("systemd", "udev"):
        shutil.copytree(ROOT / "deploy" / folder, brings / folder)
    shutil.copy(SCRIPT, brings / "install.sh")
    for path in brings.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text() + "# of 2.0\n")
    if how == "by itself":
        installed.answer(v2_0="silent")
        assert installed.do("upgrade", version="2.0")[0] == 1
    else:
        if how == "after a power cut":
            (installed.fakes / "at-start").write_text("kill -9 $(ps -o ppid= $PPID)\n")
        assert installed.do("upgrade", version="2.0")[0] == (0 if how == "by a person" else -9)
        newer = system_files(installed)
        assert [each for each in older if newer[each] == older[each]] == ["vedette", "vedette-worker"]
        (installed.fakes / "at-start").write_text("")
        assert installed.do("rollback")[0] == 0
    assert system_files(installed) == older
    assert installed.running() == "1.0"


def test_a_person_may_go_back_once(installed: Machine) -> None:
    assert installed.do("rollback")[0] == 2
    assert installed.do("upgrade", version="2.0")[0] == 0
    assert installed.do("rollback")[0] == 0
    assert (installed.link("current"), installed.running()) == ("1.0", "1.0")
    assert installed.do("rollback")[0] == 2


def test_uninstalling_leaves_site_and_data_until_they_are_purged(installed: Machine) -> None:
    (installed.root / "var/lib/vedette/vedette.db").touch()
    assert installed.do("uninstall")[0] == 0
    left = {path.relative_to(installed.root).as_posix() for path in installed.root.rglob("*") if path.is_file()}
    assert left == {"etc/passwd", "etc/vedette/environment", "etc/vedette/site.yaml", "var/lib/vedette/vedette.db"}
    assert installed.running() == ""
    assert installed.do("uninstall", "--purge")[0] == 0
    assert not (installed.root / "var/lib/vedette").exists()


NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
KINDS = {
    "pi": ({"proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0", "dev/hailo0": ""}, [""]),
    "jetson": (
        {
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano\0",
            "etc/nv_tegra_release": "# R36 (release), REVISION: 4.0",
        },
        ["--system-site-packages", "[mqtt,notify]", "[jetson-cu12]"],
    ),
    "nvidia": (
        {"proc/driver/nvidia/version": f"{NVRM}  580.95.05  Release Build"},
        ["[gpu,nvml]", "onnxruntime-gpu[cuda,cudnn]", "[tensorrt]"],
    ),
    "nvidia 535": ({"proc/driver/nvidia/version": f"{NVRM}  535.183.01  Sun May 12"}, ["[nvml]", "[tensorrt-cu12]"]),
    "intel": ({"sys/class/drm/renderD128/device/vendor": "0x8086\n"}, ["[openvino]"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_out_what_appliance_it_is_on(machine: Machine, kind: str) -> None:
    (files, brings), name = KINDS[kind], kind.partition(" ")[0]
    for path, text in files.items():
        (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path).write_text(text)
    code, said = machine.do("install", "--dry-run", version="1.0")
    assert code == 0, said
    assert f"accelerator.d/{name}.conf" in said
    assert all(each in said for each in brings), said
    assert ("onnxruntime-gpu" in said) == (kind == "nvidia"), "whose wheel is for CUDA 13"
    assert not machine.opt.exists(), "nothing was done"


def test_the_extras_for_nvidia_are_of_what_works_together() -> None:
    """ONNX Runtime's provider loads libnvinfer.so.10, and TensorRT 11 builds in float16 only what is exported so."""
    extras = tomllib.loads((SCRIPT.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in ("tensorrt", "tensorrt-cu12"):
        assert SpecifierSet(">=10.16,<11") == Requirement(extras[name][0]).specifier
    for name in ("tensorrt", "tensorrt-cu12", "jetson", "jetson-cu12"):
        (bindings,) = (Requirement(each) for each in extras[name] if each.startswith("cuda-bindings"))
        assert str(bindings.specifier) == ("<13,>=12" if name.endswith("cu12") else "<14,>=13")
    image = (SCRIPT.parent / "docker" / "nvidia.Dockerfile").read_text()
    version = image.partition("ARG TENSORRT=")[2].split()[0]
    assert version in Requirement(extras["tensorrt"][0]).specifier


def test_a_worker_is_not_asked_for_the_first_user_of_a_dashboard(machine: Machine) -> None:
    (machine.root / "etc" / "vedette").mkdir(parents=True)
    (machine.root / "etc" / "vedette" / "worker.yaml").touch()
    code, said = machine.do("install", "--worker", version="1.0")
    assert (code, said.splitlines()[-1]) == (0, "vedette: it runs; what it does: journalctl -u vedette-worker")


def test_what_was_chosen_holds_for_later_versions(machine: Machine) -> None:
    """By the option's older name, which scripts of those who have installed may use."""
    assert machine.do("install", "--box", "jetson", "--extras", "mqtt", version="1.0")[0] == 0
    code, said = machine.do("upgrade", "--dry-run", version="2.0")
    assert code == 0
    assert "accelerator.d/jetson.conf" in said
    assert "[mqtt,notify]" in said


def test_another_file_than_the_one_named_and_wrong_words_are_refused(machine: Machine) -> None:
    for words in (
        ["--sha256", "0" * 64],
        ["--appliance", "abacus"],
        ["--wait", "soon"],
        ["--listen", "here"],
        ["--listen", "8080"],
        ["--frm", "x"],
    ):
        code, said = machine.do("install", *words, version="1.0")
        assert code == 2, words
        assert words[0] in said or "SHA-256" in said
    assert machine.do("install", "--from", str(machine.fakes / "log"))[0] != 0
    assert machine.link("current") == ""


# Nothing of this machine can be changed: what the script writes to are empty folders of the namespace.
BARE = """\
for folder in /run /opt /etc /var /usr/local; do mount -t tmpfs none $folder || exit 77; done
sh -s -- "$@"; code=$?
find /opt /etc /var /usr/local -mindepth 1
exit $code
"""


@pytest.mark.parametrize("verb", ["install", "upgrade", "rollback", "uninstall"])
def test_where_systemd_does_not_run_it_is_refused_before_anything_is_done(machine: Machine, verb: str) -> None:
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    command = ["unshare", *as_root, "--mount", "sh", "-c", BARE, "sh", verb, "--from", machine.wheel("1.0")]
    done = subprocess.run(
        command,
        env=machine.environment,
        input=SCRIPT.read_text(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace here")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "--no-start" in done.stderr
    assert not (machine.fakes / "log").exists(), "nothing was called"


def test_it_may_come_through_a_pipe_and_half_of_it_does_nothing(machine: Machine) -> None:
    text = SCRIPT.read_text()
    machine.do("install", version="1.0", stdin=text[: len(text) * 3 // 4])
    machine.do("install", version="1.0", stdin=text.rpartition('main "$@"')[0])
    assert not machine.opt.exists()
    assert machine.do("install", version="1.0", stdin=text)[0] == 0
    assert machine.link("current") == "1.0"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    scripts = [str(path) for path in sorted(ROOT.glob("*/*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
