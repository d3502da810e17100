"""Makes exports: a zip of a clip that may be handed over, a cover sheet and checksums."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import EvidenceError, PreconditionError, StoreError, UsageError
from appliance.base.local_files import (
    DiskWriteError,
    WrittenFile,
    discard_temporary,
    finish_file,
    temporary_path,
    write_file,
)
from appliance.config import CameraConfig
from appliance.dashboard.recordings import RecordingCuts
from appliance.evidence.privacy import clip_redaction
from appliance.media.recorded import PERCENT, ClipFile, ClipRedaction, RecordedSegment, progress_path
from appliance.media.recording_reader import RecordingReader
from appliance.sandbox.sandbox import SandboxError
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.boxes import BoxStore, kept_boxes
from appliance.store.database import Database
from appliance.store.exports import ExportRow, ExportStore, Hide
from appliance.store.paths import EVIDENCE, EXPORTS, SEGMENTS, inside
from appliance.store.segments import SegmentStore
from appliance.types import Alert
from appliance.web.templating import Templates

logger = logging.getLogger(__name__)

SPAN_S_MAX = 300.0  # a sandbox at a quarter of real time has done so much within its limit
AROUND_S = 5.0  # of the recording on each side of an alert whose clip is gone
CLIP, COVER, SUMS, ZIP = "clip.mp4", "cover.html", "SHA256SUMS", "export.zip"
RETRY_S, RETRIES_MAX = 10.0, 360  # for an hour; after a restart the row says so in any case
WAITING_MAX = 3  # exports that are made or wait; more are refused
ALERT_S_MAX = 3600.0  # the greatest `alerts.length_max_s`
ALERTS_MAX = 500  # of a span, whose objects stay visible
OPENINGS_A_MINUTE = 60  # of a link from one address: a player asks for a clip in parts
ADDRESSES_MAX = 1024  # counted in a minute


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """An order of an export: an alert, or (alert None) t0..t1 of the camera, UTC seconds."""

    camera: str
    alert: AlertDetail | None
    t0: float
    t1: float
    who: str
    why: str
    hide: Hide


def cover_sheet(templates: Templates, missed: float | None, row: ExportRow, clip: ClipFile) -> str:
    """Return the cover sheet of an export, HTML, in the language of the request that it is made in.

    missed: the share of people whom the camera's network misses; None: not measured.
    """
    page = templates.page(
        "cover.html", row=row, clip=clip, missed=missed, file=CLIP, made=iso_utc(row.t),
        begin=iso_utc(clip.t_start), end=iso_utc(clip.t_end),
    )  # fmt: skip
    return bytes(page.body).decode()


Cover = Callable[[ExportRow, ClipFile], str]
"""Renders the cover sheet of an export: `cover_sheet` in the templates of a site."""


class ClipExporter:
    """Makes exports, one at a time, and counts who opens links.

    State: the tasks under way, and openings of this minute by address. Owner: the event loop's thread; a sandbox makes
    the clip. Invariant: an export has its row before it has a file, so that whatever lies there is found and deleted.
    """

    def __init__(self, db: Database, root: Path, reader: RecordingReader, cuts: RecordingCuts, clock: Clock) -> None:
        """root: the storage folder. cameras, public_url: of the site file, set with each configuration."""
        self.store = ExportStore(db)
        with contextlib.suppress(StoreError):  # a disk that takes nothing is told elsewhere
            self.store.interrupt(root, "the appliance was restarted while it was made: order it again")
        self.cameras: Mapping[str, CameraConfig] = {}
        self.public_url = ""
        self._alerts, self._boxes, self._segments = AlertStore(db), BoxStore(db), SegmentStore(db)
        self._root = root
        self._reader = reader
        self._cuts = cuts
        self._clock = clock
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._openings: Counter[str] = Counter()
        self._minute = 0

    async def begin(self, order: ExportOrder, cover: Cover) -> ExportRow:
        """Begin an export, and return its row. Raise UsageError, PreconditionError, StoreError."""
        if order.camera not in self.cameras:
            raise UsageError("there is no such camera in the site file")
        if len(self._tasks) >= WAITING_MAX:
            raise PreconditionError("other exports are being made; try again when they are done")
        t0, t1 = order.t0, order.t1
        if order.alert is not None:
            t0, t1 = _span_of(order.alert, self._clock.now())
        if not t0 < t1 <= t0 + SPAN_S_MAX:
            raise UsageError(f"at most {SPAN_S_MAX / 60:g} minutes are exported at a time")
        row = ExportRow(
            id=secrets.token_hex(8), t=self._clock.now(), who=order.who, why=order.why, camera=order.camera,
            alert="" if order.alert is None else order.alert.alert.id, t_start=t0, t_end=t1, hide=order.hide,
        )  # fmt: skip
        await asyncio.to_thread(self.store.add, row)
        task = asyncio.create_task(self._make(row, order.alert, cover), name=f"export {row.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return row

    def progress(self, row: ExportRow) -> float:
        """Return the share of the clip that is made, 0..1."""
        if row.files.state != "making":
            return 1.0
        with contextlib.suppress(OSError):
            return min(PERCENT, progress_path(self._folder(row) / CLIP).stat().st_size) / PERCENT
        return 0.0

    def file(self, row: ExportRow, name: str) -> Path | None:
        """Return the zip or the clip of an export; None: it is not there."""
        path = self._folder(row) / name
        return path if row.files.state == "ready" and path.is_file() else None

    def delete(self, row: ExportRow) -> None:
        """Delete the files of an export, and end its link. Raises StoreError."""
        self.store.delete(row, self._root)

    def may_open(self, address: str) -> bool:
        """Count an opening of a link from an address. False: there were too many in this minute."""
        minute = int(self._clock.monotonic() // 60)
        if minute != self._minute or len(self._openings) >= ADDRESSES_MAX:
            self._minute = minute
            self._openings.clear()
        self._openings[address] += 1
        return self._openings[address] <= OPENINGS_A_MINUTE

    def _folder(self, row: ExportRow) -> Path:
        return inside(self._root, row.folder, EXPORTS)

    async def _make(self, row: ExportRow, alert: AlertDetail | None, cover: Cover) -> None:
        try:
            async with self._turn:
                clip = await asyncio.to_thread(self._make_clip, row, alert)
            written = await asyncio.to_thread(_pack, self._folder(row), clip, cover(row, clip))
            made = await asyncio.to_thread(self.store.finished, row.id, size=written.bytes, sha256=written.sha256)
            if not made:  # it was deleted meanwhile, or its span erased
                shutil.rmtree(self._folder(row), ignore_errors=True)
        except (EvidenceError, SandboxError, StoreError, OSError) as error:
            logger.warning("the export %s of %s cannot be made: %s", row.id, row.camera, error)
            shutil.rmtree(self._folder(row), ignore_errors=True)
            await self._failed(row, str(error))

    async def _failed(self, row: ExportRow, problem: str) -> None:
        """Say that an export failed; where the disk is full, once it takes that: a page waits for it."""
        for _ in range(RETRIES_MAX):
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(self.store.finished, row.id, problem=problem)
                return
            await asyncio.sleep(RETRY_S)

    def _make_clip(self, row: ExportRow, alert: AlertDetail | None) -> ClipFile:
        sources = self._sources(row, alert)
        self._cuts.check_room(sum(each.path.stat().st_size for each in sources))
        redaction = self._redaction(row, alert)
        return self._reader.redacted_clip(sources, row.t_start, row.t_end, self._folder(row) / CLIP, redaction)

    def _sources(self, row: ExportRow, alert: AlertDetail | None) -> list[RecordedSegment]:
        """Return the alert's own clip, else the recording."""
        try:
            if alert is not None and (piece := alert.piece("clip")) is not None and piece.state == "ready":
                return [RecordedSegment(inside(self._root, piece.path, EVIDENCE), piece.t_start, piece.t_end)]
            rows = self._segments.covering(row.camera, row.t_start, row.t_end)
            found = [
                RecordedSegment(inside(self._root, each.path, SEGMENTS), each.t_start, each.t_end) for each in rows
            ]
        except StoreError as error:
            raise EvidenceError(str(error)) from None
        if not found:
            raise EvidenceError("nothing is recorded in this time")
        return found

    def _redaction(self, row: ExportRow, alert: AlertDetail | None) -> ClipRedaction:
        frames = self._boxes.span(row.camera, row.t_start - 1, row.t_end + 1)
        alerts = [alert.alert] if alert is not None else self._alerts_of(row)
        own: dict[tuple[float, int], str] = {}
        if not frames and alert is not None:  # they were deleted with the recording
            frames = kept_boxes(self._root, alert)
            own = {
                (frame.t, each.track): str(each.track)
                for frame in frames for each in frame.objects if each.track in alert.alert.tracks
            }  # fmt: skip
        else:
            for each in alerts:
                seen = self._boxes.span(row.camera, row.t_start - 1, row.t_end + 1, run=each.run or None)
                tracks = set(each.tracks)
                own.update(
                    ((frame.t, found.track), f"{each.run}/{found.track}")
                    for frame in seen for found in frame.objects if found.track in tracks
                )  # fmt: skip
        camera = self.cameras.get(row.camera)
        if camera is None:  # it was removed while the export waited for its turn
            raise EvidenceError("the camera is no longer in the site file, which says what is masked")
        return clip_redaction(camera, row.hide, frames, own)

    def _alerts_of(self, row: ExportRow) -> list[Alert]:
        wanted = AlertQuery(camera=row.camera, from_t=row.t_start - ALERT_S_MAX, to_t=row.t_end)
        return [
            each.alert for each in self._alerts.page(None, ALERTS_MAX, wanted)
            if each.alert.t_end is None or each.alert.t_end >= row.t_start
        ]  # fmt: skip


