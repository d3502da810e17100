"""deploy/install.sh with the real package, as root in a mount namespace of its own: nothing of this machine is changed.

Only systemctl is a stand-in: it starts what the unit says, as the unit's user.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.store.database import STEPS
from tests.support.ports import quiet_port

ROOT = Path(__file__).parents[2]
BEFORE = "a6ec629"  # the last commit with the modules loose in appliance/
BEFORE_BUNDLES = "07874925"  # the last commit that knows no bundle: networks are files of models.toml
FOLDERS = ("/opt", "/etc", "/usr/local", "/var/lib", "/var/cache")

SYSTEMCTL = """\
#!/bin/sh
pid=$WORK/pid
as_vedette() {
  setpriv --reuid vedette --regid vedette --clear-groups -- env -i HOME=/var/lib/vedette PATH=/usr/bin:/bin \\
    "/opt/vedette/current/bin/$@"
}
case $1 in
  restart) sh "$0" stop; sh "$0" start ;;
  start)
    as_vedette vedette check --no-probe /etc/vedette/site.yaml >"$WORK/check.log" 2>&1 || exit 1
    as_vedette vedette run --config /etc/vedette/site.yaml >>"$WORK/run.log" 2>&1 </dev/null &
    echo $! >"$pid" ;;
  stop | disable)
    [ -e "$pid" ] || exit 0
    pkill -TERM -P "$(cat "$pid")"
    while kill -0 "$(cat "$pid")" 2>/dev/null; do sleep 0.2; done
    rm "$pid" ;;
  is-active) [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null ;;
  is-failed) ! { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; } ;;
esac
"""

BEGIN = """\
set -eu
for folder in $FOLDERS; do
  mkdir -p "$WORK/upper$folder" "$WORK/work$folder"
  layers="lowerdir=$folder,upperdir=$WORK/upper$folder,workdir=$WORK/work$folder"
  mount -t overlay overlay -o "$layers" "$folder" || exit 77
done
schema() {
  python3 -c 'import sqlite3; db = sqlite3.connect("/var/lib/vedette/vedette.db")
print(*db.execute("PRAGMA user_version").fetchone())'
}
users() { echo "users $(vedette users list --config /etc/vedette/site.yaml 2>&1 | grep -c anna)"; }
"""

FAILS = (
    BEGIN
    + """\
sh "$REPOSITORY/deploy/install.sh" install --systemctl systemctl --no-apt \\
  --extras "" --listen "127.0.0.1:$PORT" --from "$WORK/one/"*.whl
stat -c '%U %a %n' /etc/vedette/site.yaml /etc/vedette/environment /var/lib/vedette /opt/vedette
echo 'a good password' | setpriv --reuid vedette --regid vedette --clear-groups -- env HOME=/var/lib/vedette \\
  /opt/vedette/current/bin/vedette users add anna --role admin --config /etc/vedette/site.yaml
echo "before: schema $(schema), $(users)"
vedette-install upgrade --systemctl systemctl --no-apt --wait 15 --from "$WORK/two/"*.whl || echo "upgrade: $?"
echo "after: schema $(schema), $(users)"
vedette-install status
ls /var/lib/vedette
vedette-install uninstall --systemctl systemctl
ls /opt /var/lib/vedette
"""
)

THERE_AND_BACK = (
    BEGIN
    + """\
state() {
  echo "$(basename "$(readlink -f /opt/vedette/current)"), schema $(schema), $(users), $(python3 -c '
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1] + "/readyz").status)' "$PORT")"
}
sh "$REPOSITORY/deploy/install.sh" install --systemctl systemctl --no-apt \\
  --extras "" --listen "127.0.0.1:$PORT" --from "$WORK/one/"*.whl
echo 'a good password' | setpriv --reuid vedette --regid vedette --clear-groups -- env HOME=/var/lib/vedette \\
  /opt/vedette/current/bin/vedette users add anna --role admin --config /etc/vedette/site.yaml
