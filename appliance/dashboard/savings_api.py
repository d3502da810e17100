"""Serves `/api/v1/savings`: bytes received against bytes sent, as sums and by hour and day, as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from appliance.base.clock import Clock, day_bounds, local_day, local_hour
from appliance.config import CameraConfig
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.cameras import CameraStore
from appliance.store.meter import HOUR_S, HOURS_KEPT, Meter, MeterTotal, Metric, MetricName, PeriodTotals, Since
from appliance.store.savings import SavingsAccount, account_for
from appliance.web.routes import RouteList, provided
from appliance.web.templating import csv_file

HEADLINE_AFTER_S = 60.0  # of video; before, one escalation outweighs what came in, and a share would mislead
SETTLED_AFTER_S = 3600.0  # of video; before, a share is shown as one of the beginning
DAY_S = 86400.0  # seconds
PeriodKind = Literal["hour", "day"]
DAYS_MAX = 366  # bars of a year
DEFAULT_COUNT: dict[PeriodKind, int] = {"hour": 48, "day": 30}
KIND_TEXTS = {
    "facts": "Facts (boxes, times)",
    "crop": "Crops",
    "frame": "Pictures",
    "clip": "Clips",
    "notice": "Notifications",
    "mqtt": "Home automation",
    "again": "Sent again after a cut",
    "resent": "Repeated by TCP",
    "protocol": "Protocol and connection",
    "other": "Connection upkeep",
}

router = RouteList(prefix=API, tags=["savings"])


class AccountItem(ApiModel):
    """Bytes of one camera, or of the site. `exact` false: a part is a sum of packet sizes, so a lower bound.

    `received_main`: what would have been sent; the rest of `received` came as a second stream to detect on.
    `share_sent`: sent over received_main; null when nothing was received. `saved` is negative when more went up.
    """

    received: int
    received_main: int
    exact: bool
    sent: int
    sent_by_kind: dict[str, int]
    saved: int
    share_sent: float | None

    @classmethod
    def of(cls, account: SavingsAccount) -> AccountItem:
        return cls(
            received=account.camera_bytes,
            received_main=account.main_bytes,
            exact=account.exact,
            sent=account.uplink_bytes,
            sent_by_kind={each.what: each.bytes for each in account.uplink_kinds},
            saved=account.saved_bytes,
            share_sent=account.share_sent,
        )


class CameraSavings(AccountItem):
    """The account of one camera.

    main_opened: false where nothing is recorded and there is a second stream to detect on: then the account is of that
    one, and less than what would have been sent.
    """

    camera: str
    main_opened: bool


class SavingsReport(ApiModel):
    """The site's account (`overhead`: sent, but for no camera; in the total) and each camera's.

    `counterfactual`: what `saved` is measured against. `watched_s`: seconds of video behind these sums, all cameras
    together, reckoned from the frames due for the detector, so at most the truth (an idle camera has fewer due).
    """

    since: Since
    counterfactual: str
    total: AccountItem
    overhead: int
    cameras: list[CameraSavings]
    watched_s: float


class PeriodItem(ApiModel):
    """An hour or a day: t: when it began (UTC seconds), begin: the same on the appliance's own clock.

    `received_main`, `sent`, `saved`, `exact` as in the savings report; inferences: frames that were examined.
    """

    t: float
    begin: str
    received: int
    received_main: int
    sent: int
    saved: int
    exact: bool
    inferences: int


class SavingsHistory(ApiModel):
    """Oldest first, without holes: where nothing was counted all is 0. camera '': the site."""

    by: PeriodKind
    camera: str
    periods: list[PeriodItem]


@dataclass(frozen=True, slots=True)
class SavingsReader:
    """Balances what came from the cameras against what was sent up. Any thread may call.

    configured: the cameras of the site file by name.
    """

    clock: Clock
    meter: Meter
    cameras: CameraStore
    configured: Mapping[str, CameraConfig]

    def report(self, since: Since) -> SavingsReport:
        """Return the sums since this core started, since midnight, or ever."""
        # No rates here: the store does not know how long the core ran today, and a wrong rate is worse than none.
        totals = self.meter.totals(since)
        found = account_for(totals, (row.name for row in self.cameras.all()))
        return SavingsReport(
            since=since,
            counterfactual=found.counterfactual,
            total=AccountItem.of(found.total),
            overhead=found.overhead_bytes,
            cameras=[
                CameraSavings(
                    camera=each.camera,
                    main_opened=self._opens_main(each.camera),
                    **AccountItem.of(each.account).model_dump(),
                )
                for each in found.cameras
            ],
            watched_s=self._watched_s(totals),
        )

    def _opens_main(self, camera: str) -> bool:
        known = self.configured.get(camera)
        return known is None or known.detect_url is None or bool(known.record)

    def _watched_s(self, totals: Iterable[MeterTotal]) -> float:
        due = (Metric(MetricName.EXAMINED), Metric(MetricName.UNEXAMINED))
        rows = [each for each in totals if each.metric in due and each.camera in self.configured]
        return sum(each.amount / self.configured[each.camera].detect.fps for each in rows)

    def history(self, by: PeriodKind, camera: str = "", count: int | None = None) -> SavingsHistory:
        """Return the last `count` hours or days (None: as many as a chart shows), the one that runs included."""
        found = [_period(each, camera, by) for each in self._periods(by, count or DEFAULT_COUNT[by])]
        return SavingsHistory(by=by, camera=camera, periods=found)

    def history_by_camera(self, by: PeriodKind, count: int) -> Iterator[tuple[str, PeriodItem]]:
        """Each period of each camera in which anything was counted for it."""
        for each in self._periods(by, count):
            for name in sorted({row.camera for row in each.totals} - {""}):
                yield name, _period(each, name, by)

    def _periods(self, by: PeriodKind, count: int) -> list[PeriodTotals]:
        now = self.clock.now()
        if by == "hour":
            begins = [(int(now) // HOUR_S - n) * HOUR_S for n in reversed(range(count))]
            wanted = [PeriodTotals(t, local_day(t), ()) for t in begins]
            counted = {each.t: each for each in self.meter.by_hour(begins[0])}
            return [counted.get(each.t, each) for each in wanted]
        days = [local_day(now)]
        while len(days) < count:
            days.append(local_day(day_bounds(days[-1])[0] - DAY_S / 2))  # noon of the day before, whatever its length
        known = {each.day: each for each in self.meter.by_day(days[-1])}
        return [known.get(day, PeriodTotals(day_bounds(day)[0], day, ())) for day in reversed(days)]


def _period(found: PeriodTotals, camera: str, by: PeriodKind) -> PeriodItem:
    totals = [each for each in found.totals if not camera or each.camera == camera]
    account: SavingsAccount = account_for(totals).total
    return PeriodItem(
        t=found.t, begin=found.day if by == "day" else local_hour(found.t), received=account.camera_bytes,
        received_main=account.main_bytes, sent=account.uplink_bytes, saved=account.saved_bytes, exact=account.exact,
        inferences=sum(each.amount for each in totals if each.kind == "examined"),
    )  # fmt: skip


SavingsPart = Annotated[SavingsReader, Depends(provided(SavingsReader))]
By = Annotated[PeriodKind, Query(description="an hour (kept for 31 days) or a day each")]
Count = Annotated[int | None, Query(ge=1, le=HOURS_KEPT, description="how many; left out: 48 hours or 30 days")]


@router.get("/savings")
def savings(reader: SavingsPart, since: Annotated[Since, Query()] = "today") -> SavingsReport:
    """Bytes received from the cameras and bytes sent up, since the core started, since midnight, or ever."""
    return reader.report(since)


@router.get("/savings/history")
def savings_history(
    reader: SavingsPart, by: By = "day", camera: Annotated[str, Query(max_length=64)] = "", count: Count = None
) -> SavingsHistory:
    """Bytes received and sent, hour by hour or day by day."""
    return reader.history(by, camera, _count(by, count))


@router.get("/savings.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def savings_csv(
    reader: SavingsPart, by: By = "day", of: Literal["site", "cameras"] = "site", count: Count = None
) -> Response:
    """`savings/history` as CSV: one row a period, or one a period and camera."""
    wanted = _count(by, count)
    rows: Iterable[tuple[str, PeriodItem]]
    if of == "site":
        rows = (("", each) for each in reader.history(by, "", wanted).periods)
    else:
        rows = reader.history_by_camera(by, wanted)
    names = ("received", "received_main", "sent", "saved", "exact", "inferences")
    found = [
        [each.begin, *([camera] if of == "cameras" else []), *(getattr(each, n) for n in names)]
        for camera, each in rows
    ]
    return csv_file(f"savings-{of}-{by}s.csv", ["begin", *(["camera"] if of == "cameras" else []), *names], found)


def _count(by: PeriodKind, count: int | None) -> int:
    return min(count or DEFAULT_COUNT[by], HOURS_KEPT if by == "hour" else DAYS_MAX)
