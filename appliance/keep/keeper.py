"""Keeps a reviewed alert as a scenario: its footage, who watched it, and what a person said of it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from appliance.alerts.evidence_clip import Clip
from appliance.alerts.evidence_files import DiskRefused, write_file
from appliance.clock import Clock
from appliance.config import Camera, SiteConfig
from appliance.errors import EvidenceError, NotYet, UsageError
from appliance.keep.footage import cut, window_of
from appliance.keep.opening import opening_events
from appliance.keep.scenario_file import Frozen, scenario_text
from appliance.keep.shelf import CARD, NOTE_LENGTH_MAX, Kept, Shelf, Shelved
from appliance.keep.truth import AROUND_S, Known, Seen, Truth, Word, truth_of
from appliance.keep.watching import frozen, lead_s
from appliance.store.archive import Archive
from appliance.store.paths import SCENARIOS
from appliance.store.rows import AlertDetail
from appliance.types import Event, Review

ROLL_WAIT_S = 2.0  # the recorder flushes once a second
ROLL_S_MAX = 60.0
WORDS: dict[Review, Word] = {"reviewed": "right", "false_alarm": "false"}
_SAID = {"right": "right", "false": "a false alarm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How an alert is to be kept. name "": by camera and time; truth None: as it was reviewed.

    complete: the reviewer has seen the whole clip and says that nothing else in it should be reported.
    """

    name: str = ""
    note: str = ""
    truth: Word | None = None
    complete: bool = False