def _span_of(alert: AlertDetail, now: float) -> tuple[float, float]:
    """Return the alert's clip from beginning to end, else the alert with a few seconds around it."""
    piece = alert.piece("clip")
    if piece is not None and piece.state == "ready":
        return piece.t_start, piece.t_end
    end = now if alert.alert.t_end is None else alert.alert.t_end
    return alert.alert.t_start - AROUND_S, min(end, alert.alert.t_start + SPAN_S_MAX - 2 * AROUND_S) + AROUND_S


def _pack(folder: Path, clip: ClipFile, cover: str) -> WrittenFile:
    """Write the zip: clip, cover sheet, and the SHA-256 of both. Raises DiskWriteError."""
    sheet = write_file(folder / COVER, cover.encode())
    write_file(folder / SUMS, f"{clip.written.sha256}  {CLIP}\n{sheet.sha256}  {COVER}\n".encode())
    path = folder / ZIP
    temporary = temporary_path(path)
    try:
        with zipfile.ZipFile(temporary, "w") as packed:
            for name in (COVER, CLIP, SUMS):
                packed.write(folder / name, name)
    except OSError as error:
        discard_temporary(temporary)
        raise DiskWriteError(f"{path.name} cannot be written: {error.strerror}") from None
    return finish_file(path)
