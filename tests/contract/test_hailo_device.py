"""`backend: hailo` over a device that is not there: what is found, what happens when it is lost, what is refused."""

from __future__ import annotations

import ast
import errno
import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.clock import ManualClock
from appliance.base.config_model import DetectorConfig, HailoConfig
from appliance.base.errors import DetectorError, ModelError
from appliance.detect import detector_loader, hailo_child
from appliance.detect.hailo_runtime import HailoRuntime
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.network_runtime import RUN_S_MAX
from appliance.inference.inference_worker import STUCK_S
from tests.support import hailo_files
from tests.support import tiny_networks as tiny
from tests.support.hailo_files import FAKE, FakeDevice
from tests.support.tiny_networks import Thing
from tests.support.waiting import until

THINGS = [Thing((16, 16, 80, 112), 0.9, 0), Thing((60, 8, 120, 40), 0.6, 1), Thing((4, 80, 24, 124), 0.3, 0)]


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    return FakeDevice(tmp_path)


@pytest.fixture
def looker(device: FakeDevice, tmp_path: Path) -> Iterator[NetworkDetector]:
    """On a clock that skips the waits between two starts."""
    path = hailo_files.nms(tmp_path / "yard.hef", THINGS)
    settings = HailoConfig(python=str(device.python), answer_s=1.0)
    runtime = HailoRuntime(path, settings, score_min=0.2, clock=ManualClock())
    yield NetworkDetector(path, runtime, score_min=0.2)
    runtime.close()


def red(colour: tuple[int, int, int] = (0, 0, 255)) -> NDArray[np.uint8]:
    return np.full((tiny.SIDE, tiny.SIDE, 3), colour, np.uint8)


def detect_until_it_fails(looker: NetworkDetector) -> None:
    while True:  # a process dies a moment after it was killed
        looker.detect([red()])


