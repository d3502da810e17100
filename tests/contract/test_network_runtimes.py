"""What every NetworkRuntime promises, asked of each: of the libraries that are here, and of a scripted one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_nvidia
import numpy as np
import pytest

from appliance.base.errors import DetectorError
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.network_runtime import Array, NetworkRuntime
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.detect.tensorrt_plan_cache import PlanCache
from appliance.detect.tensorrt_runtime import TensorrtRuntime
from tests.support import tiny_networks as tiny
from tests.support.openvino import openvino_runtime
from tests.support.scripted_runtime import ScriptedRuntime
from tests.support.tiny_networks import SIDE, Thing, reds, scores_of

THINGS = [Thing((48, 40, 80, 88), 1.0, 0)]


def openvino(path: Path, precision: str) -> NetworkRuntime:
    runtime: NetworkRuntime = openvino_runtime(precision).OpenvinoRuntime(path, precision=precision)
    return runtime


def tensorrt(path: Path, version: str) -> NetworkRuntime:
    """On stand-ins for NVIDIA's modules, which compute by ONNX Runtime."""
    with pytest.MonkeyPatch.context() as patch:
        fake_nvidia.install(patch, version)
        return TensorrtRuntime(path, cache=PlanCache(path.parent / f"engines-{version}"))


RUNTIMES: dict[str, Callable[[Path], NetworkRuntime]] = {
    "scripted": lambda path: ScriptedRuntime(),
    "onnx": OnnxRuntime,
    "onnx-bound": lambda path: OnnxRuntime(path, bound=True),  # as on a GPU, in the CPU's memory
    "openvino": lambda path: openvino(path, "fp32"),
    "openvino-bf16": lambda path: openvino(path, "bf16"),
    "tensorrt-10": lambda path: tensorrt(path, "10.3.0"),
    "tensorrt-11": lambda path: tensorrt(path, "11.4.0.106"),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes any number of pictures; what it finds is scored by how red each is."""
    return tiny.of_any_batch(tiny.yolo(tmp_path_factory.mktemp("tiny") / "n.onnx", THINGS, ["person"]))


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, network: Path) -> Iterator[NetworkRuntime]:
    opened = RUNTIMES[request.param](network)
    yield opened
    opened.close()


def test_says_what_it_is_and_what_the_file_says_of_itself(runtime: NetworkRuntime) -> None:
    (library, _, number), where = runtime.version.split(", ")[0].partition(" "), runtime.version.split(", ")[1:]
    assert library
    assert number[0].isdigit()
    assert where
    assert " " not in runtime.mark
    (images,) = runtime.inputs
    assert (images.name, images.dtype, images.shape[1:]) == ("images", "float32", (3, SIDE, SIDE))
    assert not isinstance(images.shape[0], int), "the number of pictures is open"
    assert runtime.metadata["task"] == "detect"


def test_batch_sizes_begin_with_one_and_ascend(runtime: NetworkRuntime) -> None:
    sizes = runtime.batch_sizes
    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))


def test_each_row_of_an_answer_is_of_the_frame_in_that_row(runtime: NetworkRuntime) -> None:
    shares = (0.25, 1.0, 0.5, 0.75)
    assert scores_of(runtime.run(reds(*shares))) == list(shares)
    for count in runtime.batch_sizes:
        assert scores_of(runtime.run(reds(*shares[:count]))) == list(shares[:count])
    assert [scores_of(runtime.run(reds(each))) for each in shares] == [[each] for each in shares], "as by itself"


def test_the_feed_is_the_callers_again_after_the_run(runtime: NetworkRuntime) -> None:
    feed = reds(0.5)
    answer = runtime.run(feed)
    feed["images"][:] = 1.0
    assert scores_of(answer) == [0.5]
    assert scores_of(runtime.run(feed)) == [1.0]


def test_a_shape_that_is_not_the_networks_fails_and_the_next_run_is_as_good_as_ever(runtime: NetworkRuntime) -> None:
    wrong = {"images": np.zeros((2, 3, SIDE // 2, 7), np.float32)}
    with pytest.raises(DetectorError) as caught:
        runtime.run(wrong)
    assert "\n" not in str(caught.value)
    assert scores_of(runtime.run(reds(0.5, 0.25))) == [0.5, 0.25]


def test_a_shape_that_was_prepared_answers_the_same(runtime: NetworkRuntime) -> None:
    for shape in ((2, 3, SIDE, SIDE), (2, 3, SIDE, SIDE), (1, 3, SIDE, 7)):
        runtime.prepare({"images": shape})  # of the last one an inference would tell
    assert scores_of(runtime.run(reds(0.25, 0.75))) == [0.25, 0.75]


def test_threads_that_run_at_once_get_each_their_own_answer(runtime: NetworkRuntime) -> None:
    def ask(red: float) -> bool:
        answer = runtime.run(reds(red))
        return all(scores_of(answer) == [red] for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, [0.25, 0.5, 0.75, 1.0] * 5))


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_closed_one_says_so_and_is_closed_once(name: str, network: Path) -> None:
    opened = RUNTIMES[name](network)
    opened.run(reds(0.5))
    opened.close()
    opened.close()
    with pytest.raises(DetectorError, match="was closed"):
        opened.run(reds(0.5))


class BatchesOf(ScriptedRuntime):
    """Another runtime's arithmetic under batch sizes of our own."""

    def __init__(self, runtime: NetworkRuntime, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.inputs, self.metadata, self._runtime = runtime.inputs, runtime.metadata, runtime

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        self.shapes.append(feed["images"].shape)
        return self._runtime.run(feed)


def frame(red: int, width: int = 60, height: int = 40) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, :, 2] = red
    return picture


def test_a_detector_answers_for_frames_in_a_batch_as_one_by_one_and_in_their_order(
    runtime: NetworkRuntime, network: Path
) -> None:
    batching = BatchesOf(runtime, (1, 2, 4))
    together, alone = NetworkDetector(network, batching), NetworkDetector(network, BatchesOf(runtime, (1,)))
    assert (together.batch_max, alone.batch_max) == (4, 1)
    batching.shapes.clear()
    widths = (60, 300, 31, 60, 128, 60, 90)
    frames = [frame(red, width) for red, width in zip(range(70, 255, 25), widths, strict=False)]
    found = together.detect(frames)
    assert [shape[0] for shape in batching.shapes] == [4, 2, 1], "in the sizes that it likes"
    for mine, each in zip(found, frames, strict=True):
        (theirs,) = alone.detect([each])
        np.testing.assert_allclose(mine.boxes, theirs.boxes, atol=1e-4)
        np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-4)
    assert [len(each) for each in found] == [1] * 7
    assert len({round(float(each.scores[0]), 3) for each in found}) == 7, "each its own"


