"""Exports reviewed alerts for fine-tuning: alert by alert, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.alerts.evidence_files import DiskRefused
from appliance.config import SiteConfig
from appliance.errors import UsageError
from appliance.export import coco, moments, pictures, yolo
from appliance.export.choice import Chosen, every_alert, incidents, split_of
from appliance.export.folder import Folder, Settings
from appliance.export.pictures import Picture
from appliance.export.readme import readme
from appliance.export.report import LASTS, NOT_REVIEWED, Report, report_of
from appliance.export.sample import Drawn, Exported, Sample
from appliance.store.archive import Archive
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertDetail
from appliance.types import Review

Progress = Callable[[int, int], None]
_REVIEWS: tuple[Review, ...] = ("reviewed", "false_alarm")
_STILL_OFF_S_MAX = 0.06
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class Export:
    """One export of one box into one folder. Reads the store beside a running appliance; writes below `to` only.

    It leaves storage.disk_free_min_mb free on the disk that the box records to.
    """

    def __init__(
        self,
        config: SiteConfig,
        settings: Settings,
        to: Path,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._config = config
        self._settings = settings
        self._archive = Archive(config.storage.dir)
        self._folder = Folder(to)
        self._free_bytes = free_bytes
        self._skipped: Counter[str] = Counter()
        self._reused = 0

    def run(self, progress: Progress | None = None) -> Report:
        """Write all of it. Raises UsageError, StoreError, and DiskRefused: then what is there is whole, and the same
        again goes on."""
        chosen = list(self._chosen())
        self._folder.begin(self._settings)
        exported = []
        for number, each in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen))
            exported.append(self._one(each))
        settings = self._settings
        exported.sort(key=lambda each: (each.t_start, each.alert))
        report = report_of(exported, self._skipped, settings.site, settings.format, settings.labels, self._reused)
        self._finish(exported, report)
        return report

    def must_have_room(self, bytes_needed: int = 0) -> None:
        """The disk that the box records to is not filled up by an export. Raises DiskRefused."""
        root, storage = self._folder.root, self._config.storage
        if root.stat().st_dev != storage.dir.stat().st_dev:
            return
        if self._free_bytes(root) - bytes_needed < storage.disk_free_min_mb * 1e6:
            raise DiskRefused(
                f"the disk must keep {storage.disk_free_min_mb:.0f} MB free for the recording "
                "(storage.disk_free_min_mb): export to another disk, or make room and run the same command again"
            )

    def _chosen(self) -> Iterator[Chosen]:
        """The reviewed alerts that are asked for; the others are counted."""
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
                self._skipped[LASTS] += 1
            else:
                yield each

    def _one(self, chosen: Chosen) -> Exported:
        name = evidence_folder(chosen.alert.id).rpartition("/")[2]
        before = self._folder.noted(name)
        if before is not None and before.review == chosen.alert.review and before.samples:
            self._reused += 1
            return before
        self.must_have_room()
        detail = self._archive.alert(chosen.alert.id)
        if detail is None or detail.alert.review is None:
            raise UsageError(f"alert {chosen.alert.id} was changed meanwhile: run the same command again")
        exported = self._made(detail, name, split_of(chosen.incident, self._settings.split) == "train")
        self._folder.note(name, exported)
        return exported

    def _made(self, detail: AlertDetail, name: str, train: bool) -> Exported:
        alert = detail.alert
        assert alert.review is not None
        blank = Exported(
            alert=alert.id,
            camera=alert.camera,
            t_start=alert.t_start,
            review=alert.review,
            split="train" if train else "val",
        )
        found, why = self._shots(detail, background=blank.background)
        samples = []
        for t, (picture, drawn) in found.items():
            file = f"{_UNSAFE.sub('_', alert.camera)}-{name}-{round((t - alert.t_start) * 1000):06d}.jpg"
            sample = Sample(file=file, t=t, width=picture.width, height=picture.height, drawn=drawn)
            self._folder.write(Folder.image(blank, file), picture.data)
            if self._settings.format == "yolo":
                self._folder.write(yolo.label_file(blank, sample), yolo.label_text(sample, self._settings.labels))
            samples.append(sample)
        return blank.model_copy(update={"samples": tuple(samples), "left_out": "" if samples else why})

    def _shots(
        self, detail: AlertDetail, *, background: bool
    ) -> tuple[dict[float, tuple[Picture, tuple[Drawn, ...]]], str]:
        """The pictures of an alert by their moment, each with its labels; or none, and why."""
        tracks, labels, count = detail.alert.tracks, self._settings.labels, self._settings.per_alert
        looks = moments.looks_of(self._archive, detail)
        if not background and not set(detail.alert.labels) & set(labels):
            return {}, "with other labels"
        if not looks:
            return {}, "without boxes, which were not kept"
        choose = moments.backgrounds if background else moments.labelled
        wanted = choose(looks, tracks, labels, count)
        if not wanted:
            return {}, "with something else in every picture" if background else "without a box of these labels"
        cut = pictures.cut(self._archive, detail, [look.t for look in wanted])
        if not cut:
            kept = pictures.still(self._archive, detail)
            near = [] if kept is None else [look for look in looks if abs(look.t - kept[0]) <= _STILL_OFF_S_MAX]
            wanted = choose(near, tracks, labels, 1)
            cut = {wanted[0].t: kept[1]} if kept is not None and wanted else {}
        shots = {
            look.t: (cut[look.t], () if background else moments.drawn(look, tracks, labels))
            for look in wanted
            if look.t in cut
        }
        return shots, "without a picture, which was not kept"

    def _finish(self, exported: list[Exported], report: Report) -> None:
        files = []
        for each in exported:
            for sample in each.samples:
                files += [Folder.image(each, sample.file), yolo.label_file(each, sample)]
        names = [evidence_folder(each.alert).rpartition("/")[2] for each in exported]
        self._folder.prune(names, files)
        if self._settings.format == "coco":
            written = coco.files(exported, self._settings.labels, self._settings.site)
        else:
            written = {"data.yaml": yolo.data_yaml(self._settings.labels)}
        for relative, data in {**written, "README.md": readme(report)}.items():
            self._folder.write(relative, data)
        for split in ("train", "val"):
            (self._folder.root / "images" / split).mkdir(parents=True, exist_ok=True)
        self._folder.complete(self._settings)