@pytest.mark.parametrize(
    ("made", "frame"),
    [
        ({"order": hailo_files.BY_SCORE}, red()),
        ({"nv12": True}, red()),
        ({"pixels": "bgr"}, red((255, 0, 0))),  # the fake takes its first colour for red
    ],
    ids=["by score", "NV12", "BGR"],
)
def test_boxes_colours_and_scores_come_out_as_the_network_means_them(
    made: dict[str, object], frame: NDArray[np.uint8], device: FakeDevice, tmp_path: Path
) -> None:
    path = hailo_files.nms(tmp_path / "yard.hef", THINGS, **made)  # type: ignore[arg-type]
    looker = detector_loader.load(DetectorConfig.model_validate(device.settings(path, score_min=0.2)))
    assert isinstance(looker, NetworkDetector)
    found, half = looker.detect([frame, frame // 2])
    np.testing.assert_allclose(found.boxes, [np.array(thing.box) / tiny.SIDE for thing in THINGS], atol=1e-5)
    np.testing.assert_allclose(found.scores, [0.9, 0.6, 0.3], atol=0.01)
    assert found.class_ids.tolist() == [0, 1, 0]
    np.testing.assert_allclose(half.scores, [0.45, 0.3], atol=0.01)
    assert looker.labels == ("person", "car")
    assert re.fullmatch(r"yard@[0-9a-f]{8}\+hailo8l", looker.name)


def test_a_helper_that_is_killed_is_started_again_and_the_same_is_seen(
    looker: NetworkDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def late(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        time.sleep(0.2)  # meanwhile nobody is told half of the reason
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", late)
    runtime = looker.runtime
    assert isinstance(runtime, HailoRuntime)
    before = looker.detect([red()])[0]
    os.kill(runtime.process.pid, signal.SIGKILL)
    until(lambda: runtime.process.loss != "")
    with pytest.raises(DetectorError, match=r"the Hailo device was lost: the helper ended by itself or was killed"):
        detect_until_it_fails(looker)
    until(lambda: runtime.process.starts == 2 and not runtime.process.loss)
    np.testing.assert_array_equal(looker.detect([red()])[0].boxes, before.boxes)


def test_a_process_without_free_files_starts_the_helper_again_once_it_has_some(
    looker: NetworkDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refused = os.memfd_create, list(range(3))

    def scarce(name: str, flags: int) -> int:
        if refused:
            refused.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", scarce)
    runtime = looker.runtime
    assert isinstance(runtime, HailoRuntime)
    os.kill(runtime.process.pid, signal.SIGKILL)
    until(lambda: runtime.process.starts == 2 and not runtime.process.loss)
    assert not refused
    assert len(looker.detect([red()])[0]) == len(THINGS)


def test_a_device_that_is_lost_is_an_error_until_it_is_back(looker: NetworkDetector, device: FakeDevice) -> None:
    """What HailoRT says of it is passed on; a detector in that state never answers "nothing there"."""
    runtime = looker.runtime
    assert isinstance(runtime, HailoRuntime)
    device.set(fail={"infer": ["HailoRTStreamAborted", "Stream was aborted"], "VDevice": ["HailoRTException", "none"]})
    with pytest.raises(DetectorError, match=r"yard@\w+\+hailo8l: the Hailo device was lost: Stream was aborted"):
        looker.detect([red()])
    with pytest.raises(DetectorError, match="was lost"):
        looker.detect([red()])
    until(lambda: runtime.process.loss == "none", what="a start that failed")
    with pytest.raises(DetectorError, match="was lost: none"):
        looker.detect([red()])
    device.set()
    until(lambda: not runtime.process.loss)
    assert len(looker.detect([red()])[0]) == len(THINGS)


def test_an_answer_that_does_not_come_is_given_up_before_the_watchdog_ends_the_process(
    looker: NetworkDetector, device: FakeDevice
) -> None:
    runtime = looker.runtime
    assert isinstance(runtime, HailoRuntime)
    stuck = runtime.process.pid
    device.set(hang="infer")
    began = time.monotonic()
    with pytest.raises(DetectorError, match="no answer in time"):
        looker.detect([red()])
    assert time.monotonic() - began < STUCK_S, "the watchdog would be faster"
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)
    device.set()
    until(lambda: not runtime.process.loss)
    assert len(looker.detect([red()])[0]) == len(THINGS)
    with pytest.raises(ValueError, match="answer_s"):
        HailoConfig(answer_s=RUN_S_MAX + 1)


def test_a_frame_that_the_network_does_not_take_fails_alone_and_a_closed_network_says_so(
    looker: NetworkDetector,
) -> None:
    runtime = looker.runtime
    (wanted,) = runtime.inputs
    for wrong in (np.zeros((1, 64, 64, 3), np.uint8), np.zeros((1, tiny.SIDE, tiny.SIDE, 3), np.float32)):
        with pytest.raises(DetectorError, match=r"the network takes yard/input_layer1 uint8 \[\?, 128, 128, 3\]"):
            runtime.run({wanted.name: wrong})
    with pytest.raises(DetectorError, match="5 frames are more than the 4 that one run may hold"):
        runtime.run({wanted.name: np.zeros((5, tiny.SIDE, tiny.SIDE, 3), np.uint8)})
    assert len(looker.detect([red()])[0]) == len(THINGS)
    runtime.close()
    runtime.close()
    with pytest.raises(DetectorError, match="the network was closed"):
        looker.detect([red()])


def test_frames_of_one_run_are_under_way_together_and_keep_their_order(
    looker: NetworkDetector, device: FakeDevice
) -> None:
    """The fake answers none of two before both are there."""
    assert looker.batch_max == 4
    device.set(together=True)
    bright, half = looker.detect([red(), red() // 2])
    assert (len(bright), len(half)) == (3, 2)
    device.set()
    found = looker.detect([red() // 2, red(), red((255, 0, 0)), red(), red() // 2])
    assert [len(each) for each in found] == [2, 3, 0, 3, 2]


def test_a_detector_that_nobody_has_any_more_gives_the_device_back(device: FakeDevice, tmp_path: Path) -> None:
    path = hailo_files.nms(tmp_path / "yard.hef", THINGS)
    runtime = HailoRuntime(path, HailoConfig(python=str(device.python)))
    pid = runtime.process.pid
    os.kill(pid, 0)
    del runtime
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nms_on_the_chip_keeps_its_own_threshold(device: FakeDevice, tmp_path: Path) -> None:
    path = hailo_files.nms(tmp_path / "yard.hef", THINGS)
    text = path.read_bytes().replace(b'{"input"', b'{"nms_on_chip": true, "input"')
    path.write_bytes(text)
    looker = detector_loader.load(DetectorConfig.model_validate(device.settings(path, score_min=0.5)))
    assert looker.detect([red()])[0].class_ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"import": "libhailort.so.4.20.0: cannot open shared object file"}, "bindings do not load"),
        ({"firmware": "4.20.0"}, "HailoRT 4.23.0, firmware 4.20.0, hailo8l: library, driver and firmware must be"),
        ({"fail": {"VDevice": ["HailoRTException", "libhailort failed with error: 74 (X)"]}}, "another process has"),
        ({"architecture": "HAILO10H"}, "it was compiled for hailo8l, and the device here is hailo10h"),
    ],
    ids=["bindings", "firmware", "in use", "architecture"],
)
def test_a_device_that_does_not_come_up_is_refused_with_the_cure(
    state: dict[str, object], words: str, device: FakeDevice, tmp_path: Path
) -> None:
    device.set(**state)
    path = hailo_files.nms(tmp_path / "yard.hef", THINGS)
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        detector_loader.load(DetectorConfig.model_validate(device.settings(path)))
    assert "\n" not in str(caught.value)
    assert "yard.hef: detector.backend hailo: " in str(caught.value)


def test_the_version_of_a_loaded_driver_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert hailo_child.driver_version(tmp_path) == ""
    (tmp_path / "hailo_pci").mkdir()
    assert hailo_child.driver_version(tmp_path) == "?"
    (tmp_path / "hailo_pci" / "version").write_text("4.23.0\n")
    assert hailo_child.driver_version(tmp_path) == "4.23.0"


def test_the_fake_has_the_signatures_of_hailo_platform_and_the_helper_asks_for_nothing_else() -> None:
    """hailo_platform_4_23.json was listed from pyhailort.py of Hailo's public repository, branch hailo8, 4.23.0."""
    listed = json.loads((Path(__file__).parent / "hailo_platform_4_23.json").read_text())
    classes = ast.parse((FAKE / "hailo_platform" / "__init__.py").read_text()).body
    seen = 0
    for name, arguments in _methods([each for each in classes if isinstance(each, ast.ClassDef)]):
        assert listed[name] == arguments, name
        seen += 1
    assert seen > 40
    helper = ast.parse(Path(hailo_child.__file__).read_text())
    used = {node.attr for node in ast.walk(helper) if isinstance(node, ast.Attribute)}
    known = {name.rpartition(".")[2] for name in listed}
    assert {
        "create_infer_model",
        "set_nms_score_threshold",
        "wait_for_async_ready",
        "run_async",
        "identify",
    } <= used & known
    genuine = importlib.util.find_spec("hailo_platform")
    assert genuine is None or FAKE not in Path(str(genuine.origin)).parents, "the fake is for the helper alone"


def _methods(classes: list[ast.ClassDef], within: str = "") -> Iterator[tuple[str, object]]:
    """`VDevice.create_infer_model` with its arguments, of what the real module has public."""
    for each in classes:
        if each.name.startswith("_") or each.name in ("HailoSchedulingAlgorithm", "FormatType", "FormatOrder"):
            continue
        name = f"{within}{each.name}"
        yield from _methods([node for node in each.body if isinstance(node, ast.ClassDef)], f"{name}.")
        for node in each.body:
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
                if [ast.unparse(each) for each in node.decorator_list] == ["property"]:
                    yield f"{name}.{node.name}", "property"
                    continue
                taken = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                yield f"{name}.{node.name}", taken + [f"*,{argument.arg}" for argument in node.args.kwonlyargs]
