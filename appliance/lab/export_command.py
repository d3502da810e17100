"""`vedette export`: reviewed alerts as training data, split by incident.

Goes alert by alert, so that an interrupted run continues: chooses the frames of each and their labels, and cuts the
images from recording, clip or still.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from appliance import config
from appliance.base.clock import SystemClock, parse_moment
from appliance.base.console import COUNTED, CommandProgress, text_console
from appliance.base.errors import UsageError
from appliance.base.local_files import DiskWriteError
from appliance.config import DecisionConfig, StorageConfig
from appliance.lab.export_folder import (
    NO_CONSENT,
    NOT_REVIEWED,
    SPLITS,
    STILL_OPEN,
    ExportedAlert,
    ExportFolder,
    ExportFormat,
    ExportReport,
    ExportSample,
    ExportSettings,
    LabelledBox,
    Split,
    coco_files,
    export_readme,
    report_of,
    yolo_data_yaml,
    yolo_label_file,
    yolo_label_text,
    zip_folder,
)
from appliance.lab.export_samples import (
    CLASSES,
    INDEX_FILE,
    ExportImage,
    answer_of,
    answered_by,
    answerer_of,
    choose_backgrounds,
    choose_labelled,
    cut_images,
    examined_frames,
    index_file,
    labels_in,
    missed_boxes,
    still_image,
)
from appliance.store.alert_rows import AlertRow
from appliance.store.alerts import AlertDetail
from appliance.store.paths import evidence_folder
from appliance.store.storage_reader import StorageArchive
from appliance.types import Review

PAGE = 500  # alerts read at once
# Seconds between alerts of one incident: one that outlasts `length_max_s`, or during which the camera reconnected,
# is reported in several alerts.
INCIDENT_GAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenAlert:
    """An alert and the incident it belongs to, named after its first alert."""

    row: AlertRow
    incident: str


def every_alert(archive: StorageArchive, *, audited: bool = False) -> Iterator[AlertRow]:
    """Yield all alerts, or audited frames, in order of camera and time, page by page. Raises StoreError."""
    after: tuple[str, float, str] | None = None
    while rows := archive.alerts(after, PAGE, audited=audited):
        yield from rows
        last = rows[-1].alert
        after = (last.camera, last.t_start, last.id)


def incidents(rows: Iterable[AlertRow]) -> Iterator[ChosenAlert]:
    """Yield each alert with its incident: alerts of one camera within INCIDENT_GAP_S of each other are one.

    rows: all alerts in order of camera and time, so that the incident does not depend on the selection.
    """
    camera, until, incident = "", float("-inf"), ""
    for row in rows:
        alert = row.alert
        if alert.camera != camera or alert.t_start - until > INCIDENT_GAP_S:
            camera, until, incident = alert.camera, float("-inf"), alert.id
        until = max(until, alert.t_start if alert.t_end is None else alert.t_end)
        yield ChosenAlert(row=row, incident=incident)


def split_of(incident: str, share: float) -> Split:
    """Return `train` for about `share` of all incidents. It depends on nothing else: none moves later."""
    number = int.from_bytes(hashlib.sha256(f"split|{incident}".encode()).digest()[:8], "big")
    return "train" if number < share * 2**64 else "val"


ExportProgress = Callable[[int, int], None]
_REVIEWS: tuple[Review, ...] = ("reviewed", "false_alarm")
_STILL_OFF_S_MAX = 0.06  # between an alert's still and the frame whose boxes label it
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class Exporter:
    """One export of one appliance into one folder. Reads the store beside a running appliance; writes below `to` only.

    It leaves storage.disk_free_min_mb free on the disk that the appliance records to. consenting: the cameras whose
    pictures may train a network, as the site file read at `read_t` says; the format `training` takes no other, and
    removes what an earlier run took.
    """

    def __init__(
        self,
        storage: StorageConfig,
        settings: ExportSettings,
        to: Path,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        consenting: Collection[str] = (),
        read_t: float = 0.0,
    ) -> None:
        self._storage = storage
        self._consenting, self._read_t = consenting, read_t
        self._training = settings.format == "training"
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
        """Return the reviewed alerts of the selection, and audited frames that may teach; the others are counted."""
        settings = self._settings
        audited = every_alert(self._archive, audited=True) if self._training else ()
        frames = (ChosenAlert(row=row, incident=row.alert.id) for row in audited)
        for each in itertools.chain(incidents(every_alert(self._archive)), frames):
            alert = each.row.alert
            if settings.cameras is not None and alert.camera not in settings.cameras:
                continue
            if alert.t_start < (settings.t_from or float("-inf")) or alert.t_start >= (settings.t_to or float("inf")):
                continue
            if self._training and alert.camera not in self._consenting:
                self._skipped[NO_CONSENT] += 1
            elif self._answer(each.row) not in _REVIEWS or each.row.reviewed.deleted_t is not None:
                self._skipped[NOT_REVIEWED] += 1
            elif alert.t_end is None:
                self._skipped[STILL_OPEN] += 1
            else:
                yield each

    def _answer(self, row: AlertRow) -> Review | None:
        return answer_of(row) if self._training else row.reviewed.review

    def _export(self, chosen: ChosenAlert) -> ExportedAlert:
        row, alert_id = chosen.row, chosen.row.alert.id
        name = evidence_folder(alert_id).rpartition("/")[2]
        before = self._folder.noted(name)
        by = answerer_of(row) if self._training else ""
        if before and before.samples and (before.review, before.answered_by) == (self._answer(row), by):
            self._reused += 1
            return before
        self.must_have_room()
        detail = self._archive.alert(alert_id)
        if detail is None or self._answer(detail.row) is None:
            raise UsageError(f"alert {alert_id} was changed meanwhile: run the same command again")
        exported = self._make(detail, name, split_of(chosen.incident, self._settings.split) == "train")
        self._folder.note(name, exported)
        return exported

    def _make(self, detail: AlertDetail, name: str, train: bool) -> ExportedAlert:
        alert = detail.alert
        answer = self._answer(detail.row)
        assert answer is not None
        blank = ExportedAlert(
            alert=alert.id,
            camera=alert.camera,
            t_start=alert.t_start,
            review=answer,
            split="train" if train else "val",
            audited=detail.row.audit,
            **(answered_by(detail) if self._training else {}),
        )
        choose = self._audited_image if detail.row.audit else self._images_of
        found, why = choose(detail, background=blank.background)
        samples = []
        for t, (image, drawn) in found.items():
            file = f"{_UNSAFE.sub('_', alert.camera)}-{name}-{round((t - alert.t_start) * 1000):06d}.jpg"
            sample = ExportSample(file=file, t=t, width=image.width, height=image.height, drawn=drawn)
            self._folder.write(ExportFolder.image(blank, file), image.data)
            if self._settings.format == "yolo":
                self._folder.write(
                    yolo_label_file(blank, sample),
                    yolo_label_text(sample, self._settings.labels),
                )
            samples.append(sample)
        return blank.model_copy(update={"samples": tuple(samples), "left_out": "" if samples else why})

    def _images_of(
        self, detail: AlertDetail, *, background: bool
    ) -> tuple[dict[float, tuple[ExportImage, tuple[LabelledBox, ...]]], str]:
        """Return the images of an alert by their moment, each with its labels; or none, and why."""
        tracks, labels, count = detail.alert.tracks, self._settings.labels, self._settings.per_alert
        frames = examined_frames(self._archive, detail)
        if not background and not set(detail.alert.labels) & set(labels):
            return {}, "with other labels"
        if not frames:
            return {}, "without boxes, which were not kept"
        choose = choose_backgrounds if background and not self._training else choose_labelled
        wanted = choose(frames, tracks, labels, count)
        if not wanted:
            return {}, "with something else in every picture" if background else "without a box of these labels"
        cut = cut_images(self._archive, detail, [frame.t for frame in wanted])
        if not cut:
            kept = still_image(self._archive, detail)
            near = [] if kept is None else [frame for frame in frames if abs(frame.t - kept[0]) <= _STILL_OFF_S_MAX]
            wanted = choose(near, tracks, labels, 1)
            cut = {wanted[0].t: kept[1]} if kept is not None and wanted else {}
        images = {
            frame.t: (cut[frame.t], () if background and not self._training else labels_in(frame, tracks, labels))
            for frame in wanted
            if frame.t in cut
        }
        return images, "without a picture, which was not kept"

    def _audited_image(
        self, detail: AlertDetail, *, background: bool
    ) -> tuple[dict[float, tuple[ExportImage, tuple[LabelledBox, ...]]], str]:
        """Return an audited frame with what was tracked and what was missed in it; or none, and why."""
        missed, labels = missed_boxes(detail, self._settings.labels), self._settings.labels
        if not set(detail.alert.labels) & set(labels):
            return {}, "with other labels"
        if not background and not missed:
            return {}, "in which something was missed, and nothing says where"
        frames = examined_frames(self._archive, detail)
        if not frames:
            return {}, "without boxes, which were not kept"
        cut = cut_images(self._archive, detail, [frames[0].t])
        tracked = labels_in(frames[0], (), labels)
        drawn = tracked if background else (*tracked, *missed)
        return {t: (image, drawn) for t, image in cut.items()}, "without a picture, which was not kept"

    def _finish(self, exported: list[ExportedAlert], report: ExportReport) -> None:
        files = []
        for each in exported:
            for sample in each.samples:
                files += [ExportFolder.image(each, sample.file), yolo_label_file(each, sample)]
        names = [evidence_folder(each.alert).rpartition("/")[2] for each in exported]
        self._folder.prune(names, files)
        if self._training:
            site = self._settings.site
            written = {INDEX_FILE: index_file(exported, self._folder.root, site, self._read_t)}
        elif self._settings.format == "coco":
            written = coco_files(exported, self._settings.labels, self._settings.site)
        else:
            written = {"data.yaml": yolo_data_yaml(self._settings.labels)}
        for relative, data in {**written, "README.md": export_readme(report)}.items():
            self._folder.write(relative, data)
        for split in ("train", "val"):
            (self._folder.root / "images" / split).mkdir(parents=True, exist_ok=True)
        self._folder.complete(self._settings)


PER_ALERT_MAX = 200  # bound of --per-alert


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of `vedette export`."""

    format: ExportFormat
    to: Path
    t_from: str | None = None
    t_to: str | None = None
    labels: str | None = None
    cameras: str | None = None
    split: float = 0.8
    per_alert: int = 6
    zip: bool = False
    as_json: bool = False


