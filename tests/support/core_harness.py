"""A core on a real database, fed with walks and flickers by hand, for tests of what it decides and writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance import wire
from appliance.base.clock import Clock, ManualClock, local_weekday_minute
from appliance.config import SiteConfig
from appliance.core.core_loop import Core
from appliance.core.core_settings import CoreDeps, CoreListener, CoreSettings, CoreStores, core_settings, router_context
from appliance.rules.arming import Arming
from appliance.store.alert_rows import EvidenceStore
from appliance.store.database import Database
from appliance.store.escalations import Delivery, EscalationRow, read_escalation
from appliance.store.meter import Meter
from appliance.store.write_backlog import WriteBacklog
from appliance.types import Alert, Box, FrameBoxes, IngestHealth, StreamHeader, SystemLoad, TrackedObject

STEP_S = 0.2
FRAMES_AFTER = 8  # longer than merge_s, so that the alert ends


def site(severity: str = "warning", **escalation: Any) -> SiteConfig:
    """One camera `gate`, whose whole frame is the zone `yard`, with an uplink. Nothing is audited, or kept to learn."""
    router = {"audit_share": 0.0, "cold_share": 1.0, "silent_frames_day": 0.0, **escalation.pop("router", {})}
    rule = {"name": "intruder", "kind": "enter", "zone": "yard", "severity": severity, "score_min": 0.3}
    rules = [{**rule, "at_start": "report"}]
    return SiteConfig.model_validate(
        {
            "cameras": {
                "gate": {
                    "url": "rtsp://127.0.0.1/x",
                    "zones": {"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]},
                    "rules": rules,
                }
            },
            "uplink": {"url": "nats://127.0.0.1:4222"},
            "alerts": {"merge_s": 1},
            "escalation": {"router": router, **escalation},
        }
    )


def settings_of(config: SiteConfig, deps: CoreDeps) -> CoreSettings:
    """What the core decides by when this site file is in force."""
    arming = Arming(config.arming, config.cameras, deps.stores.arming, deps.clock, local_weekday_minute)
    decisions = config.for_decisions()
    return core_settings(decisions, config.notify, arming, router_context(decisions), deps)


def make_core(
    config: SiteConfig,
    stores: CoreStores,
    clock: Clock,
    *,
    system_load: Callable[[], SystemLoad] = SystemLoad,
    listener: CoreListener | None = None,
) -> Core:
    """A core for the site, with a backlog of its own; for the rest see `core_settings`."""
    deps = CoreDeps(stores, clock, listener or CoreListener(), system_load)
    return Core(stores, settings_of(config, deps), WriteBacklog(clock), clock)


class CoreHarness:
    """The core with its stores; `system_load` is what it reads of link and appliance."""

    def __init__(
        self, folder: Path, config: SiteConfig, clock: ManualClock, listener: CoreListener | None = None
    ) -> None:
        self.clock = clock
        self.path = folder / "vedette.db"
        self.db = Database(self.path, clock)
        self.meter = Meter(self.db, "r")
        stores = self.stores = CoreStores.of(self.db, self.meter)
        self.alerts, self.decisions, self.health = stores.alerts, stores.decisions, stores.health
        stores.cameras.ensure({"gate": "rtsp://127.0.0.1/x"})
        self.system_load = SystemLoad()
        self.core = make_core(config, stores, clock, system_load=lambda: self.system_load, listener=listener)
        self.core.take(StreamHeader(camera="gate", clip="", model="m", size=(640, 480), run="r1"))
        self._seq = self._track = 0
        self.second()

    def second(self) -> None:
        self.clock.advance(1.0)
        self.core.take(IngestHealth(t=self.clock.now(), detector_ms=1.0, queue=0, rss_bytes=1))

    def walk(self, frames: int = 8, score: float = 0.85) -> str:
        """A person comes in from the left and is gone; the alert's id."""
        return self._incident([(0.1 + 0.05 * n, 0.2, 0.2 + 0.05 * n, 0.6) for n in range(frames)], [score] * frames)

    def flicker(self, score: float = 0.55) -> str:
        """Something is seen a few times on the spot; the alert's id."""
        return self._incident([(0.4, 0.2, 0.5, 0.6)] * 4, [score, score + 0.3, score - 0.1, score])

    def _incident(self, boxes: list[Box], scores: list[float]) -> str:
        self._track += 1
        for box, score in zip(boxes, scores, strict=True):
            self.examine((TrackedObject(track=self._track, label="person", score=score, box=box),))
        for _ in range(FRAMES_AFTER):
            self.examine(())
        return self.newest.id

    def examine(self, objects: tuple[TrackedObject, ...]) -> None:
        self._seq += 1
        self.clock.advance(STEP_S)
        self.core.take(
            FrameBoxes(camera="gate", seq=self._seq, frame=self._seq, t=self.clock.now(), looked=True, objects=objects)
        )

    @property
    def newest(self) -> Alert:
        return self.alerts.page(limit=1)[0].alert

    @property
    def delivery(self) -> Delivery | None:
        """How far the escalation of the newest alert got."""
        return self.alerts.page(limit=1)[0].judged.delivery

    def escalated(self, alert: str) -> EscalationRow | None:
        with self.db.read() as connection:
            row = connection.execute("SELECT * FROM escalation WHERE alert = ?", (alert,)).fetchone()
            return None if row is None else read_escalation(row)

    def decided(self, alert: str) -> list[tuple[str, str]]:
        """(moment, reason) of each decision about the alert."""
        with self.db.read() as connection:
            rows = connection.execute("SELECT moment, reason FROM decision WHERE alert = ? ORDER BY id", (alert,))
            return [(row["moment"], row["reason"]) for row in rows]

    def evidence_made(self, alert: str) -> None:
        """What the evidence maker does once the images are cut."""
        row = self.escalated(alert)
        assert row is not None
        assert EvidenceStore(self.db).make_ready(row.body, [])

    def judge(self, alert: str, decision: str, seconds: float = 0.5) -> None:
        row = self.escalated(alert)
        assert row is not None
        verdict = wire.Verdict(
            escalation=row.id,
            site=row.site,
            alert=alert,
            decision=decision,  # type: ignore[arg-type]
            reason="It looks like that.",
            kind="vlm",
            engine="vlm",
            model="m",
            seconds=seconds,
            judged_t=self.clock.now(),
        )
        assert self.alerts.apply_verdict(verdict, self.clock.now())