class Keeper:
    """Owner of the folder of kept scenarios; one alert is kept at a time. Any thread may call.

    Reads the store and the recording, writes only below its own folder. It leaves storage.disk_free_min_mb free.
    """

    def __init__(
        self,
        root: Path,
        config: SiteConfig,
        clock: Clock,
        folder: Path | None = None,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """root: the storage folder; folder: where scenarios go, if not `scenarios` in it."""
        self.shelf = Shelf(folder or root / SCENARIOS, clock)
        self._archive = Archive(root)
        self._config = config
        self._clock = clock
        self._free_bytes = free_bytes
        self._lock = threading.Lock()

    def of(self, alert_id: str) -> Shelved | None:
        """The scenario that was kept of an alert, the newest if there are several."""
        return next((each for each in self.shelf.all() if each.kept and each.kept.alert == alert_id), None)

    def keep(self, alert_id: str, wish: Wish) -> Shelved:
        """Write the scenario. Raises UsageError (NotYet: something has to be done first), EvidenceError (the footage
        is gone), DiskRefused and StoreError; nothing is left then."""
        with self._lock:
            return self._keep(alert_id, wish)

    def _keep(self, alert_id: str, wish: Wish) -> Shelved:
        detail = self._archive.alert(alert_id)
        if detail is None:
            raise UsageError(f"there is no alert {alert_id}: its id stands on its page, and in /api/v1/alerts")
        word = _word(detail, wish)
        name = self._name(detail, wish)
        camera = self._camera(detail)
        window = window_of(detail, camera, self._config.alerts)
        self._must_be_over(detail, window.t1)
        if len(wish.note) > NOTE_LENGTH_MAX:
            raise UsageError(f"the note has {len(wish.note)} characters; at most {NOTE_LENGTH_MAX}")
        self._must_have_room(detail, window.t0, window.t1)
        with self.shelf.placing(name) as folder:
            clip = cut(self._archive, detail, window, folder / f"{name}.mp4")
            truth = self._truth(detail, camera, clip, word, complete=wish.complete)
            said = Frozen(
                name=name, note=wish.note, clip=f"{name}.mp4", alert=alert_id, word=word, begin=clip.t_start,
                end=clip.t_end, lacks=clip.note, camera_name=detail.alert.camera, camera=camera,
                alerts=self._config.alerts, detector=self._config.detector, truth=truth, complete=wish.complete,
            )  # fmt: skip
            write_file(folder / f"{name}.scenario.yaml", scenario_text(said).encode())
            write_file(folder / CARD, self._card(said).model_dump_json(indent=2).encode())
        found = next((each for each in self.shelf.all() if each.name == name), None)
        if found is None:
            raise EvidenceError(f"the scenario {name} was deleted while it was being kept")
        return found

    def _name(self, detail: AlertDetail, wish: Wish) -> str:
        """The name that was asked for, or one made of camera and time. Raises UsageError when it cannot be."""
        if wish.name:
            self.shelf.must_be_free(wish.name)
            return wish.name
        before = self.of(detail.alert.id)
        if before is not None:
            raise NotYet(f"this alert is kept as `{before.name}` already: delete that, or give another name")
        begin = datetime.fromtimestamp(detail.alert.t_start, tz=timezone.utc)
        name = f"{detail.alert.camera}-{begin:%Y%m%d-%H%M%S}"
        self.shelf.must_be_free(name)
        return name

    def _camera(self, detail: AlertDetail) -> Camera:
        camera = self._config.cameras.get(detail.alert.camera)
        if camera is None:
            raise NotYet(
                f"the site file has no camera {detail.alert.camera} any more: keep the alert with the file of that time"
            )
        return frozen(detail.alert.camera, camera, detail.events, detail.alert.t_start)

    def _must_be_over(self, detail: AlertDetail, t1: float) -> None:
        if detail.alert.t_end is None:
            raise NotYet("the alert still lasts: keep it when it is over")
        if not detail.events:
            raise NotYet("nothing is known any more of what this alert reported, so there is nothing to prove")
        wait_s = t1 + ROLL_WAIT_S - self._clock.now()
        if 0 < wait_s < ROLL_S_MAX + ROLL_WAIT_S:  # beyond, the camera's clock is wrong
            raise NotYet(f"the last seconds of the clip are still being recorded: try again in {wait_s:.0f} s")

    def _must_have_room(self, detail: AlertDetail, t0: float, t1: float) -> None:
        needed = sum(row.bytes for row in self._archive.segments(detail.alert.camera, t0, t1))
        place = next(each for each in (self.shelf.folder, *self.shelf.folder.parents) if each.exists())
        spare = self._free_bytes(place) - self._config.storage.disk_free_min_mb * 1e6
        if needed > spare:
            raise DiskRefused(
                f"the clip needs up to {needed / 1e6:.0f} MB, and the disk must keep "
                f"{self._config.storage.disk_free_min_mb:.0f} MB free (storage.disk_free_min_mb): make room first"
            )

    def _truth(self, detail: AlertDetail, camera: Camera, clip: Clip, word: Word, *, complete: bool) -> Truth:
        alert = detail.alert
        seen = [Seen(event, word, lead_s(camera, event), alert.t_end or 0.0) for event in detail.events]
        for told in self._archive.events(alert.camera, clip.t_start, clip.t_end):
            if told.alert == alert.id or not _still_known(camera, told.event):
                continue
            said = _said(told.review)
            if said is not None:
                seen.append(Seen(told.event, said, lead_s(camera, told.event)))
                continue
            if told.alert is not None and complete:
                raise NotYet(
                    f"alert {told.alert} of this camera is in the same clip and nobody has reviewed it: review it "
                    "first, or do not say that the clip is complete"
                )
            known: Known = "open" if told.alert is not None else "held back"
            seen.append(Seen(told.event, known))
        return truth_of([*seen, *self._there_already(detail, camera, clip, seen)], (clip.t_start, clip.t_end))

    def _there_already(self, detail: AlertDetail, camera: Camera, clip: Clip, seen: list[Seen]) -> list[Seen]:
        looks = self._archive.looks(detail.alert.camera, clip.t_start, clip.t_end, detail.alert.run)
        events = opening_events(detail.alert.camera, camera, self._config.alerts, looks, clip.size)
        return [Seen(event, "there already") for event in events if not any(_same(event, each.event) for each in seen)]

    def _card(self, said: Frozen) -> Kept:
        must = sum(not entry.optional for entry in said.truth.expect)
        return Kept(
            name=said.name, alert=said.alert, camera=said.camera_name, truth=said.word,
            complete=said.complete, note=said.note, kept_t=self._clock.now(), t_start=said.begin, t_end=said.end,
            expect=must, never=len(said.truth.never), lacks=said.lacks,
        )  # fmt: skip


def _word(detail: AlertDetail, wish: Wish) -> Word:
    reviewed = _said(detail.alert.review)
    if reviewed is None and wish.truth is None:
        raise NotYet(
            "nobody has reviewed this alert, so its truth is not known: mark it reviewed or as a false alarm first "
            "(on the command line: --as right, or --as false)"
        )
    if reviewed is not None and wish.truth not in (None, reviewed):
        raise NotYet(f"this alert was reviewed as {_SAID[reviewed]}: take that review back first")
    return wish.truth or reviewed or "right"


def _said(review: Review | None) -> Word | None:
    return None if review is None else WORDS.get(review)


def _still_known(camera: Camera, event: Event) -> bool:
    return any(rule.name == event.rule and event.label in rule.labels for rule in camera.rules)


def _same(event: Event, other: Event) -> bool:
    return (event.rule, event.track) == (other.rule, other.track) and abs(event.t - other.t) <= AROUND_S
