"""What core and ingest load at their start is bounded: each megabyte is held for years. `python -m benchmarks.memory`
measures what it comes to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Each in a process of its own, as they run. Not of ours alone: a new version of a library may bring more with it.
MODULES_MAX = {"appliance.app": 920, "appliance.ingest.__main__": 620}
ONLY_WHERE_ASKED = {
    "apprise", "cryptography", "hailo_platform", "httpx", "nacl", "onnxruntime", "openvino", "paho", "pynvml", "rich",
    "segno", "torch",
}  # fmt: skip
NEVER = {
    # Pixels are decoded, redacted and encoded in the media sandbox.
    "appliance.app": {"av", "cv2", "numpy"},
    "appliance.ingest.__main__": {"asyncio", "fastapi", "nats", "sqlite3", "ssl", "starlette", "uvicorn"},
}


@pytest.mark.parametrize("module", MODULES_MAX)
def test_core_and_ingest_load_what_they_need_and_no_more(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert sorted(loaded & (NEVER[module] | ONLY_WHERE_ASKED)) == []
    assert len(loaded) <= MODULES_MAX[module]
