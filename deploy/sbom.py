"""Writes a software bill of materials (CycloneDX 1.5, JSON) of what runs: `python deploy/sbom.py > vedette.cdx.json`.

Made from the installed environment, without asking anybody: packages with version, licence and dependencies, and the
native libraries that their wheels carry, which no package metadata names.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from lock import runtime_packages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LIBRARY = re.compile(r"^(lib[A-Za-z0-9_+-]+?)(-[0-9a-f]{8})?\.so(?:\.(.+))?$")
_HASHES = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """As its metadata say: an SPDX expression, a text, or the classifiers."""
    metadata = distribution.metadata
    classifiers = [
        each.rsplit("::", 1)[-1].strip()
        for each in metadata.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    text = metadata.get("License-Expression") or metadata.get("License") or " OR ".join(classifiers) or "unknown"
    return text.splitlines()[0][:200]


def libraries_of(distribution: importlib.metadata.Distribution) -> list[tuple[str, str]]:
    """(name, version) of the shared libraries in the wheel's own `.libs` folder."""
    found = set()
    for path in distribution.files or ():
        match = _LIBRARY.match(PurePosixPath(str(path)).name)
        if match and ".libs/" in str(path):
            found.add((match.group(1), match.group(3) or ""))
    return sorted(found)


def component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    distribution = importlib.metadata.distribution(name)
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"name": licence_of(distribution)}}],
        "properties": [{"name": "vedette:wheel-sha256", "value": each} for each in hashes],
    }
    native = [
        {"type": "library", "name": library, "version": number, "bom-ref": f"{name}/{library}@{number}"}
        for library, number in libraries_of(distribution)
    ]
    return {**made, "components": native} if native else made


def dependencies(packages: dict[str, str]) -> list[dict[str, Any]]:
    found = []
    for name, version in packages.items():
        wanted = {canonicalize_name(Requirement(each).name) for each in importlib.metadata.requires(name) or ()}
        refs = [f"pkg:pypi/{each}@{packages[each]}" for each in sorted(wanted & packages.keys())]
        found.append({"ref": f"pkg:pypi/{name}@{version}", "dependsOn": refs})
    return found


def bill(lock: str) -> dict[str, Any]:
    """lock: the text of deploy/requirements.lock, for the hashes; "" for none."""
    packages = runtime_packages()
    blocks = {block.split("==")[0]: _HASHES.findall(block) for block in re.split(r"\n(?=[a-z])", lock) if "==" in block}
    version = importlib.metadata.version("vedette")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application", "name": "vedette", "version": version, "bom-ref": f"pkg:pypi/vedette@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [component(name, number, blocks.get(name, [])) for name, number in packages.items()],
        "dependencies": dependencies(packages),
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    """arguments: the lock file, if any."""
    text = ""
    if arguments:
        with open(arguments[0]) as file:
            text = file.read()
    json.dump(bill(text), sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