def export_command(options: ExportOptions, site_file: Path) -> int:
    """Export. Return 0; raises UsageError, StoreError and DiskWriteError."""
    site = config.load(site_file)
    consenting = frozenset(name for name, camera in site.cameras.items() if camera.training)
    settings = export_settings(options, site.for_decisions())
    exporter = Exporter(site.storage, settings, options.to, consenting=consenting, read_t=SystemClock().now())
    with _progress(quiet=options.as_json) as progress:
        report = exporter.run(progress)
        zipped = _zipped(exporter, options.to) if options.zip else None
    if options.as_json:
        print(json.dumps({"folder": str(options.to), "zip": None if zipped is None else str(zipped), **asdict(report)}))
    else:
        _print(report, options.to, zipped, text_console(soft_wrap=True))
    return 0


def _zipped(exporter: Exporter, to: Path) -> Path:
    folder = ExportFolder(to)
    exporter.must_have_room(sum(file.stat().st_size for file in folder.files()))
    return zip_folder(folder)


def export_settings(options: ExportOptions, site: DecisionConfig) -> ExportSettings:
    """Return the options as settings. Raises UsageError."""
    if not 0 <= options.split <= 1:
        raise UsageError(f"--split is a share of the incidents, from 0 to 1; {options.split:g} is not")
    if not 1 <= options.per_alert <= PER_ALERT_MAX:
        raise UsageError(f"--per-alert is from 1 to {PER_ALERT_MAX}")
    watched = tuple(
        dict.fromkeys(label for camera in site.cameras.values() for rule in camera.rules for label in rule.labels)
    )
    if options.format == "training":
        watched = tuple(label for label in watched if label in CLASSES)
        if unknown := set(() if options.labels is None else _names(options.labels, "--labels")) - set(CLASSES):
            raise UsageError(f"--labels {min(unknown)}: the format `training` has {', '.join(CLASSES)}")
    labels = watched if options.labels is None else _names(options.labels, "--labels")
    cameras = None if options.cameras is None else _names(options.cameras, "--cameras")
    if not labels:
        raise UsageError("no rule of the site file watches for anything: say which labels with --labels")
    for camera in cameras or ():
        if camera not in site.cameras:
            raise UsageError(f"there is no camera `{camera}` (there is: {', '.join(site.cameras)})")
    t_from = None if options.t_from is None else parse_moment(options.t_from)
    t_to = None if options.t_to is None else parse_moment(options.t_to)
    if t_from is not None and t_to is not None and t_to <= t_from:
        raise UsageError("--to-time must be later than --from")
    return ExportSettings(
        site=site.site.name, format=options.format, labels=labels, cameras=cameras, t_from=t_from, t_to=t_to,
        split=options.split, per_alert=options.per_alert,
    )  # fmt: skip


def _names(text: str, option: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise UsageError(f"{option} is a list such as person,car")
    return found


def _print(report: ExportReport, to: Path, zipped: Path | None, console: Console) -> None:
    images = report.pictures
    console.print(
        f"{sum(images.values())} pictures in {escape(str(to))}: {images['train']} to train, {images['val']} to "
        f"validate; {report.boxes} boxes, {report.backgrounds} pictures of false alarms without one"
    )
    console.print(
        f"  {report.alerts['right']} right alerts and {report.alerts['false alarm']} false alarms"
        + (f", {audited} audited frames" if (audited := report.alerts.get("audited frame")) else "")
        + (f", {report.reused} of them from an earlier run" if report.reused else "")
    )
    console.print(f"  left out: {report.left_out_text}")
    for part in SPLITS:
        if sum(images.values()) and not images[part]:
            console.print(f"  nothing in {part} yet: so few incidents all fell into the other part")
    if zipped is not None:
        console.print(f"  and as {escape(str(zipped))}")
    console.print("  The boxes are the detector's own, and the pictures show people: read its README.md.")


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[ExportProgress]:
    with CommandProgress(*COUNTED, quiet=quiet) as bar:
        task = bar.add_task("exporting alerts", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
