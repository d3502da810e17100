"""What core and ingest load at their start is bounded: each megabyte is held for years. `python -m benchmarks.memory`
measures what it comes to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import config
from benchmarks.memory import watch

# Each in a process of its own, as they run. Not of ours alone: a new version of a library may bring more with it.
# 920 before pages and subjects of the API got modules of their own: 23 more files, no more code.
MODULES_MAX = {"appliance.core.app": 950, "appliance.ingest.__main__": 590}
ONLY_WHERE_ASKED = {
    "apprise", "cryptography", "hailo_platform", "httpx", "nacl", "onnxruntime", "openvino", "paho", "pynvml", "rich",
    "segno", "torch",
}  # fmt: skip
NEVER = {
    # Pixels are decoded, redacted and encoded in the media sandbox.
    "appliance.core.app": {"appliance.mqtt.publisher", "av", "cv2", "numpy", "pydantic.v1.main"},
    # It is handed its settings by the core, and speaks to nobody else.
    "appliance.ingest.__main__": {
        "appliance.config.notify_targets", "appliance.config.site_file", "appliance.wire", "argparse", "asyncio",
        "fastapi", "nats", "sqlite3", "ssl", "starlette", "uvicorn", "yaml",
    },
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES_MAX)
def test_core_and_ingest_load_what_they_need_and_no_more(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert sorted(loaded & (NEVER[module] | ONLY_WHERE_ASKED)) == []
    assert len(loaded) <= MODULES_MAX[module]


@pytest.mark.parametrize(("module", "methods_min"), [("appliance.core.app", 2000), ("appliance.ingest.__main__", 750)])
def test_dataclasses_share_the_methods_that_are_rarely_called(module: str, methods_min: int) -> None:
    """Of about ten Python objects each: 23,900 in the core and 9,800 in ingest."""
    code = f"""
import gc, sys, {module}
from appliance.base.shared_methods import share_methods
gc.collect()
before = sys.getallocatedblocks()
count = share_methods()
gc.collect()
print(count, before - sys.getallocatedblocks(), share_methods())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    methods, objects, again = map(int, done.stdout.split())
    assert methods >= methods_min
    assert objects > 8 * methods
    assert again == 0


def test_the_models_of_the_api_get_their_validators_with_the_first_request() -> None:
    """2 MB of the core, for as long as nobody opens their pages. Of two of them a default is made while loading."""
    code = """
import appliance.core.app
from appliance.dashboard.schemas import ApiModel
made = ApiModel.__subclasses__()
print(len(made) > 100, *sorted(each.__name__ for each in made if each.__pydantic_complete__))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "PoolItem", "PreferenceItem"]


TRIAL = """
import re, sys, numpy as np
from pathlib import Path
from appliance.detect.onnx_runtime import OnnxRuntime
network = OnnxRuntime(Path(sys.argv[1]))
def after(side):
    network.run({network.inputs[0].name: np.zeros((1, 3, side, side), np.float32)})
    return int(re.search(r"Anonymous:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024
small = after(64)
print(after(416) - small)
"""


def test_a_trial_in_the_largest_input_costs_no_memory_afterwards() -> None:
    """What ONNX Runtime took for it, 7 MB, is given back: a camera's pictures fill no square. In a process of its own,
    whose memory nobody else takes or gives."""
    model = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"
    run = subprocess.run([sys.executable, "-c", TRIAL, str(model)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 3


PAUSE = """
import re, sys, numpy as np
from pathlib import Path
from appliance.base.malloc import return_large_blocks
from appliance.detect import onnx_runtime
return_large_blocks()
network = onnx_runtime.OnnxRuntime(Path(sys.argv[1]))
def after_all(pause_s):
    onnx_runtime.IDLE_S = pause_s
    for height, width in 2 * [(192, 256), (192, 320), (256, 416), (160, 160)]:
        network.run({network.inputs[0].name: np.zeros((1, 3, height, width), np.float32)})
    return int(re.search(r"Anonymous:\\s+(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024
print(after_all(3600.0) - after_all(0.0))
"""


def test_a_camera_that_is_quiet_holds_no_memory_of_inferences() -> None:
    model = Path(__file__).parents[2] / "models" / "vedette-nano-int8.onnx"
    run = subprocess.run([sys.executable, "-c", PAUSE, str(model)], capture_output=True, text=True, check=True)
    assert float(run.stdout) > 2


def test_each_name_of_the_configuration_is_found_where_types_are_told_it_is() -> None:
    source = Path(config.__file__).read_text()
    told = dict(re.findall(r"^    from \S+ import (\w+) as (\w+)$", source, re.MULTILINE))
    homes = " ".join(re.findall(r'^    "appliance\.\S+": \(?\s*((?:"[^"]+"\s*)+)', source, re.MULTILINE))
    assert sorted(told) == sorted(homes.replace('"', "").split())
    for name in told:
        assert getattr(config, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        config.Nothing  # noqa: B018


def test_an_appliance_that_ends_by_itself_meets_no_bar() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    assert child.wait() == 2
    with pytest.raises(SystemExit, match="nothing was measured of core and ingest"):
        watch(child, 10.0, "")
