"""Writes the lock files of what runs and of development, from the installed environment: `make lock`.

The versions are those that are installed here, by which the tests passed; the hashes are of the wheels for x86-64 and
arm64 (glibc) that pip would take, of each Python named below, or of the source where a package has no wheel. The lock
of development also serves Python 3.10, for which uv finds the newest versions that go with it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXTRAS = ("cloud", "s3", "notify", "mqtt")
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "x86_64": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64"),
    "aarch64": ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"),
}
HEAD = """\
# What runs, with hashes: `pip install --require-hashes -r deploy/requirements.lock`, then `pip install --no-deps .`
# Python 3.11 to 3.13, Linux with glibc, x86-64 and arm64; the extras cloud, s3, notify and mqtt are in it. Made by
# deploy/lock.py (`make lock`) from an environment that passed the tests; tests/unit/test_supply.py checks it.
"""
HEAD_OF_EXTRA = """\
# What the extra {} adds to requirements.lock, with hashes: `pip install --require-hashes -r` both. From deploy/lock.py.
"""
HEAD_OF_DEVELOPMENT = """\
# What is developed and tested with (the extra dev), with hashes: `make setup` installs it. Python 3.10 to 3.13, Linux
# with glibc; from 3.11 on the versions that run are those of requirements.lock. Made by deploy/lock.py (`make lock`).
"""


def runtime_packages(extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """Canonical name and installed version of everything that Vedette needs when it runs, itself left out."""
    found: dict[str, str] = {}
    # Our own needs as pyproject.toml has them: what pip noted when it installed us may be older.
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    ours = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    waiting: list[tuple[str, tuple[str, ...]]] = [("", ())]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if name:
            found[canonicalize_name(name)] = importlib.metadata.version(name)
        for text in importlib.metadata.requires(name) or () if name else ours:
            needed = Requirement(text)
            for extra in ("", *wanted):
                key = (canonicalize_name(needed.name), ",".join(sorted(needed.extras)))
                if (needed.marker is None or needed.marker.evaluate({"extra": extra})) and key not in seen:
                    seen.add(key)
                    waiting.append((needed.name, tuple(needed.extras)))
    return dict(sorted(found.items()))


def wheel_hashes(packages: dict[str, str]) -> dict[str, set[str]]:
    """sha256 of the files that pip takes for each package."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for python in PYTHONS:
        for tags in PLATFORMS.values():
            for name, digest in _report(packages, python, tags).items():
                hashes[name].add(digest)
    for name in packages.keys() - hashes.keys():
        hashes[name] |= set(_report({name: packages[name]}, "", ()).values())
    return hashes


def _report(packages: dict[str, str], python: str, tags: tuple[str, ...]) -> dict[str, str]:
    """pip's choice of a file for each package; those without a wheel are left out. python "": of this machine."""
    wanted = [f"{name}=={version}" for name, version in packages.items()]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
               "--no-build-isolation", "--report", "-"]  # fmt: skip
    if python:
        command += ["--only-binary", ":all:", "--python-version", python, "--target", "unused"]
        command += [word for tag in tags for word in ("--platform", tag)]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        absent = re.search(r"No matching distribution found for ([^=\s]+)==", done.stderr)
        name = canonicalize_name(absent.group(1)) if absent else ""
        if name not in packages:
            raise RuntimeError(done.stderr[-2000:])
        return _report({each: packages[each] for each in packages if each != name}, python, tags)
    found = {}
    for each in json.loads(done.stdout)["install"]:
        found[canonicalize_name(each["metadata"]["name"])] = each["download_info"]["archive_info"]["hashes"]["sha256"]
    return found


def development_lock() -> str:
    """Every file's hash of what the extra dev needs: from Python 3.11 on the versions that are installed here."""
    root = Path(__file__).parents[1]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as installed:
        for each in importlib.metadata.distributions():
            print(f"{each.name}=={each.version}; python_version >= '3.11'", file=installed)
        installed.flush()
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", "dev", "--quiet",
                   "--universal", "--python-version", "3.10", "--constraint", installed.name, "--generate-hashes",
                   "--no-header", "--no-annotate"]  # fmt: skip
        return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(extras: tuple[str, ...]) -> None:
    if extras == ("dev",):
        print(HEAD_OF_DEVELOPMENT, development_lock(), sep="", end="")
        return
    packages = runtime_packages((*EXTRAS, *extras))
    if extras:
        packages = {name: packages[name] for name in packages.keys() - runtime_packages().keys()}
    hashes = wheel_hashes(packages)
    print(HEAD_OF_EXTRA.format(", ".join(extras)) if extras else HEAD, end="")
    for name, version in sorted(packages.items()):
        print(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes[name]))]))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
