"""Exports reviewed alerts as training data, split by incident, alert by alert so that an interrupted run continues."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import UsageError
from appliance.config import StorageConfig
from appliance.lab.export import coco_yolo_formats, export_images
from appliance.lab.export.coco_yolo_formats import NOT_REVIEWED, STILL_OPEN, ExportReport, export_readme, report_of
from appliance.lab.export.export_folder import (
    ExportedAlert,
    ExportFolder,
    ExportSample,
    ExportSettings,
    LabelledBox,
    Split,
)
from appliance.lab.export.export_images import ExportImage
from appliance.media.atomic_file import DiskWriteError
from appliance.store.archive import StorageArchive
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertDetail, AlertRow
from appliance.types import Review

PAGE = 500  # alerts read at once
# Seconds between alerts of one incident: one that outlasts `length_max_s`, or during which the camera reconnected,
# is reported in several alerts.
INCIDENT_GAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenAlert:
    """An alert and the incident it belongs to, named after its first alert."""

    alert: AlertRow
    incident: str


def every_alert(archive: StorageArchive) -> Iterator[AlertRow]:
    """All alerts in order of camera and time, page by page. Raises StoreError."""
    after: tuple[str, float, str] | None = None
    while rows := archive.alerts(after, PAGE):
        yield from rows
        last = rows[-1]
        after = (last.camera, last.t_start, last.id)


def incidents(rows: Iterable[AlertRow]) -> Iterator[ChosenAlert]:
    """Each alert with its incident: alerts of one camera that follow on each other within INCIDENT_GAP_S are one.

    rows: all alerts in order of camera and time, so that the incident does not depend on the selection.
    """
    camera, until, incident = "", float("-inf"), ""
    for row in rows:
        if row.camera != camera or row.t_start - until > INCIDENT_GAP_S:
            camera, until, incident = row.camera, float("-inf"), row.id
        until = max(until, row.t_start if row.t_end is None else row.t_end)
        yield ChosenAlert(alert=row, incident=incident)


def split_of(incident: str, share: float) -> Split:
    """`train` for about `share` of all incidents. Depends on nothing else, so a later export moves no incident."""
    number = int.from_bytes(hashlib.sha256(f"split|{incident}".encode()).digest()[:8], "big")
    return "train" if number < share * 2**64 else "val"


ExportProgress = Callable[[int, int], None]
_REVIEWS: tuple[Review, ...] = ("reviewed", "false_alarm")
_STILL_OFF_S_MAX = 0.06  # between an alert's still and the frame whose boxes label it
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class Exporter:
    """One export of one appliance into one folder. Reads the store beside a running appliance; writes below `to` only.

    It leaves storage.disk_free_min_mb free on the disk that the appliance records to.
    """

    def __init__(
        self,
        storage: StorageConfig,
        settings: ExportSettings,
        to: Path,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._archive = StorageArchive(storage.dir)
        self._folder = ExportFolder(to)
        self._free_bytes = free_bytes
        self._skipped: Counter[str] = Counter()
        self._reused = 0

    def run(self, progress: ExportProgress | None = None) -> ExportReport:
        """Write all of it.

        Raises UsageError, StoreError, and DiskWriteError: then what is there is whole, and the same command continues.
        """
        chosen = list(self._chosen())
        self._folder.begin(self._settings)
        exported = []
        for number, each in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen))
            exported.append(self._export(each))
        settings = self._settings
        exported.sort(key=lambda each: (each.t_start, each.alert))
        report = report_of(exported, self._skipped, settings.site, settings.format, settings.labels, self._reused)
        self._finish(exported, report)
        return report

    def must_have_room(self, bytes_needed: int = 0) -> None:
        """Raise DiskWriteError where an export would fill the disk that the appliance records to."""
        root, storage = self._folder.root, self._storage
        if root.stat().st_dev != storage.dir.stat().st_dev:
            return
        if self._free_bytes(root) - bytes_needed < storage.disk_free_min_mb * 1e6:
            raise DiskWriteError(
                f"the disk must keep {storage.disk_free_min_mb:.0f} MB free for the recording "
                "(storage.disk_free_min_mb): export to another disk, or make room and run the same command again"
            )

    def _chosen(self) -> Iterator[ChosenAlert]:
        """Return the reviewed alerts of the selection; the others are counted."""
        settings = self._settings
        for each in incidents(every_alert(self._archive)):
            alert = each.alert
            if settings.cameras is not None and alert.camera not in settings.cameras:
                continue
            if alert.t_start < (settings.t_from or float("-inf")) or alert.t_start >= (settings.t_to or float("inf")):
                continue
            if alert.review not in _REVIEWS:
                self._skipped[NOT_REVIEWED] += 1
            elif alert.t_end is None:
                self._skipped[STILL_OPEN] += 1
            else:
                yield each

    def _export(self, chosen: ChosenAlert) -> ExportedAlert:
        name = evidence_folder(chosen.alert.id).rpartition("/")[2]
        before = self._folder.noted(name)
        if before is not None and before.review == chosen.alert.review and before.samples:
            self._reused += 1
            return before
        self.must_have_room()
        detail = self._archive.alert(chosen.alert.id)
        if detail is None or detail.alert.review is None:
            raise UsageError(f"alert {chosen.alert.id} was changed meanwhile: run the same command again")
        exported = self._make(detail, name, split_of(chosen.incident, self._settings.split) == "train")
        self._folder.note(name, exported)
        return exported

    def _make(self, detail: AlertDetail, name: str, train: bool) -> ExportedAlert:
        alert = detail.alert
        assert alert.review is not None
        blank = ExportedAlert(
            alert=alert.id,
            camera=alert.camera,
            t_start=alert.t_start,
            review=alert.review,
            split="train" if train else "val",
        )
        found, why = self._images_of(detail, background=blank.background)
        samples = []
        for t, (image, drawn) in found.items():
            file = f"{_UNSAFE.sub('_', alert.camera)}-{name}-{round((t - alert.t_start) * 1000):06d}.jpg"
            sample = ExportSample(file=file, t=t, width=image.width, height=image.height, drawn=drawn)
            self._folder.write(ExportFolder.image(blank, file), image.data)
            if self._settings.format == "yolo":
                self._folder.write(
                    coco_yolo_formats.yolo_label_file(blank, sample),
                    coco_yolo_formats.yolo_label_text(sample, self._settings.labels),
                )
            samples.append(sample)
        return blank.model_copy(update={"samples": tuple(samples), "left_out": "" if samples else why})

    def _images_of(
        self, detail: AlertDetail, *, background: bool
    ) -> tuple[dict[float, tuple[ExportImage, tuple[LabelledBox, ...]]], str]:
        """Return the images of an alert by their moment, each with its labels; or none, and why."""
        tracks, labels, count = detail.alert.tracks, self._settings.labels, self._settings.per_alert
        frames = export_images.examined_frames(self._archive, detail)
        if not background and not set(detail.alert.labels) & set(labels):
            return {}, "with other labels"
        if not frames:
            return {}, "without boxes, which were not kept"
        choose = export_images.choose_backgrounds if background else export_images.choose_labelled
        wanted = choose(frames, tracks, labels, count)
        if not wanted:
            return {}, "with something else in every picture" if background else "without a box of these labels"
        cut = export_images.cut_images(self._archive, detail, [frame.t for frame in wanted])
        if not cut:
            kept = export_images.still_image(self._archive, detail)
            near = [] if kept is None else [frame for frame in frames if abs(frame.t - kept[0]) <= _STILL_OFF_S_MAX]
            wanted = choose(near, tracks, labels, 1)
            cut = {wanted[0].t: kept[1]} if kept is not None and wanted else {}
        images = {
            frame.t: (cut[frame.t], () if background else export_images.labels_in(frame, tracks, labels))
            for frame in wanted
            if frame.t in cut
        }
        return images, "without a picture, which was not kept"

    def _finish(self, exported: list[ExportedAlert], report: ExportReport) -> None:
        files = []
        for each in exported:
            for sample in each.samples:
                files += [ExportFolder.image(each, sample.file), coco_yolo_formats.yolo_label_file(each, sample)]
        names = [evidence_folder(each.alert).rpartition("/")[2] for each in exported]
        self._folder.prune(names, files)
        if self._settings.format == "coco":
            written = coco_yolo_formats.coco_files(exported, self._settings.labels, self._settings.site)
        else:
            written = {"data.yaml": coco_yolo_formats.yolo_data_yaml(self._settings.labels)}
        for relative, data in {**written, "README.md": export_readme(report)}.items():
            self._folder.write(relative, data)
        for split in ("train", "val"):
            (self._folder.root / "images" / split).mkdir(parents=True, exist_ok=True)
        self._folder.complete(self._settings)
