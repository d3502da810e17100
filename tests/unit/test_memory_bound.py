"""What core and ingest load at their start is bounded: each megabyte is held for years. `python -m benchmarks.memory`
measures what it comes to."""

from __future__ import annotations

import json
import subprocess
import sys

LOAD = """
import json, sys
import appliance.ingest.__main__
ingest = sorted(sys.modules)
import appliance.app
print(json.dumps([ingest, sorted(sys.modules)]))
"""
# Not of ours alone: a new version of a library may bring more with it.
INGEST_MODULES_MAX, BOTH_MODULES_MAX = 620, 1290
NEVER_IN_INGEST = {"asyncio", "fastapi", "httpx", "nats", "sqlite3", "ssl", "starlette", "uvicorn"}
ONLY_WHERE_ASKED = {"apprise", "httpx", "hailo_platform", "onnxruntime", "openvino", "paho", "pynvml", "rich", "torch"}


def test_core_and_ingest_load_what_they_need_and_no_more() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    ingest, both = (set(each) for each in json.loads(done.stdout))
    assert sorted(ingest & (NEVER_IN_INGEST | ONLY_WHERE_ASKED)) == []
    assert sorted(both & ONLY_WHERE_ASKED) == []
    assert len(ingest) <= INGEST_MODULES_MAX
    assert len(both) <= BOTH_MODULES_MAX
