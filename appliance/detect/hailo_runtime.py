"""HailoRT as a NetworkRuntime: a compiled network (.hef) on a Hailo device, which a process of its own holds."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Mapping
from pathlib import Path

from appliance.base.clock import Clock, SystemClock
from appliance.base.detector_config import HailoConfig
from appliance.base.errors import DetectorError, ModelError
from appliance.detect import hailo_cures, hef_file
from appliance.detect.hailo_bindings import python_with_bindings
from appliance.detect.hailo_process import HailoDescription, HailoProcess, HailoStream, HelperFailed
from appliance.detect.hef_file import HefNotes
from appliance.detect.network_runtime import CLOSED, Array, TensorSpec

NV12 = "NV12"
BATCH_SIZES = (1, 2, 4)  # HailoRT compiles nothing for a size; more frames wait for each other

log = logging.getLogger(__name__)


class HailoRuntime:
    """A network on a Hailo device, behind a helper process (see `hailo_process`).

    Frames are integers, rows of RGB or NV12; what the network was trained with is done on the chip. A device that is
    lost raises DetectorError until the helper has it again. `close`, or the end of the object, gives the device back.
    """

    def __init__(
        self,
        path: Path,
        settings: HailoConfig | None = None,
        *,
        score_min: float = 0.1,
        labels: tuple[str, ...] = (),
        labels_otherwise: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        """Start the helper process with the HEF. Raises ModelError.

        score_min: a HEF with NMS leaves out scores below it. labels: they replace those in the file beside the HEF.
        labels_otherwise: they are used where that file names none.
        """
        settings = settings or HailoConfig()
        header, notes = hef_file.read_header(path), hef_file.read_notes(path)
        names = labels or notes.labels or labels_otherwise
        if not names:
            raise _nameless(path)
        python = python_with_bindings(settings)
        asked = {
            "hef": str(path.resolve()),
            "score_min": score_min,
            "multi_process_service": settings.multi_process_service,
            "scheduler_timeout_ms": settings.scheduler_timeout_ms,
            "scheduler_threshold": settings.scheduler_threshold,
        }
        try:
            self.process = HailoProcess(python, asked, clock or SystemClock(), settings.answer_s)
        except HelperFailed as failure:
            words = hailo_cures.cure(failure, python, header, service=settings.multi_process_service)
            raise ModelError(f"{path}: detector.backend hailo: {words}") from None
        self._finalizer = weakref.finalize(self, self.process.close)
        found = self.process.description
        if wrong := hailo_cures.check_description(found, header):
            self.close()
            raise ModelError(f"{path}: detector.backend hailo: {wrong}")
        if slow := hailo_cures.advice(found, header):
            log.warning("%s: %s", path, slow)
        self.version = f"hailort {found.library}, {found.architecture}"
        self.mark = found.architecture or "hailo"
        self.takes_any_shape = False
        self.input_sizes: tuple[tuple[int, int], ...] = ()
        # Frames of one run are under way together, so that the device need not wait for the bus and for us.
        most = 1 if found.input.order == NV12 else self.process.slots
        self.batch_sizes = tuple(each for each in BATCH_SIZES if each == 1 or each <= most)
        self.inputs = (_frame_input(found.input),)
        self.metadata: Mapping[str, str] = _metadata(found, notes, names)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Nothing: the one shape was compiled."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network. Raises DetectorError if no answer comes in time, or the device is lost."""
        if not self._finalizer.alive:
            raise DetectorError(CLOSED)
        frame, wanted = feed[self.inputs[0].name], self.inputs[0]
        if tuple(frame.shape[1:]) != wanted.shape[1:] or frame.dtype != wanted.dtype or not len(frame):
            raise DetectorError(f"the network takes {wanted}, not {frame.dtype} {list(frame.shape)}")
        if len(frame) > self.process.slots:
            raise DetectorError(f"{len(frame)} frames are more than the {self.process.slots} that one run may hold")
        return self.process.infer(frame.reshape(len(frame), *self.process.description.input.shape))

    def close(self) -> None:
        """See NetworkRuntime."""
        self._finalizer()


def _nameless(path: Path) -> ModelError:
    return ModelError(
        f"{path}: a HEF does not name its classes: write {hef_file.notes_file(path).name} beside it "
        '({"names": ["person", "car"]}, or {"names": "coco-80"}), or set detector.labels to a file with one name a line'
    )


def _frame_input(stream: HailoStream) -> TensorSpec:
    """[n, height, width, 3]; of NV12, whose rows are one plane over the other, [1, height * 3 / 2, width].

    HailoRT gives NV12 the shape [height / 2, width, 3] (transform__h2d_NV12_to_NV12).
    """
    height, width, features = (*stream.shape, 0, 0, 0)[:3]
    if stream.order == NV12:
        return TensorSpec(stream.name, stream.dtype, (1, height * features, width))
    return TensorSpec(stream.name, stream.dtype, (None, height, width, features))


def _metadata(found: HailoDescription, notes: HefNotes, names: tuple[str, ...]) -> dict[str, str]:
    """In the words of an exporter, so that what reads ONNX files reads these."""
    streams = {each.name: {"order": each.order, "classes": each.classes} for each in found.outputs}
    return {
        "names": str(dict(enumerate(names))),
        "placing": notes.placing,
        "pixels": "nv12" if found.input.order == NV12 else notes.pixels,
        "hailo": json.dumps({"outputs": streams, "scores": notes.scores, "sides": notes.sides}),
    }
