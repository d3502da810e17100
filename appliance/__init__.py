"""The appliance, and its version. Importing it switches off what libraries would tell their makers: docs/privacy.md.

Each process of ours imports this package before it imports any library, whichever command it is of, so this is the one
place for it. It imports nothing of ours: the cloud worker, which needs a few plain modules, never loads PyAV.
"""

import functools
import os
import sys
import types

# ONNX Runtime reads it when it is loaded; disable_telemetry_events() comes after its first event and its device id.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO tells of every import through this package. Where that cannot be imported it takes a stub, which is silent.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
# pydantic searches every installed package for plug-ins, and loads what reads their metadata for that: 2 MB of ingest.
# We have none, and what else is installed has no say in how settings and messages are validated.
_no_plugins = types.ModuleType("pydantic.plugin._loader")
_no_plugins.get_plugins = tuple  # type: ignore[attr-defined]
sys.modules.setdefault(_no_plugins.__name__, _no_plugins)


@functools.cache
def version() -> str:
    """Return the version of the installed package, such as `0.4.0`; "" if it is not installed."""
    from importlib import metadata  # with e-mail and zip files: ingest does not load it

    try:
        return metadata.version("vedette")
    except metadata.PackageNotFoundError:
        return ""


def program_version(program: str) -> str:
    """Return what `--version` of a program prints."""
    return f"{program} {version() or 'unknown (not installed)'}"
