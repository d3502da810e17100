"""A site that notifies people: a real store, the real notifier in its thread, and a clock that the test moves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance.base.clock import ManualClock, local_weekday_minute
from appliance.base.errors import StoreUnavailable
from appliance.config import SiteConfig
from appliance.notify.delivery import NotifierDeps, TargetStatus
from appliance.notify.message import MessageBuilder
from appliance.notify.notice_policy import NoticePlanner, Recipient, SystemStatus
from appliance.notify.notifier import Notifier
from appliance.rules.weekly_hours import armed_at
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.store.notices import NewNotice, NoticeRow, NoticeState, NoticeStore, SentMessage
from appliance.types import AlertChange, Event
from tests.support.sample_rows import T0, opened, sample_escalation, sample_verdict
from tests.support.waiting import until


@dataclass(frozen=True)
class Link:
    up: bool = True
    since: float = 0.0
    breaker: str = "closed"


class FullableNoticeStore(NoticeStore):
    """The notice table on a disk that can be full."""

    full = False
    refused = 0

    def clock_stepped(self, step_s: float) -> None:
        self._check_space()
        super().clock_stepped(step_s)

    def begin_attempt(self, row: NoticeRow) -> None:
        self._check_space()
        super().begin_attempt(row)

    def record_delivery(self, row: NoticeRow, sent: SentMessage) -> None:
        self._check_space()
        super().record_delivery(row, sent)

    def end(self, row: NoticeRow, state: NoticeState, reason: str, *, untold: bool = False) -> None:
        self._check_space()
        super().end(row, state, reason, untold=untold)

    def _check_space(self) -> None:
        if self.full:
            self.refused += 1
            raise StoreUnavailable("the disk is full")


class NotifyingSite:
    """`start()` and `stop()` are the appliance's; what is stored outlives them."""

    def __init__(self, folder: Path, clock: ManualClock, **targets: dict[str, Any]) -> None:
        self.clock = clock
        self.db = Database(folder / "vedette.db", clock)
        self.alerts, self.notices = AlertStore(self.db), FullableNoticeStore(self.db)
        self.meter, self.health = Meter(self.db, "run"), HealthEventStore(self.db)
        self.link: Link = Link()
        self.forbidden: set[str] = set()
        self.more: dict[str, Any] = {}  # other parts of the senders' means
        camera = {
            "url": "file:x.mp4", "zones": {"z": [[0, 0], [1, 0], [1, 1]]},
            "rules": [{"name": "intruder", "kind": "enter", "zone": "z"}],
        }  # fmt: skip
        site = {"cameras": {"yard": camera, "gate": camera}, "notify": targets}
        self.targets = SiteConfig.model_validate(site).notify
        recipients = {
            name: Recipient(name, target, armed_at(target.schedule, local_weekday_minute))
            for name, target in self.targets.items()
        }
        self.planner = NoticePlanner("depot", recipients, self._forbids)
        self.notifier = self._notifier()
        self.failures: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def start(self, before: Notifier | None = None) -> NotifyingSite:
        """before: of the settings until now."""
        self.notifier = self._notifier()
        if before:
            self.notifier.follow(before)
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self.notifier.stop()
        if self._thread is not None:
            self._thread.join(15)
            assert not self._thread.is_alive()
            self._thread = None

    def alert(self, name: str = "a1", *, asked: bool = False, camera: str = "yard", incident: str = "") -> None:
        """Something happens now. incident: the first alert of the incident that it belongs to."""
        change = opened(name, t=self.clock.now(), camera=camera)
        self.write(change, asked=asked, incident=incident)

    def write(self, change: AlertChange, *, asked: bool = False, incident: str = "") -> tuple[NewNotice, ...]:
        notices = self.planner.plan(change, self.clock.now())
        name = change.alert.id
        ask = sample_escalation(f"q-{name}", of=name, t=self.clock.now(), camera=change.alert.camera) if asked else None
        self.alerts.apply(change, escalation=ask, priority="normal" if asked else "", notices=notices,
                          incident=incident)  # fmt: skip
        self.notifier.wake()
        return notices

    def escalate(self, name: str = "a1") -> None:
        """The alert grows."""
        before = opened(name, t=self.clock.now()).alert
        reported = Event(camera="yard", rule="intruder", kind="enter", track=9, label="person", t=self.clock.now(),
                     score=0.9, box=(0.1, 0.1, 0.2, 0.2), severity="alert")  # fmt: skip
        self.write(AlertChange("extended", replace(before, severity="alert"), reported))

    def verdict(self, decision: str, name: str = "a1") -> None:
        assert self.alerts.apply_verdict(sample_verdict(f"q-{name}", of=name, decision=decision), self.clock.now())
        self.notifier.wake()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.notifier.wake()

    def notice(self, name: str = "a1", target: str = "phone") -> NoticeRow:
        return next(row for row in self.notices.of(name) if row.target == target)

    def becomes(self, state: str, name: str = "a1", target: str = "phone") -> NoticeRow:
        until(lambda: self.notice(name, target).state == state, what=f"{target}, {name}: {state}")
        return self.notice(name, target)

    def status(self, target: str = "phone") -> TargetStatus:
        return next(status for status in self.notifier.statuses if status.name == target)

    def close(self) -> None:
        self.stop()
        self.db.close()
        assert not self.failures, self.failures

    def _forbids(self, event: Event) -> bool:
        return event.camera in self.forbidden

    def deps(self) -> NotifierDeps:
        return NotifierDeps(
            notices=self.notices,
            alerts=self.alerts,
            messages=MessageBuilder("depot", "https://box.lan", self._forbids),
            status=SystemStatus(lambda: self.link, self.health, lambda: "", self.clock),
            meter=self.meter,
            clock=self.clock,
            health=self.health,
            armed=lambda target, t: armed_at(target.schedule, local_weekday_minute)(t),
            **self.more,
        )

    def _notifier(self) -> Notifier:
        return Notifier(self.targets, self.deps(), self.db)

    def _run(self) -> None:
        try:
            self.notifier.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failures.append(error)


@contextlib.contextmanager
def notifying(folder: Path, **targets: dict[str, Any]) -> Iterator[NotifyingSite]:
    """A site whose notifier runs."""
    made = NotifyingSite(folder, ManualClock(T0), **targets)
    try:
        yield made.start()
    finally:
        made.close()


def hook(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": f"{url}/sesame", "timeout_s": 20, **more}
