"""Reads pictures and clips that came through the API: decoded in the sandbox, redacted, and kept as evidence.

The person who uploads one asks about it: a *question*, which becomes an escalation when somebody is to answer it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from appliance import wire
from appliance.base.local_files import write_file
from appliance.config import CameraConfig, EscalationConfig
from appliance.evidence.evidence_selection import EncodedImage, EvidenceMoment, encoded_image, order_image
from appliance.evidence.privacy import PeopleInFrame, Redactor
from appliance.media.recorded import FrameImages, ImageOrder, RecordedSegment
from appliance.media.recording_reader import RecordingReader
from appliance.store.paths import CUTS, EVIDENCE, evidence_folder
from appliance.types import Box

DETECT_SIDE_MAX = 1280  # pixels; the shared detector sees at most 640 of them
DETECT_QUALITY = 90  # JPEG; less costs small objects their edges
CLIP_FRAMES = 4  # as escalation.frames by default: each is an inference, and a picture for the model
CLIP_S_MAX = 60.0  # seconds of a clip that are looked at
ASKED = "ask-"  # begins the id of a question that came through the API


@dataclass(frozen=True, slots=True)
class UploadedFrame:
    """A picture, or a frame of a clip, at `t` seconds into it.

    shown: JPEG for the local detector; sent: the redacted form that may leave the site.
    """

    t: float
    shown: bytes
    sent: EncodedImage


class UploadReader:
    """Reads what was uploaded. Any thread; the reader serves one call at a time. Holds no state."""

    def __init__(self, root: Path, reader: RecordingReader, settings: EscalationConfig) -> None:
        """root: the storage folder. reader: decodes in a sandbox, since an upload is hostile data."""
        self._root = root
        self._reader = reader
        self._settings = settings

    def frames(self, media: bytes, *, clip: bool, camera: CameraConfig, t: float) -> list[UploadedFrame]:
        """Return the frames; the camera's masks are painted over the sent form. Raise EvidenceError.

        t: when it was taken, UTC seconds.
        """
        redaction = Redactor(camera).redaction(PeopleInFrame((), ()))
        moment = EvidenceMoment(t, None)
        order = order_image("frame", self._settings, moment, redaction)
        orders = [ImageOrder(side_max=DETECT_SIDE_MAX, quality=DETECT_QUALITY), order]
        with self._file(media) as path:
            found = self._of_clip(path, orders) if clip else [self._reader.file_images(path, 0.0, orders)]
        return [
            UploadedFrame(each.t, each.images[0].data, encoded_image(order, t + each.t, moment, each.images[1]))
            for each in found
        ]

    def _of_clip(self, path: Path, orders: Sequence[ImageOrder]) -> list[FrameImages]:
        whole = RecordedSegment(path, 0.0, CLIP_S_MAX)
        copied = path.with_suffix(".copy.mp4")
        try:
            length_s = self._reader.clip([whole], 0.0, CLIP_S_MAX, copied).t_end
            part = RecordedSegment(copied, 0.0, length_s)
            times = [length_s * (n + 0.5) / CLIP_FRAMES for n in range(CLIP_FRAMES)]
            return self._reader.images([part], [(each, orders) for each in times])
        finally:
            copied.unlink(missing_ok=True)

    def keep(
        self, name: str, camera: CameraConfig, frames: Sequence[UploadedFrame], boxes: Sequence[Box | None]
    ) -> tuple[tuple[wire.MediaRef, str], ...]:
        """Write the redacted frames as evidence of the question `name`; return them with paths. Raise DiskWriteError.

        boxes: the box of the requested object in each frame; None: not detected there.
        """
        digest = Redactor(camera).digest
        kept: dict[str, tuple[wire.MediaRef, str]] = {}
        for n, (each, box) in enumerate(zip(frames, boxes, strict=True)):
            if each.sent.ref.id in kept:
                continue
            mark = f".{digest}" if digest else ""
            path = f"{evidence_folder(name)}/frame-{n}{mark}.{each.sent.suffix}"
            write_file(self._root / path, each.sent.data)
            kept[each.sent.ref.id] = (each.sent.ref.model_copy(update={"box": box}), path)
        return tuple(kept.values())

    def forget(self, name: str) -> None:
        """Delete what `keep` has written: the question goes to nobody."""
        shutil.rmtree(self._root / evidence_folder(name), ignore_errors=True)

    @contextlib.contextmanager
    def _file(self, media: bytes) -> Iterator[Path]:
        path = self._root / CUTS / f"upload-{uuid4().hex}.mp4"
        try:
            write_file(path, media)
            yield path
        finally:
            path.unlink(missing_ok=True)


def forget_unasked(root: Path, is_known: Callable[[str], bool]) -> None:
    """Delete the pictures of questions that a kill left without a row. root: the storage folder. For the start."""
    for folder in (root / EVIDENCE).glob(f"{ASKED}*"):
        if not is_known(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