echo "before: $(state)"
vedette-install upgrade --systemctl systemctl --no-apt --wait 60 --from "$WORK/two/"*.whl
echo "after: $(state)"
vedette-install rollback --systemctl systemctl --wait 60
echo "back: $(state)"
vedette-install uninstall --systemctl systemctl
"""
)


def build(source: Path, to: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(to), str(source)], check=True)


def newer(source: Path) -> None:
    """Version 9.9 with one step more in its schema, which never serves."""

    def change(name: str, before: str, after: str) -> None:
        path = source / name
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after, 1))

    change("pyproject.toml", 'version = "', 'version = "9.9+')
    steps = len(STEPS) + 1
    (source / "appliance" / "store" / f"schema_{steps}_newer.sql").write_text("CREATE TABLE newer (x);\n")
    change("appliance/dashboard/health_api.py", "found = health.not_ready()", 'raise RuntimeError("broken")')
    change("appliance/dashboard/health_api.py", "found = health.reasons()", 'raise RuntimeError("broken")')


def copy_of_this_tree(to: Path) -> None:
    for name in ("appliance", "cloud_worker", "deploy", "fixtures/clips", "models"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, to / name)


def tree_before(to: Path, commit: str = BEFORE, *folders: str) -> None:
    """The tree before the packages were made, or that of another commit, from the history; folders: only these."""
    archive = subprocess.run(["git", "archive", commit, *folders], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history does not hold {commit}: clone without --depth to upgrade from the version before")
    to.mkdir()
    subprocess.run(["tar", "-x", "-C", str(to)], input=archive.stdout, check=True)


def played(story: str, tmp_path: Path, repository: Path) -> str:
    """What the story prints. It is played in a mount namespace; skips where none can be had."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    tmp_path.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "WORK": str(tmp_path), "REPOSITORY": str(repository), "PORT": str(quiet_port()), "FOLDERS": " ".join(FOLDERS),
    }  # fmt: skip
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", story], cwd="/", env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("no overlay can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def network_of(tree: Path, folder: Path, script: str) -> list[str]:
    """What a tree's own code answers with this folder of networks."""
    environment = {**os.environ, "VEDETTE_MODELS": str(folder), "PYTHONPATH": str(tree)}
    begin = f"import appliance; assert appliance.__file__.startswith({str(tree)!r}), appliance.__file__\n"
    load = (
        "from appliance.config import DetectorConfig\n"
        "try:\n    from appliance.detect import detector_loader as detector\n"
        "except ImportError:  # a tree before 0.1.0\n    from appliance.detect import detector\n"
    )
    show = "print(detector.load(DetectorConfig(model='auto')).name, detector.load(DetectorConfig(model='yard')).name)"
    done = subprocess.run(
        [sys.executable, "-c", begin + load + script + show], cwd=tree, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_downgrade_finds_the_networks_that_it_left(tmp_path: Path) -> None:
    """The version before runs what it ran; after the upgrade what is installed is a bundle; the way back is free."""
    tree_before(tmp_path / "before", BEFORE_BUNDLES, "appliance", "models")
    folder = tmp_path / "networks"
    folder.mkdir()
    data = (ROOT / "models" / "vedette-nano.onnx").read_bytes()
    (folder / "yard.onnx").write_bytes(data)
    (folder / "models.toml").write_text(
        f'[yard]\nfile = "yard.onnx"\nsha256 = "{hashlib.sha256(data).hexdigest()}"\nlicence = "Apache-2.0"\n'
        'labels = ["person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog"]\ninput = [416, 416]\n'
    )
    before = network_of(tmp_path / "before", folder, "")
    upgrade = (
        "from appliance.detect.bundle_maker import adopt_network\n"
        "from appliance.detect.model_files import bundle_store\n"
        "ref = adopt_network('yard'); bundle_store().put_in_force(ref)\n"
    )
    after = network_of(ROOT, folder, upgrade)
    assert (after[1].partition("@")[0], len(list(folder.glob("bundles/yard/*/manifest.json")))) == ("yard", 1)
    assert after[0] == after[1], "what is in force is what `auto` stands for"
    assert network_of(tmp_path / "before", folder, "") == before
    assert len(before) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace and a user of its own need root")
def test_a_version_that_fails_gives_back_the_database_and_the_way_there(tmp_path: Path) -> None:
    build(ROOT, tmp_path / "one")
    copy_of_this_tree(tmp_path / "source")
    newer(tmp_path / "source")
    build(tmp_path / "source", tmp_path / "two")
    said = played(FAILS, tmp_path, ROOT)
    assert "vedette 640 /etc/vedette/site.yaml" in said
    assert "root 600 /etc/vedette/environment" in said
    assert "vedette 700 /var/lib/vedette" in said
    assert "root 755 /opt/vedette" in said
    (before,) = re.findall(r"before: (.*)", said)
    assert before.endswith("users 1")
    assert f"after: {before}" in said, "schema and users"
    assert "upgrade: 1" in said
    assert "the newer one is in /var/lib/vedette/after-upgrade-9.9+" in said
    assert "is in force again" in said
    assert said.rindex("vedette.db") > said.rindex("uninstalled")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace and a user of its own need root")
def test_the_version_before_is_upgraded_runs_and_is_rolled_back(tmp_path: Path) -> None:
    tree_before(tmp_path / "before")
    build(tmp_path / "before", tmp_path / "one")
    copy_of_this_tree(tmp_path / "source")
    project = tmp_path / "source" / "pyproject.toml"
    project.write_text(re.sub(r'^version = "(.*)"', r'version = "\1+next"', project.read_text(), flags=re.MULTILINE))
    build(tmp_path / "source", tmp_path / "two")
    said = played(THERE_AND_BACK, tmp_path, tmp_path / "before")
    (before,), (after,), (back,) = (
        re.findall(rf"^{name}: (.*)", said, re.MULTILINE) for name in ("before", "after", "back")
    )
    assert before.endswith(", users 1, 200")
    assert after == re.sub(r"schema \d+", f"schema {len(STEPS)}", before.replace(",", "+next,", 1))
    assert back == before
    assert "is in force" in said
