"""Frames that a decoder left on the GPU and a network there takes where they lie, not by way of the host.

Only whole frames: parts of one are drawn side by side on the host. A frame that is looked at visits the host all the
same: motion gate and tracker look at a copy, made once for both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import av

from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.errors import MissingDependency, ModelError
from appliance.detect.detector import ObjectDetector
from appliance.detect.letterbox import GpuFrame, GpuFrameRuntime
from appliance.media.frames import device_format, quarter_turns
from appliance.types import Detections

logger = logging.getLogger(__name__)

_BT709, _FULL_RANGE = 1, 2  # AVCOL_SPC_BT709, AVCOL_RANGE_JPEG; swscale takes what is not named for BT.601, limited


def gpu_frame_of(frame: av.VideoFrame) -> GpuFrame | None:
    """Where NVDEC left a frame; None: it is elsewhere, not 8 bit NV12, or has to be turned."""
    if frame.format.name != "cuda" or device_format(frame) != "nv12" or quarter_turns(frame):
        return None
    luma, chroma = frame.planes
    return GpuFrame(
        luma.buffer_ptr,
        luma.line_size,
        chroma.buffer_ptr,
        chroma.line_size,
        frame.width,
        frame.height,
        "bt709" if frame.colorspace == _BT709 else "bt601",
        frame.color_range == _FULL_RANGE,
        frame,
    )


class GpuHandOver:
    """Calls the detector, on the GPU where all frames of a call lie there and it takes them.

    State: whether it does. Where the kernel cannot be had, frames go by the host, and the log has said so. Owner:
    the detector's thread.
    """

    def __init__(self, detector: ObjectDetector) -> None:
        self.detector = detector
        self._on_gpu = takes_gpu_frames(detector)

    def detect(self, requests: Sequence[InferenceRequest]) -> list[Detections]:
        """One answer for each request, in order. Raises DetectorError."""
        frames = [request.gpu_frame for request in requests if request.gpu_frame is not None]
        if self._on_gpu and len(frames) == len(requests):
            try:
                return list(self.detector.detect_on_gpu(frames))  # type: ignore[attr-defined]
            except (MissingDependency, ModelError) as error:
                self._on_gpu = False
                logger.warning("frames are copied from the GPU and back to it: %s", error)
        return self.detector.detect([request.tracks.detector_input(request) for request in requests])


def takes_gpu_frames(detector: ObjectDetector) -> bool:
    """Its network runs where NVDEC leaves frames, and has the kernel that lays them into its input."""
    return isinstance(getattr(detector, "runtime", None), GpuFrameRuntime)
