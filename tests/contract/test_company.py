"""What a detector may say of itself beyond the port, and what the scheduler makes of it: contract for accelerators.

`TensorRtLike` has the calls of TensorRT's Python API 10 (`create_execution_context`, `set_input_shape`,
`set_tensor_address`, `execute_async_v3`) behind it, with an engine of a fixed picture and up to eight of them a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_networks as tiny
from numpy.typing import NDArray
from tiny_networks import Thing

from appliance import config
from appliance.clock import ManualClock
from appliance.detect import detector
from appliance.errors import DetectorError
from appliance.inference.scheduler import Batching, SingleFrame
from appliance.inference.sheet_packing import STEP, FixedInput, PackedDetector, Sheets, company_of, packed_detector
from appliance.types import Detections

SIDE, BATCH_MAX = 416, 8


class Context:
    """Of an engine: `images` float32 [n, 3, 416, 416] to `found` [n, 1, 6] (box in pixels, score, class)."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._shape: tuple[int, ...] = ()
        self._tensors: dict[str, NDArray[np.float32]] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shape = shape
        return name == "images" and shape[1:] == (3, SIDE, SIDE) and 1 <= shape[0] <= BATCH_MAX

    def set_tensor_address(self, name: str, memory: NDArray[np.float32]) -> bool:
        self._tensors[name] = memory
        return name in {"images", "found"}

    def execute_async_v3(self, stream_handle: int) -> bool:
        images, found = self._tensors["images"], self._tensors["found"]
        self._clock.advance(0.004 + 0.001 * self._shape[0])
        for n in range(self._shape[0]):
            ys, xs = np.nonzero(images[n, 0] > 0.9)
            found[n, 0] = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1, 0.9, 0) if len(xs) else 0
        return stream_handle == 0


class TensorRtLike:
    """An `ObjectDetector` over such an engine: whole batches in one call."""

    name, warning, labels = "engine@00000000", "", ("person",)
    batch_max = BATCH_MAX
    sheet = (SIDE, SIDE)

    def __init__(self, clock: ManualClock) -> None:
        self.batches: list[int] = []
        self._context = Context(clock)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return SIDE, max(1, height * SIDE // width)

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        if not pictures:
            return []
        images = np.full((len(pictures), 3, SIDE, SIDE), 114 / 255, np.float32)
        for n, each in enumerate(pictures):
            images[n, :, : each.shape[0], : each.shape[1]] = each.transpose(2, 0, 1) / 255
        found = np.zeros((len(pictures), 1, 6), np.float32)
        if not self._context.set_input_shape("images", images.shape):
            raise DetectorError(f"the engine does not take {list(images.shape)}")
        self._context.set_tensor_address("images", images)
        self._context.set_tensor_address("found", found)
        if not self._context.execute_async_v3(0):
            raise DetectorError("the engine failed")
        self.batches.append(len(pictures))
        return [_answer(rows, each.shape[1], each.shape[0]) for rows, each in zip(found, pictures, strict=True)]


def _answer(rows: NDArray[np.float32], width: int, height: int) -> Detections:
    kept = rows[rows[:, 4] > 0]
    boxes = (kept[:, :4] / np.array([width, height] * 2, np.float32)).astype(np.float32)
    return Detections(boxes, kept[:, 4], kept[:, 5].astype(np.int32))


def spot(width: int, height: int, n: int) -> NDArray[np.uint8]:
    picture = np.full((height, width, 3), 20, np.uint8)
    picture[8 + n : 28 + n, 12 + n : 40 + n] = 255
    return picture


def test_an_engine_is_found_to_gain_from_batches_of_sheets() -> None:
    clock = ManualClock()
    engine = TensorRtLike(clock)
    assert isinstance(engine, Batching)
    assert isinstance(engine, FixedInput)
    company = company_of(engine, clock)
    assert isinstance(company, Sheets)
    whole = engine.preferred_size(1280, 720)
    assert company.fits([whole] * BATCH_MAX)
    assert not company.fits([whole] * (BATCH_MAX + 1))
    assert company.seconds([0.005] * 8) == pytest.approx(0.012, rel=0.1)


def test_whole_pictures_and_parts_of_many_cameras_go_in_one_call_and_come_back_to_their_owners() -> None:
    clock = ManualClock()
    engine = TensorRtLike(clock)
    company = company_of(engine, clock)
    engine.batches.clear()
    pictures = [spot(*engine.preferred_size(1280, 720), n) for n in range(2)]
    pictures.append(spot(384, 128, 2))
    together = company.ask(engine, pictures)
    assert engine.batches == [2], "two sheets: a whole picture each, one with a part below it"
    # The engine tells one box a sheet: what it finds of two cameras at once belongs to neither.
    assert [len(each) for each in together].count(1) == 1
    (alone,) = company.ask(engine, pictures[:1])
    np.testing.assert_allclose(alone.boxes * np.tile(engine.preferred_size(1280, 720), 2), [[12, 8, 40, 28]], atol=1e-3)


def test_a_batch_that_is_measured_to_bring_nothing_is_not_taken() -> None:
    class Serial(TensorRtLike):
        sheet = None  # type: ignore[assignment]

        def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
            return [found for each in pictures for found in super(Serial, self).detect([each])]

    clock = ManualClock()
    assert isinstance(company_of(Serial(clock), clock), SingleFrame)


def test_a_network_on_the_cpu_is_asked_for_one_picture_at_a_time(tmp_path: Path) -> None:
    free = detector.load(config.DetectorConfig(model="vedette-nano"))
    assert isinstance(company_of(free, ManualClock()), SingleFrame)
    assert packed_detector(free, 16) is free, "it makes parts of pictures cheap by itself"
    hog = detector.load(config.DetectorConfig(model="builtin:hog"))
    assert isinstance(company_of(hog, ManualClock()), SingleFrame)


def test_a_file_with_a_fixed_input_is_packed_and_its_cameras_make_parts_for_it(tmp_path: Path) -> None:
    fixed = detector.load(
        config.DetectorConfig(model=str(tiny.yolox(tmp_path / "n.onnx", [Thing((16, 16, 80, 112), 0.9, 0)])))
    )
    assert isinstance(company_of(fixed, ManualClock()), Sheets)
    seen_as = packed_detector(fixed, 2)
    assert isinstance(seen_as, PackedDetector)
    assert (seen_as.shape_step, seen_as.name, seen_as.labels) == (STEP, fixed.name, fixed.labels)
    assert seen_as.preferred_size(1280, 720) == fixed.preferred_size(1280, 720)
    assert packed_detector(fixed, 1) is fixed


def test_a_network_that_stretches_pictures_is_not_packed(tmp_path: Path) -> None:
    stretches = detector.load(
        config.DetectorConfig(model=str(tiny.detr(tmp_path / "n.onnx", [Thing((0, 0, 9, 9), 0.9, 0)])))
    )
    assert isinstance(company_of(stretches, ManualClock()), SingleFrame)
