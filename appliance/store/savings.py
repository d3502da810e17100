"""Computes from the meter how many bytes the appliance saved, and its energy. Pure arithmetic.

The saved bytes are the bytes of the cameras' main streams minus the bytes on the uplink. They are compared with a site
that sends each camera's main stream to the cloud; this comparison (the counterfactual) is named beside every number. A
second stream for detection is received and shown, too, but does not count, because nobody would send both streams. A
negative saving is shown like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.store.meter import MeterTotal, Metric, MetricName

COUNTERFACTUAL = "the main stream of every camera sent to the cloud"
UPLINK_BYTES = Metric(MetricName.UPLINK_BYTES)
DETECT_BYTES = Metric(MetricName.DETECT_BYTES)
_COUNTED = (MetricName.CAMERA_BYTES, MetricName.DETECT_BYTES, MetricName.UPLINK_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkKind:
    """Counts the bytes sent for one purpose: facts, crop, frame, clip, notice, …; "other": the purpose is unknown."""

    what: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsAccount:
    """Counts the bytes of one camera, or of the site.

    camera_bytes: all received bytes. detect_bytes: the part of them that came as a second stream for detection.
    """

    camera_bytes: int
    detect_bytes: int
    exact: bool  # False: some bytes were counted as sizes of packets without protocol headers, a lower bound
    uplink_bytes: int
    uplink_kinds: tuple[UplinkKind, ...]

    @property
    def main_bytes(self) -> int:
        """The bytes that would have been sent: those of the main stream, or of the only stream that was opened."""
        return self.camera_bytes - self.detect_bytes

    @property
    def saved_bytes(self) -> int:
        """The saved bytes; negative if more was sent than the main streams have."""
        return self.main_bytes - self.uplink_bytes

    @property
    def share_sent(self) -> float | None:
        """The uplink bytes as a share of the main streams' bytes; None: nothing was received."""
        return self.uplink_bytes / self.main_bytes if self.main_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraAccount:
    """Holds the account of one camera."""

    camera: str
    account: SavingsAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Holds the account of the site and of each camera.

    overhead_bytes: uplink bytes that belong to no camera (keep-alive, acknowledgements). They count in `total` only.
    """

    total: SavingsAccount
    cameras: tuple[CameraAccount, ...]
    overhead_bytes: int
    counterfactual: str = COUNTERFACTUAL


def account_for(totals: Iterable[MeterTotal], cameras: Iterable[str] = ()) -> Savings:
    """Return the savings from the meter's totals; `cameras` get an account even if nothing was counted for them."""
    rows = [each for each in totals if each.metric.name in _COUNTED]
    names = sorted({row.camera for row in rows if row.camera} | set(cameras))
    return Savings(
        total=_account(rows),
        cameras=tuple(
            CameraAccount(camera=name, account=_account([row for row in rows if row.camera == name])) for name in names
        ),
        overhead_bytes=_sum(row for row in rows if not row.camera and row.metric == UPLINK_BYTES),
    )


def _account(rows: list[MeterTotal]) -> SavingsAccount:
    received = [row for row in rows if row.metric.name is MetricName.CAMERA_BYTES]
    exact, estimated = (_sum(row for row in received if row.metric.label == label) for label in ("", "estimated"))
    sent = _sum(row for row in rows if row.metric == UPLINK_BYTES)
    kinds: Counter[str] = Counter()
    for row in rows:
        if row.metric.name is MetricName.UPLINK_BYTES and row.metric.label:
            kinds[row.metric.label] += row.amount
    if sent > kinds.total():
        kinds["other"] = sent - kinds.total()
    return SavingsAccount(
        camera_bytes=exact + estimated,
        detect_bytes=_sum(row for row in rows if row.metric == DETECT_BYTES),
        exact=estimated == 0,
        uplink_bytes=sent,
        uplink_kinds=tuple(UplinkKind(what=what, bytes=kinds[what]) for what in sorted(kinds)),
    )


def _sum(rows: Iterable[MeterTotal]) -> int:
    return sum(row.amount for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyAccount:
    """Holds the measured energy in joules of all programs on the appliance, not only of Vedette.

    sources: the meters that measured it. joules_per_camera_hour: for an hour of one live camera; None: no camera was
    live. joules_per_alert: None: there was no alert.
    """

    joules: int
    sources: tuple[str, ...]
    joules_per_camera_hour: float | None
    joules_per_alert: float | None

    @classmethod
    def of(cls, totals: Iterable[MeterTotal]) -> EnergyAccount | None:
        """Build the account; None: nothing was measured."""
        amounts: Counter[MetricName] = Counter()
        sources = set()
        for each in totals:
            amounts[each.metric.name] += each.amount
            if each.metric.name is MetricName.ENERGY_J:
                sources.add(each.metric.label)
        joules, camera_s = amounts[MetricName.ENERGY_J], amounts[MetricName.ENERGY_CAMERA_S]
        alerts = amounts[MetricName.ALERTS]
        if not sources:
            return None
        return cls(
            joules=joules,
            sources=tuple(sorted(sources)),
            joules_per_camera_hour=joules / camera_s * 3600 if camera_s else None,
            joules_per_alert=joules / alerts if alerts else None,
        )
