"""Runs any supported network: frame to tensor, a runtime's arithmetic, output to boxes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.base.config_model import HeadName
from appliance.base.errors import DetectorError, ModelError
from appliance.bundle.manifest import ScoreLines, sha256_of
from appliance.detect import class_labels, model_files, yolo_detr_ssd_heads
from appliance.detect.letterbox import GpuFrame, GpuFrameRuntime, Letterbox, PixelRange
from appliance.detect.network_inputs import InputBuffer, NetworkInputs, network_inputs, shape_step
from appliance.detect.network_runtime import Array, NetworkRuntime
from appliance.detect.output_head import ClassPreference, OutputHead, UnknownLayout, filter_and_sort
from appliance.types import Detections

log = logging.getLogger(__name__)
GIVES_WAY_IOU_MIN = 0.7  # of two boxes of one object that the network gave two classes


@dataclass(frozen=True, slots=True)
class _NetworkTrial:
    """Finds out on grey pictures how a network is read and fed. wanted: the head; names: of its classes, if known."""

    path: Path
    runtime: NetworkRuntime
    inputs: NetworkInputs
    wanted: HeadName
    names: tuple[str, ...]

    def head(self, size: tuple[int, int]) -> OutputHead:
        """Return the head for its answer at an input of (width, height). Raise ModelError."""
        grey, metadata = self.inputs.grey(1, *size), self.runtime.metadata
        try:
            outputs = self.runtime.run(self.inputs.feed(grey))
        except DetectorError as error:
            raise ModelError(f"{self.path}: the network fails on a trial picture: {error}") from None
        if others := [name for name, each in outputs.items() if not isinstance(each, np.ndarray)]:
            raise ModelError(f"{self.path}: no detector: its output {others[0]} is a sequence or a map, not a tensor")
        answer = yolo_detr_ssd_heads.TrialOutput(
            size, outputs, self.inputs.sizes, metadata, self.names, self.inputs.dtype is np.uint8
        )
        try:
            return yolo_detr_ssd_heads.choose_head(answer, self.wanted)
        except UnknownLayout as reason:
            raise ModelError(
                f"{self.path}: unknown output layout, {reason} (input {list(grey.shape)}, outputs {answer.shapes()}; "
                f"detector.head is {self.wanted}); known: {yolo_detr_ssd_heads.KNOWN}"
            ) from None

    def step(self, head: OutputHead) -> int:
        """32, or the network's own stride, if it takes other shapes cheaply and answers alike in them; else 0."""
        if not self.inputs.free or head.form.placing == "stretch" or not self.runtime.takes_any_shape:
            return 0
        step = shape_step(self.runtime.metadata)
        return step if self._answers_alike(head, (3 * step, 2 * step)) else 0

    def sizes(self, head: OutputHead) -> tuple[tuple[int, int], ...]:
        """Return the runtime's few input sizes, if the network answers alike in the smallest of them; else ()."""
        sizes = self.runtime.input_sizes
        if len(sizes) < 2 or head.form.placing == "stretch" or not self._answers_alike(head, sizes[0]):
            return ()
        return sizes

    def batches(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the runtime's batch sizes, if the network takes so many and answers a row for each; else (1,)."""
        sizes = self.runtime.batch_sizes
        if len(sizes) == 1 or not self.inputs.free_batch:
            return (1,)
        count = sizes[1]
        try:
            outputs = self.runtime.run(self.inputs.feed(self.inputs.grey(count, *size)))
        except DetectorError:
            return (1,)
        return sizes if all(array.ndim and len(array) == count for array in outputs.values()) else (1,)

    def _answers_alike(self, head: OutputHead, size: tuple[int, int]) -> bool:
        try:
            other = self.head(size)
        except ModelError:
            return False
        return other.name == head.name and other.classes == head.classes


class NetworkDetector:
    """A network in a runtime, warmed up.

    Owned by one thread at a time. Frames whose inputs have one shape go into one run, in the runtime's `batch_sizes`,
    where the file leaves the number open; else, and on CPUs, one by one, so that the answer does not depend on the
    neighbours. A run that fails is the failure of the whole call: who called may ask for each frame again by itself.

    Where the file leaves height and width open, each frame runs in the smallest input that holds it at its scale (see
    Letterbox): shapes are few, multiples of 32.

    shape_step: any multiple of it is a side, and an inference costs by its area; 0: the input is fixed.
    """

    def __init__(
        self,
        path: Path,
        runtime: NetworkRuntime,
        *,
        score_min: float = 0.1,
        head: HeadName = "auto",
        label_names: tuple[str, ...] = (),
        calibration: ScoreLines | None = None,
    ) -> None:
        """Try the network on a grey frame and choose the head. Raises ModelError.

        runtime: with the network of `path`. calibration: of its scores, where models.toml knows it; else the file's
        metadata say it, or nobody.
        """
        self.stands_in = ""  # see `fallback_reason`
        self.name = f"{path.stem}@{sha256_of(path)[:8]}" + (f"+{runtime.mark}" if runtime.mark else "")
        self.runtime = runtime
        self._score_min = score_min
        metadata = runtime.metadata
        self._inputs = network_inputs(path, runtime.inputs, metadata)
        size = (self._inputs.width, self._inputs.height)
        trial = _NetworkTrial(path, runtime, self._inputs, head, label_names or class_labels.named(path, metadata))
        self._head = trial.head(size)
        self.head_name = self._head.name
        """How its answer is read: one of HeadName. `models.export` tells it of each file that it makes."""
        self.shape_step = trial.step(self._head)
        self._heads: dict[tuple[int, int], OutputHead] = {size: self._head}
        self._letterbox = Letterbox(*size, self._head.form.placing, self.shape_step, trial.sizes(self._head))
        self._batch_sizes = trial.batches(size)
        self._buffers = threading.local()
        self._prepared: set[tuple[int, int]] = set()
        self._preference: ClassPreference | None = None
        self.labels = class_labels.resolve(path, self._head.classes, metadata, label_names)
        self.warning = class_labels.guessed(self._head.classes, metadata, label_names)
        if self.warning:
            log.warning("%s: %s", path, self.warning)
        lines = calibration or model_files.lines_from_metadata(path.name, metadata)
        self.calibration = model_files.to_common_scale(lines, self.labels)

    @property
    def batch_max(self) -> int:
        """How many frames of one input shape one run takes, at most."""
        return self._batch_sizes[-1]

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) of the input into which a frame of `width` x `height` is laid."""
        return self._letterbox.input_size(width, height)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size in which a whole frame of `width` x `height` is wanted; larger ones are scaled down here."""
        size = self._letterbox.preferred_size(width, height)
        self._prepare(self.input_size(*size))
        return size

    def _prepare(self, size: tuple[int, int]) -> None:
        """Tell the runtime, once, that whole frames come in this (width, height), and in how many at a time."""
        if size in self._prepared:
            return
        self._prepared.add(size)
        for count in self._batch_sizes:
            shapes: dict[str, tuple[int, ...]] = {self._inputs.frame: self._inputs.grey(count, *size).shape}
            if self._inputs.sizes:
                shapes[self._inputs.sizes] = (count, 2)
            self.runtime.prepare(shapes)

    def prefer(self, wanted: Iterable[str]) -> None:
        """Classes of which no rule wants any give way to those of `wanted` (see ClassPreference). Any thread."""
        preference = ClassPreference(self.labels, wanted)
        self._preference = preference if preference.gives_way.any() else None

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One Detections per BGR uint8 (H, W, 3) frame, of any sizes. Raises DetectorError."""
        for frame in frames:
            if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or frame.size == 0:
                raise DetectorError(f"not a BGR uint8 picture: {frame.dtype} {list(frame.shape)}")
        found: dict[int, Detections] = {}
        for numbers in self._batches([(frame.shape[1], frame.shape[0]) for frame in frames]):
            found |= zip(numbers, self._detect_batch([frames[number] for number in numbers]), strict=True)
        return [found[number] for number in range(len(frames))]

    def detect_on_gpu(self, frames: Sequence[GpuFrame]) -> list[Detections]:
        """As `detect`, of frames that a decoder left in the GPU's memory: they never visit the host.

        Raises DetectorError, also without a runtime on a GPU; MissingDependency, ModelError: the kernel cannot be had.
        """
        if not isinstance(self.runtime, GpuFrameRuntime):
            raise DetectorError(f"{self.name}: frames on the GPU need detector.backend tensorrt")
        found: dict[int, Detections] = {}
        for numbers in self._batches([(frame.width, frame.height) for frame in frames]):
            batch = [frames[number] for number in numbers]
            places = [self._letterbox.placement(frame.width, frame.height) for frame in batch]
            pixels = PixelRange.of(self._head.form)
            try:
                outputs = self.runtime.run_frames(batch, places, pixels, self._inputs.sizes_feed(len(batch)))
            except DetectorError as error:
                raise DetectorError(f"{self.name}: {error}") from None
            sizes = [(frame.width, frame.height) for frame in batch]
            found |= zip(numbers, map(self._found, sizes, _rows(outputs, len(batch))), strict=True)
        return [found[number] for number in range(len(frames))]

    def close(self) -> None:
        """See `NetworkRuntime.close`."""
        self.runtime.close()

    def trial_feed(self, size: tuple[int, int], count: int = 1) -> dict[str, Array]:
        """Return the network's input for so many grey frames of (width, height): to measure it by itself."""
        return self._inputs.feed(self._inputs.grey(count, *self.input_size(*size)))

    def feed(self, frame: NDArray[np.uint8]) -> dict[str, Array]:
        """Return the network's input for a BGR frame, in memory of its own: to calibrate integers with it."""
        return {name: array.copy() for name, array in self._inputs.feed(self._tensor([frame])).items()}

    def _batches(self, sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Return the numbers of the frames that go into each run, frames of one input shape together."""
        if self.batch_max == 1:
            yield from ([number] for number in range(len(sizes)))
            return
        by_shape: dict[tuple[int, int], list[int]] = {}
        for number, size in enumerate(sizes):
            by_shape.setdefault(self.input_size(*size), []).append(number)
        for numbers in by_shape.values():
            while numbers:
                count = max(each for each in self._batch_sizes if each <= len(numbers))
                yield numbers[:count]
                del numbers[:count]

    def _detect_batch(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """In one run: all of them have one input shape."""
        try:
            outputs = self.runtime.run(self._inputs.feed(self._tensor(frames)))
        except DetectorError as error:
            raise DetectorError(f"{self.name}: {error}") from None
        sizes = [(frame.shape[1], frame.shape[0]) for frame in frames]
        return list(map(self._found, sizes, _rows(outputs, len(frames))))

    def _found(self, size: tuple[int, int], outputs: Mapping[str, Array]) -> Detections:
        """Return the detections. outputs: of this frame alone; size: its (width, height)."""
        shape = self.input_size(*size)
        if shape not in self._heads:  # few: shapes are multiples of `shape_step` up to the usual size
            self._heads[shape] = yolo_detr_ssd_heads.resized_head(self._head, shape)
        found = self._heads[shape].decode(outputs, self._score_min, self._preference)
        if not len(found):
            return found
        shares = self._letterbox.to_shares(found.boxes, *size)
        result = Detections(shares, found.scores, found.class_ids)
        if self._preference is not None and len(result) and int(result.class_ids.max()) < len(self.labels):
            result = self._preference.resolve(result, GIVES_WAY_IOU_MIN)
        result = filter_and_sort(result, self._score_min)
        if len(result) and not 0 <= result.class_ids.min() <= result.class_ids.max() < len(self.labels):
            raise DetectorError(f"{self.name} answers with more than {len(self.labels)} classes; set detector.labels")
        return result

    def _tensor(self, frames: Sequence[NDArray[np.uint8]]) -> NDArray[Any]:
        """Return the tensor of frames that have one input size; good until the next call in this thread."""
        buffer: InputBuffer | None = getattr(self._buffers, "mine", None)
        if buffer is None:
            self._buffers.mine = buffer = InputBuffer(self._inputs, self._letterbox, self._head.form)
        return buffer.fill(frames)


def _rows(outputs: Mapping[str, Array], count: int) -> Iterator[Mapping[str, Array]]:
    """Yield the outputs of each of `count` frames: a row of every output is a frame's."""
    if count == 1:
        yield outputs
        return
    for row in range(count):
        yield {name: array[row : row + 1] for name, array in outputs.items()}
