"""`/api/v1/savings`: what came from the cameras, what was sent up, and the share that stayed on the site."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query

from appliance import savings
from appliance.config import SiteConfig
from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.meter import MeterTotal, Metric, MetricName, Since

HEADLINE_AFTER_S = 60.0  # of video; before, one question outweighs what came in, and a share would mislead
SETTLED_AFTER_S = 3600.0
KIND_TEXTS = {
    "facts": "Facts (boxes, times)",
    "crop": "Crops",
    "frame": "Pictures",
    "clip": "Clips",
    "notice": "Notifications",
    "again": "Sent again after a cut",
    "resent": "Repeated by TCP",
    "protocol": "Protocol and connection",
    "other": "Connection upkeep",
}

router = APIRouter(prefix=f"{API}/savings", tags=["savings"])


class AccountItem(ApiModel):
    """Bytes of one camera, or of the site. `exact` false: a part is a sum of packet sizes, so a lower bound.

    `share_sent`: sent over received; null when nothing was received. `saved` is negative when more went up.
    """

    received: int
    exact: bool
    sent: int
    sent_by_kind: dict[str, int]
    saved: int
    share_sent: float | None

    @classmethod
    def of(cls, account: savings.SavingsAccount) -> AccountItem:
        return cls(
            received=account.camera_bytes,
            exact=account.exact,
            sent=account.uplink_bytes,
            sent_by_kind={each.what: each.bytes for each in account.uplink_kinds},
            saved=account.saved_bytes,
            share_sent=account.share_sent,
        )


class CameraSavings(AccountItem):
    """The account of one camera."""

    camera: str


class SavingsReport(ApiModel):
    """The site's account (`overhead`: sent, but for no camera; in the total) and each camera's.

    `counterfactual` says what `saved` is measured against. `watched_s`: seconds of video behind these sums, all cameras
    together, reckoned from the frames due for a look, so at most the truth (an idle camera has fewer due).
    """

    since: Since
    counterfactual: str
    total: AccountItem
    overhead: int
    cameras: list[CameraSavings]
    watched_s: float


def report(desk: DashboardDeps, since: Since) -> SavingsReport:
    """The sums since this core started, since midnight, or ever."""
    # No rates here: the store does not know how long the core ran today, and a wrong rate is worse than none.
    totals = desk.meter.totals(since)
    found = savings.account_for(totals, 0.0, (row.name for row in desk.cameras.all()))
    return SavingsReport(
        since=since,
        counterfactual=found.counterfactual,
        total=AccountItem.of(found.total),
        overhead=found.overhead_bytes,
        cameras=[
            CameraSavings(camera=each.camera, **AccountItem.of(each.account).model_dump()) for each in found.cameras
        ],
        watched_s=_watched_s(desk.config, totals),
    )


def _watched_s(config: SiteConfig, totals: Iterable[MeterTotal]) -> float:
    of_due = (Metric(MetricName.EXAMINED), Metric(MetricName.UNEXAMINED))
    due = (each for each in totals if each.metric in of_due and each.camera in config.cameras)
    return sum(each.amount / config.cameras[each.camera].detect.fps for each in due)


@router.get("")
def get_savings(desk: Deps, since: Annotated[Since, Query()] = "today") -> SavingsReport:
    """Bytes received from the cameras and bytes sent up, since the core started, since midnight, or ever."""
    return report(desk, since)
