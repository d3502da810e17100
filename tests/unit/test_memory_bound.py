"""What core and ingest load at their start is bounded: each megabyte is held for years. `python -m benchmarks.memory`
measures what it comes to."""

from __future__ import annotations

import functools
import json
import linecache
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance import config
from appliance.core import app
from benchmarks.memory import watch

# Each in a process of its own, as they run. Not of ours alone: a new version of a library may bring more with it.
# 920 before pages and subjects of the API got modules of their own: 23 more files, no more code.
MODULES_MAX = {"appliance.core.app": 910, "appliance.ingest.__main__": 560, "appliance.media.sandboxed_functions": 390}
ONLY_WHERE_ASKED = {
    "apprise", "cryptography", "hailo_platform", "httpx", "nacl", "onnxruntime", "openvino", "paho", "pynvml", "rich",
    "segno", "torch",
}  # fmt: skip
NEVER = {
    # Pixels are decoded, redacted and encoded in the media sandbox.
    "appliance.core.app": {
        "appliance.mqtt.publisher", "av", "click", "cv2", "multiprocessing", "numpy", "pydantic.v1.main",
    },
    # It is handed its settings by the core, and speaks to nobody else.
    "appliance.ingest.__main__": {
        "appliance.config.arming_config", "appliance.config.mqtt_config", "appliance.config.notify_config",
        "appliance.config.site_file", "appliance.wire", "argparse", "asyncio",
        "email", "fastapi", "importlib.metadata", "nats", "numpy.ma", "sqlite3", "ssl", "starlette", "uvicorn", "yaml",
    },
    # It gets plain values: with the database and the models of the configuration it held 8 MB more.
    "appliance.media.sandboxed_functions": {
        "appliance.config", "appliance.store.database", "appliance.wire", "asyncio", "pydantic", "sqlite3",
    },
}  # fmt: skip


CORE, INGEST = "appliance.core.app", "appliance.ingest.__main__"
MODULES = "import json, sys; print(json.dumps(list(sys.modules)))"
METHODS = """
import gc, sys
from appliance.base.process_memory import share_methods
gc.collect()
before = sys.getallocatedblocks()
count = share_methods()
gc.collect()
print(count, before - sys.getallocatedblocks(), share_methods())
"""
LEFTOVERS = """
import gc, sys
from appliance.base.process_memory import free_import_leftovers
gc.collect()
before = sys.getallocatedblocks()
free_import_leftovers()
gc.collect()
print(before - sys.getallocatedblocks())
import wave
"""
API_MODELS = """
from appliance.dashboard.schemas import ApiModel
made = ApiModel.__subclasses__()
print(len(made) > 100, *sorted(each.__name__ for each in made if each.__pydantic_complete__))
"""
OPENAPI_MODELS = """
from fastapi import FastAPI
from fastapi.openapi import models
from pydantic import BaseModel
kinds = [each for each in vars(models).values() if isinstance(each, type) and issubclass(each, BaseModel)]
print(len(kinds) > 30, sum(each.__pydantic_complete__ for each in kinds))
class Own(BaseModel):
    n: int = 1
app = FastAPI()
app.get("/own")(lambda: Own())
print(Own.__pydantic_complete__, "/own" in app.openapi()["paths"], models.OpenAPI.__pydantic_complete__)
"""
PLUGINS = "from pydantic.plugin._loader import get_plugins; print(get_plugins())"
SERVER = "import uvicorn; print(uvicorn.Server.__module__, uvicorn.Config.__module__, uvicorn.run)"
GERMAN = """
from appliance.web import texts
german = texts.catalogues()["de"]
print(german.name, "messages" in vars(german), german.text("Downloaded"), "messages" in vars(german))
"""
QUESTIONS = {
    CORE: (MODULES, METHODS, LEFTOVERS, API_MODELS, OPENAPI_MODELS, SERVER, GERMAN),
    INGEST: (MODULES, METHODS, LEFTOVERS, PLUGINS),
    "appliance.media.sandboxed_functions": (MODULES,),
}
ASKED = """
import os, sys, {module}
for question in sys.argv[1:]:
    if os.fork() == 0:
        exec(question, {{}})
        sys.exit()
    assert os.wait()[1] == 0, question
    print(end="\\0", flush=True)
"""


@functools.cache  # a start of the core takes two seconds of CPU
def _answers(module: str) -> dict[str, str]:
    """Import a module in a process of its own; return what each of its questions prints, each asked in a fork of it."""
    command = [sys.executable, "-c", ASKED.format(module=module), *QUESTIONS[module]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(QUESTIONS[module], done.stdout.split("\0")[:-1], strict=True))


