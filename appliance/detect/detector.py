"""The ObjectDetector port, and wrappers around a detector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from appliance.base.errors import DetectorError
from appliance.types import Detections

if TYPE_CHECKING:  # the core asks here which file a detector is, and loads neither OpenCV nor numpy for that
    import numpy as np
    from numpy.typing import NDArray


class ObjectDetector(Protocol):
    """A port with one contract test, tests/contract/test_detectors.py."""

    @property
    def name(self) -> str:
        """File stem and the first 8 hex digits of its sha256, or `builtin:…`; goes into logs and replay headers."""
        ...

    @property
    def warning(self) -> str:
        """A warning for people that holds as long as this detector is in use, or ''."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that `class_ids` index."""
        ...

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) in which it wants a frame of `width` x `height`, so that the decoder can scale."""
        ...

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Detect in BGR uint8 (H, W, 3) frames of any size; one answer each, in order. Large ones are scaled down.

        Boxes are shares of the frame, clipped; scores at least the configured `score_min`; best score first, ties
        by box. Raises DetectorError, which is never to be read as "nothing there".
        """
        ...


@runtime_checkable
class VariableInput(Protocol):
    """A detector to which a part of the frame costs less than the whole one: see `SessionTracks.detector_input`."""

    @property
    def shape_step(self) -> int:
        """A frame costs by its area, its sides rounded up to multiples of this; 0: as much as a whole one."""
        ...


@runtime_checkable
class Batching(Protocol):
    """A detector that takes several frames in one run of its device.

    It may gain from it, and it may not: `measure_batching` measures that.
    """

    @property
    def batch_max(self) -> int:
        """How many frames of one `input_size` one run takes, at most; 1: none beside the first."""
        ...

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) of the input into which a frame of `width` x `height` is laid."""
        ...


def fallback_reason(detector: ObjectDetector) -> str:
    """Return the name of the detector that this one replaces, and why; '' if it is what was asked for."""
    return str(getattr(detector, "stands_in", ""))


def prefer_labels(detector: ObjectDetector, wanted: Iterable[str]) -> None:
    """Tell the detector, if it can be told, which labels rules want: classes that nobody wants give way. Any thread."""
    if prefer := getattr(detector, "prefer", None):
        prefer(wanted)


def calibration_of(detector: ObjectDetector) -> Mapping[str, tuple[float, float]]:
    """Return the calibration of the detector's scores, as a session's header holds it; {}: they are on that scale.

    By label, the line that puts log-odds on the common scale.
    """
    return cast("Mapping[str, tuple[float, float]]", getattr(detector, "calibration", {}))


class DetectorProxy:
    """An ObjectDetector that passes on to another one, but for what its subclasses change.

    It is no VariableInput: a subclass that takes parts of frames declares that itself.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        self._detector = detector

    @property
    def name(self) -> str:
        return self._detector.name

    @property
    def warning(self) -> str:
        return self._detector.warning

    @property
    def labels(self) -> tuple[str, ...]:
        return self._detector.labels

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return self._detector.preferred_size(width, height)

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Pass the frames to the detector behind this one. Raises DetectorError."""
        return self._detector.detect(frames)


class AbsentDetector:
    """Stands where a detector could not be loaded, so that recording goes on: no frame counts as examined."""

    name = "none"

    def __init__(self, reason: str, labels: Iterable[str]) -> None:
        """reason: why it is not there. labels: that rules ask for."""
        self.warning = self.stands_in = f"nothing is detected, the cameras are only recorded: {reason}"
        self.labels = tuple(labels)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Raise DetectorError with the warning."""
        raise DetectorError(self.warning)


class UpscalingDetector(DetectorProxy):
    """An ObjectDetector that enlarges small frames too.

    A detector of free shape takes a small frame for a part of one and keeps its scale; for stills and crops of any size
    (a re-check, a labelled set) they are wanted as large as the network can take them.
    """

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """As the detector's own, each frame filling its input."""
        return self._detector.detect([self._enlarged(frame) for frame in frames])

    def _enlarged(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import cv2

        if frame.ndim != 3 or frame.size == 0:
            return frame  # the detector says what is wrong with it
        size = self._detector.preferred_size(frame.shape[1], frame.shape[0])
        if size[0] <= frame.shape[1]:
            return frame
        return cast("NDArray[np.uint8]", cv2.resize(frame, size, interpolation=cv2.INTER_LINEAR))
