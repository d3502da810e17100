"""What comes with Vedette is pinned, listed and spoken of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "deploy" / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", LOCK, re.MULTILINE))
BINARY = ("numpy", "opencv-python-headless", "av", "onnxruntime", "pydantic-core", "markupsafe", "pyyaml")


def wanted() -> list[Requirement]:
    """What pyproject.toml asks for at run time, for the Pythons of the lock file."""
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["cloud"], *extras["s3"], *extras["notify"], *extras["mqtt"]]
    return [
        each for each in map(Requirement, texts) if not each.marker or each.marker.evaluate({"python_version": "3.12"})
    ]


@pytest.mark.parametrize("needed", wanted(), ids=str)
def test_the_lock_file_holds_what_pyproject_asks_for(needed: Requirement) -> None:
    assert needed.specifier.contains(PINNED[canonicalize_name(needed.name)])


def test_each_package_of_the_lock_file_has_hashes_and_comes_from_nowhere_in_particular() -> None:
    blocks = re.split(r"\n(?=[a-z])", LOCK.partition("\n\n")[2] or LOCK)
    named = [block for block in blocks if "==" in block]
    assert len(PINNED) == len(named) > 40
    assert all("--hash=sha256:" in block for block in named)
    assert "://" not in LOCK
    assert not re.search(r"^-", LOCK, re.MULTILINE), "no option: which registry is its user's business"
    assert not re.search(r"^(ultralytics|torch|pytest|moto)==", LOCK, re.MULTILINE)


def test_openvino_is_locked_beside_the_rest_and_repeats_none_of_it() -> None:
    text = (ROOT / "deploy" / "requirements-openvino.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", text, re.MULTILINE))
    (needed,) = map(Requirement, PROJECT["optional-dependencies"]["openvino"])
    assert needed.specifier.contains(pinned["openvino"])
    assert not pinned.keys() & PINNED.keys()
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "://" not in text


DEVELOPMENT = (ROOT / "deploy" / "requirements-dev.lock").read_text()


def development_pins(python: str) -> dict[str, str]:
    """What `make setup` installs with this Python, here on Linux."""
    lines = re.findall(r"^([a-z0-9-]+==\S+(?: ; [^\\\n]+)?) \\$", DEVELOPMENT, re.MULTILINE)
    found = [Requirement(line.replace(" ; ", ";")) for line in lines]
    environment = {"python_full_version": f"{python}.9", "python_version": python}
    return {
        each.name: str(each.specifier)[2:] for each in found if not each.marker or each.marker.evaluate(environment)
    }


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_lock_of_development_holds_what_pyproject_asks_for(python: str) -> None:
    pinned, extras = development_pins(python), PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["dev"]]
    for text in texts:
        needed = Requirement(text)
        texts += [each for extra in needed.extras if needed.name == "vedette" for each in extras[extra]]
        if needed.name != "vedette" and (not needed.marker or needed.marker.evaluate({"python_version": python})):
            assert needed.specifier.contains(pinned[canonicalize_name(needed.name)]), text
    if python != "3.10":
        assert PINNED.items() <= pinned.items(), "what is tested is what is shipped: make lock"
    assert not {"torch", "ultralytics", "vedette"} & pinned.keys()


def test_each_package_of_development_has_hashes_and_wheels_for_both_machines() -> None:
    blocks = re.findall(
        r"^([a-z0-9-]+)==[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", DEVELOPMENT, re.MULTILINE
    )
    assert len(blocks) == len(re.findall(r"^[a-z0-9-]+==", DEVELOPMENT, re.MULTILINE)) > 130
    assert all(len(set(hashes.split())) > 2 for name, hashes in blocks if name in BINARY)
    assert "://" not in DEVELOPMENT
    assert not re.search(r"^-", DEVELOPMENT, re.MULTILINE), "no option: which registry is its user's business"


def test_setup_installs_what_is_locked_and_lets_pip_choose_nothing() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^\$\(VENV\)/\.ready:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    for line in recipe.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line
    done = subprocess.run(
        ["sh", "-c", "sed -n '/^setuptools==/,/[^\\]$/p' deploy/requirements-dev.lock"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "sed -n '/^setuptools==/,/[^\\]$$/p'" in recipe
    assert re.fullmatch(r"setuptools==[^\n]+\n(    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", done.stdout)


def test_what_checks_the_scripts_of_pages_is_locked_with_hashes_and_no_registry() -> None:
    folder = ROOT / "tests" / "js"
    lock = json.loads((folder / "package-lock.json").read_text())
    root, *packages = lock["packages"].values()
    wanted = json.loads((folder / "package.json").read_text())["devDependencies"]
    assert root["devDependencies"] == wanted
    assert all(re.fullmatch(r"[0-9.]+", version) for version in wanted.values()), "exact versions"
    assert all(each["integrity"].startswith("sha512-") and "resolved" not in each for each in packages)
    optional = {name for each in packages for name in each.get("optionalDependencies", {})}
    assert {f"node_modules/{name}" for name in (*optional, *wanted)} == {*lock["packages"]} - {""}, "of every platform"
    assert "omit-lockfile-registry-resolved=true" in (folder / ".npmrc").read_text()
    assert not re.search(
        r"npmjs|\bregistry=", (folder / "package-lock.json").read_text() + (folder / ".npmrc").read_text()
    )


@pytest.mark.parametrize("name", BINARY)
def test_a_package_with_machine_code_has_a_wheel_for_both_machines(name: str) -> None:
    """One of each Python and machine; those that serve several Pythons have fewer."""
    (block,) = re.findall(rf"^{name}==[^\n]*\\\n((?:    --hash=\S+(?: \\)?\n)+)", LOCK, re.MULTILINE)
    assert len(set(re.findall(r"sha256:([0-9a-f]{64})", block))) >= 2


def test_the_bill_of_materials_names_packages_and_the_libraries_inside_their_wheels() -> None:
    done = subprocess.run(
        [sys.executable, "sbom.py", "requirements.lock"],
        cwd=ROOT / "deploy",
        capture_output=True,
        text=True,
        check=True,
    )
    bill: dict[str, Any] = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    components = {each["name"]: each for each in bill["components"]}
    assert {canonicalize_name(each.name) for each in wanted()} <= set(components)
    assert all(each["licenses"][0]["license"]["name"] for each in components.values())
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9-]+@\S+", each["purl"]) for each in components.values())
    libraries = {each["name"] for each in components["av"].get("components", ())}
    if libraries:  # a wheel; PyAV built from source carries none
        assert {"libavcodec", "libavformat"} <= libraries
    refs = {each["bom-ref"] for each in bill["components"]}
    assert all(ref in refs for each in bill["dependencies"] for ref in each["dependsOn"])
    numbers = re.findall(r"[0-9a-f]{64}", json.dumps(components["av"]))
    assert numbers or components["av"]["version"] != PINNED["av"], "of the lock file"


def test_the_papers_speak_of_what_a_shipper_must_know() -> None:
    notice = (ROOT / "NOTICE").read_text()
    assert all(word in notice for word in ("libx264", "libx265", "GPL", "no legal advice"))
    papers = (ROOT / "SECURITY.md").read_text()
    for path in re.findall(r"`((?:tests|deploy|docs)/[\w/.-]+)`|\]\(([\w/.-]+)\)", papers):
        assert (ROOT / "".join(path)).exists(), path
    promised = papers.split("## What is promised")[1].split("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in promised.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 15
    for cells in rows:
        assert "`tests/" in cells[-1], f"no test holds what is promised from {cells[0].strip()}"