@pytest.mark.parametrize("module", MODULES_MAX)
def test_core_ingest_and_media_sandbox_load_what_they_need_and_no_more(module: str) -> None:
    loaded = set(json.loads(_answers(module)[MODULES]))
    assert sorted(loaded & (NEVER[module] | ONLY_WHERE_ASKED)) == []
    assert len(loaded) <= MODULES_MAX[module]


@pytest.mark.parametrize(("module", "methods_min"), [(CORE, 2000), (INGEST, 750)])
def test_dataclasses_share_the_methods_that_are_rarely_called(module: str, methods_min: int) -> None:
    """Of about ten Python objects each: 23,900 in the core and 9,800 in ingest."""
    methods, objects, again = map(int, _answers(module)[METHODS].split())
    assert methods >= methods_min
    assert objects > 8 * methods
    assert again == 0


@pytest.mark.parametrize(("module", "objects_min"), [(CORE, 8000), (INGEST, 5000)])
def test_what_imports_leave_behind_is_freed_and_the_next_import_works(module: str, objects_min: int) -> None:
    """Python objects: 10,800 in the core and 6,600 in ingest, 1.2 and 0.8 MB."""
    assert int(_answers(module)[LEFTOVERS]) >= objects_min


def test_the_models_of_the_api_get_their_validators_with_the_first_request() -> None:
    """2 MB of the core, for as long as nobody opens their pages. Of two of them a default is made while loading."""
    assert _answers(CORE)[API_MODELS].split() == ["True", "PoolItem", "PreferenceItem"]


def test_the_models_of_an_openapi_document_are_built_with_the_first_one() -> None:
    """2 MB of the core. One of them FastAPI uses while it is loaded; models of others are built as ever."""
    assert _answers(CORE)[OPENAPI_MODELS].split() == ["True", "1", "True", "True", "True"]


def test_no_package_has_a_say_in_how_messages_are_validated() -> None:
    """pydantic's search for its plug-ins would load what reads the metadata of packages: 2 MB of ingest, which loads
    no `importlib.metadata` (NEVER)."""
    assert _answers(INGEST)[PLUGINS].split() == ["()"]


TABLE = """
import ctypes
from appliance.base import json_lines
from appliance.config import IngestConfig
from appliance.types import FrameBoxes
class Memory(ctypes.Structure):
    _fields_ = [(str(n), ctypes.c_size_t) for n in range(10)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Memory
def held():
    memory = libc.mallinfo2()
    return getattr(memory, "4") + getattr(memory, "7")  # hblkhd, uordblks
line = json_lines.encode_ingest(FrameBoxes(camera="gate", seq=1, frame=1, t=1.5, looked=False, objects=()))
before = held()
assert json_lines.decode_ingest(line).camera == "gate"
site = IngestConfig.model_validate_json(b'{"storage": {"dir": "data"}, "cameras": {"gate": {"url": "rtsp://a/b"}}}')
assert list(site.cameras) == ["gate"]
print(held() - before)
"""


def test_texts_of_messages_are_kept_in_no_table() -> None:
    """Of 262,144 bytes in the core and in ingest, for texts that come again."""
    run = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 100_000


def test_the_server_of_the_pages_has_no_command_line() -> None:
    """It would load click and multiprocessing: 1.6 MB of the core."""
    assert _answers(CORE)[SERVER].split() == ["uvicorn.server", "uvicorn.config", "None"]


GATE = """
import sys, numpy as np
from appliance.analysis.motion_gate import MotionGate
gate, noise = MotionGate(), np.random.default_rng(0)
for _ in range(5):
    gate.measure(noise.integers(90, 110, (270, 480), np.uint8))
print("numpy.ma" in sys.modules)
"""


def test_the_motion_gate_loads_no_masked_arrays() -> None:
    """np.median does with its first call: 1.2 MB of ingest."""
    run = subprocess.run([sys.executable, "-c", GATE], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_the_lines_of_source_files_that_fastapi_reads_are_forgotten() -> None:
    """Of each page's function, for tracebacks, which read them again: 0.3 MB after ten pages."""
    assert linecache.getline(str(Path(__file__)), 1)
    app._give_memory_back(SimpleNamespace(readers=SimpleNamespace(close_spare=lambda: None)), lambda: None)
    assert not linecache.cache


def test_a_language_is_read_when_somebody_reads_it() -> None:
    """German takes 1 MB of the core."""
    assert _answers(CORE)[GERMAN].split() == ["Deutsch", "False", "Heruntergeladen", "True"]


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
from appliance.base.process_memory import return_large_blocks
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
    assert told.keys() == config._HOME.keys()
    for name in told:
        assert getattr(config, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        config.Nothing  # noqa: B018


def test_an_appliance_that_ends_by_itself_meets_no_bar() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    assert child.wait() == 2
    with pytest.raises(SystemExit, match="nothing was measured of core and ingest"):
        watch(child, 10.0, "")
