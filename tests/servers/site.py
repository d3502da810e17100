"""The appliance's side of an escalation with real parts: SQLite on disk, files on disk, the service in its thread."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pydantic import SecretStr

from appliance import config, wire
from appliance.base.clock import Clock, SystemClock
from appliance.router.escalation_planner import build_escalation
from appliance.store.alert_rows import EvidenceStore
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.database import Database
from appliance.store.escalations import Delivery, EscalationRow, MediaRow
from appliance.store.meter import Meter
from appliance.store.outbox import Outbox
from appliance.store.outbox_queue import SendQueue
from appliance.types import Alert, AlertChange, Event
from appliance.uplink.uplink_service import UplinkDeps, UplinkService

RULE = config.EnterRule(name="intruder", kind="enter", zone="yard", severity="alert")


def evidence_image(seed: int = 0, size: tuple[int, int] = (320, 240), noise: bool = False) -> bytes:
    """A JPEG; with noise it is large enough for several chunks."""
    width, height = size
    pixels = np.full((height, width, 3), 60 + seed % 150, np.uint8)
    if noise:
        pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    cv2.putText(pixels, str(seed), (20, height // 2), cv2.FONT_HERSHEY_SIMPLEX, 2, (255, 255, 255), 3)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def ref_of(data: bytes, t: float = 0.0, kind: str = "frame", box: object = (0.3, 0.3, 0.6, 0.9)) -> wire.MediaRef:
    digest = hashlib.sha256(data).hexdigest()
    return wire.MediaRef(
        id=digest[:32],
        kind=kind,
        mime="image/jpeg",
        bytes=len(data),
        sha256=digest,
        chunks=-(-len(data) // wire.CHUNK_BYTES),
        t=t,
        width=320,
        height=240,
        box=box,
    )


class AllowAll:
    """An egress policy without rules."""

    def forbids(self, escalation: wire.Escalation) -> bool:
        return False

    def withholds(self, camera: str, path: str) -> bool:
        return False


class Site:
    """One site's store and escalation service; `cut()` and `connect()` stop and start the service."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        name: str = "depot-7",
        token: str = "",
        expire_s: float = 3600.0,
        ttl_s: Mapping[str, float] | None = None,
        clock: Clock | None = None,
        **limits: Any,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.root = folder
        self.name = name
        self.clock = clock or SystemClock()
        self.db = Database(folder / "vedette.db", self.clock)
        self.alerts = AlertStore(self.db)
        self.evidence = EvidenceStore(self.db)
        self.meter = Meter(self.db, "run")
        self.outbox = Outbox(self.db, expire_s, ttl_s)
        self.deps = UplinkDeps(
            outbox=self.outbox,
            meter=self.meter,
            alerts=self.alerts,
            root=self.root,
        )
        self.settings = config.UplinkConfig(url=url, token=SecretStr(token) if token else None, **limits)
        self.failures: list[BaseException] = []
        self._thread: threading.Thread | None = None
        self.service = self._service()

    def connect(self) -> Site:
        self.service = self._service()
        self._thread = threading.Thread(target=self._run, name="escalation")
        self._thread.start()
        return self

    def cut(self) -> None:
        self.service.stop()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    def close(self) -> None:
        self.cut()
        self.db.close()
        assert not self.failures, self.failures

    def ask(
        self,
        n: int,
        images: tuple[bytes, ...] | None = None,
        *,
        severity: str = "alert",
        label: str = "person",
        ready: bool = True,
        box: object = (0.3, 0.3, 0.6, 0.9),
        zone: str = "yard",
    ) -> str:
        """Raise alert number `n` and make its question ready; returns the escalation's id."""
        now = self.clock.now()
        alert = Alert(
            camera="gate", id=f"alert-{n}", rules=("intruder",), severity=severity, t_start=now, t_end=None,
            tracks=(n,), labels=(label,), score=0.8, run="r1",
        )  # fmt: skip
        event = Event(camera="gate", rule="intruder", kind="enter", track=n, label=label, t=now, score=0.8, zone=zone)
        escalation = build_escalation(alert, event, RULE, site=self.name, now=now, model="m")
        self.alerts.apply(
            AlertChange("opened", alert, event), escalation=escalation, priority=wire.PRIORITY_OF[severity]
        )
        if ready:
            self.make_ready(escalation, images if images is not None else (evidence_image(n),), box)
        return escalation.id

    def make_ready(self, escalation: wire.Escalation, images: tuple[bytes, ...], box: object = None) -> None:
        media = []
        for k, data in enumerate(images):
            path = f"evidence/{escalation.alert}/{k}.jpg"
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)
            media.append(MediaRow(escalation=escalation.id, n=k, path=path, ref=ref_of(data, t=float(k), box=box)))
        self.evidence.make_ready(escalation, media)
        self.service.wake()

    def detail(self, n: int) -> AlertDetail:
        found = self.alerts.get(f"alert-{n}")
        assert found is not None
        return found

    def next_ready(self) -> EscalationRow:
        """The escalation that is sent next."""
        queued = SendQueue(self.outbox.queue).pick(self.clock.now())
        assert queued is not None
        return queued.row

    def count(self, state: Delivery) -> int:
        """How many escalations are in this state."""
        return int(self.db.row("SELECT count(*) FROM escalation WHERE state = ?", (state,))[0])

    def verdict(self, n: int) -> wire.Verdict | None:
        row = self.detail(n).verdict
        return row.body if row else None

    def settled(self, *numbers: int) -> bool:
        return all(self.verdict(n) is not None for n in numbers)

    def meter_totals(self) -> dict[str, int]:
        return {total.kind: total.amount for total in self.meter.totals("all")}

    def _service(self) -> UplinkService:
        return UplinkService(self.settings, self.name, self.deps, self.clock, AllowAll())

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failures.append(error)


@contextlib.contextmanager
def site(folder: Path, url: str, **options: object) -> Iterator[Site]:
    """A connected site."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Site(folder, url, **options)  # type: ignore[arg-type]
    try:
        yield made.connect()
    finally:
        made.close()
