"""The detections of a clip, frame by frame, kept in a file so that trackers are compared without inference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np

from appliance.base.detector_config import DetectorConfig
from appliance.media.frames import FrameConverter
from appliance.types import Detections


@dataclass(frozen=True, slots=True)
class FrameDetections:
    """frame: 0-based index in the clip; t: seconds."""

    frame: int
    t: float
    found: Detections


@dataclass(frozen=True, slots=True)
class ClipDetections:
    """All examined frames of a clip of `size` (width, height), in order."""

    model: str
    labels: tuple[str, ...]
    size: tuple[int, int]
    looks: tuple[FrameDetections, ...]

    def every(self, fps: float, phase: int = 0) -> ClipDetections:
        """At most `fps` a second from frame `phase` on, evenly, as the appliance samples while something moves."""
        chosen, due = [], None
        for frame in self.looks[phase:]:
            due = frame.t if due is None else due
            if frame.t >= due - 0.002:
                chosen.append(frame)
                due = max(due + 1 / fps, frame.t)
        return replace(self, looks=tuple(chosen))


def detect_clip(clip: Path, model: str) -> ClipDetections:
    """Detect on every frame as the appliance does: scaled by the decoder, default score_min. Raise ModelError."""
    from appliance.detect import detector  # needs ONNX Runtime; an environment with other trackers may not have it

    network, converter, found = detector.load(DetectorConfig(model=model)), FrameConverter(), []
    with av.open(str(clip)) as film:
        stream = film.streams.video[0]
        for index, frame in enumerate(film.decode(stream)):
            picture = converter.bgr(frame, network.preferred_size(frame.width, frame.height))
            found.append(FrameDetections(index, round(float(frame.time or 0.0), 3), network.detect([picture])[0]))
        size = (stream.width, stream.height)
    return ClipDetections(network.name, network.labels, size, tuple(found))


def save(path: Path, looks: ClipDetections) -> None:
    """As one .npz: rows of all frames one below the other, and how many belong to each."""
    found = [each.found for each in looks.looks]
    np.savez_compressed(
        path,
        model=looks.model,
        labels=np.array(looks.labels),
        size=np.array(looks.size),
        frame=np.array([each.frame for each in looks.looks]),
        t=np.array([each.t for each in looks.looks]),
        count=np.array([len(each) for each in found]),
        boxes=np.concatenate([each.boxes for each in found]),
        scores=np.concatenate([each.scores for each in found]),
        class_ids=np.concatenate([each.class_ids for each in found]),
    )


def load(path: Path) -> ClipDetections:
    """Load the file that `save` wrote."""
    with np.load(path) as kept:
        ends = np.cumsum(kept["count"])
        begins = ends - kept["count"]
        boxes, scores, class_ids = kept["boxes"], kept["scores"], kept["class_ids"]
        looks = tuple(
            FrameDetections(int(frame), float(t), Detections(boxes[a:b], scores[a:b], class_ids[a:b]))
            for frame, t, a, b in zip(kept["frame"], kept["t"], begins, ends, strict=True)
        )
        width, height = (int(side) for side in kept["size"])
        return ClipDetections(str(kept["model"]), tuple(str(each) for each in kept["labels"]), (width, height), looks)