def test_a_batch_fails_as_a_whole_and_nothing_of_it_is_taken_for_empty(network: Path) -> None:
    def refuse_pairs(count: int) -> None:
        if count == 2 and ready:
            raise DetectorError("no pairs")

    ready: list[bool] = []
    detector = NetworkDetector(network, ScriptedRuntime(before=refuse_pairs))
    ready.append(True)
    with pytest.raises(DetectorError, match="no pairs"):
        detector.detect([frame(250), frame(200)])
    assert len(detector.detect([frame(250)])[0]) == 1, "each by itself"


def test_what_comes_often_is_prepared_in_every_batch_size_and_only_once(network: Path) -> None:
    scripted = ScriptedRuntime()
    detector = NetworkDetector(network, scripted)
    for _ in range(2):
        detector.preferred_size(1920, 1080)
    assert scripted.prepared == [(count, 3, SIDE, SIDE) for count in (1, 2, 4)]


def test_a_network_for_single_pictures_is_given_single_pictures(tmp_path: Path) -> None:
    """Whether its file says so, or its graph has nailed it down behind a file that does not, or it mixes the rows."""
    path = tiny.yolo(tmp_path / "n.onnx", THINGS, ["person"])
    single = BatchesOf(OnnxRuntime(path), (1, 2, 4))
    assert NetworkDetector(path, single).batch_max == 1
    assert {shape[0] for shape in single.shapes} == {1}, "not even tried"
    single.inputs = ScriptedRuntime().inputs
    assert NetworkDetector(path, single).batch_max == 1

    class OneRow(ScriptedRuntime):
        def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
            return {name: rows[:1] for name, rows in super().run(feed).items()}

    assert NetworkDetector(path, OneRow()).batch_max == 1


def test_a_detector_that_is_closed_closes_its_network(network: Path) -> None:
    scripted = ScriptedRuntime()
    NetworkDetector(network, scripted).close()
    assert scripted.closed == 1
