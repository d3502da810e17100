"""`/api/v1/agreement`: the share of alerts that turned out right, by detector model, camera, label and hours.

It also lists falls: of the site, a camera or another group whose share of right alerts has dropped (`health.drift`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from fastapi import Depends

from appliance.dashboard.schemas import API, AlertItem, ApiModel
from appliance.health.drift import FALL, HOURS, DriftReport, DriftScope, Fall
from appliance.router.calibration import error_bound, recall_low
from appliance.store.alerts import AlertStore
from appliance.store.verdict_stats import AnsweredAlert
from appliance.web.routes import RouteList, provided

GROUPS_MAX = 64  # of each kind, those with most answers
SHOWN_MAX = 12  # wrong alerts of a fall, the newest

router = RouteList(tags=["agreement"])
GroupBy = Literal["site", "network", "camera", "label", "hours"]


class AgreementGroup(ApiModel):
    """Alerts of a detector model (`network`), a camera, a label or six hours of the day; `site`: all.

    judged: alerts of which somebody said whether they were right; right: those that were. share_low, share_high: bounds
    of the share of right ones, each with 95 % confidence. expected: the mean chance of being right that the router took
    for these alerts before any answer; null: it took none. by_people, by_judge: answers of each. both: alerts that both
    answered about; alike: those of them about which they agree.
    """

    by: GroupBy
    name: str
    alerts: int
    judged: int
    right: int
    share_low: float | None
    share_high: float | None
    expected: float | None
    by_people: int
    by_judge: int
    both: int
    alike: int


class FallItem(ApiModel):
    """A share of right alerts that has dropped and not come back; see `health.drift.Fall`.

    usual, now: the share before and since. alerts: the wrong ones since it began, the newest first.
    """

    scope: DriftScope
    name: str
    usual: float
    now: float
    answers: int
    began_t: float
    noticed_t: float
    text: str
    alerts: list[AlertItem]


class AgreementReport(ApiModel):
    """How often alerts of the last months are right.

    fall: the smallest drop of a share that is reported. days_to_tell: mean days until such a drop of the whole site
    would be noticed at `answers_day` answers a day; null: there are too few answers to say.
    """

    groups: list[AgreementGroup]
    falls: list[FallItem]
    fall: float
    answers_day: float
    days_to_tell: float | None


class AgreementReader:
    """Reads what people and judges said of the alerts. Any thread may call."""

    def __init__(self, alerts: AlertStore, report: Callable[[], DriftReport]) -> None:
        self._alerts = alerts
        self._report = report

    def report(self) -> AgreementReport:
        """Return the report. Raise StoreError."""
        found = self._report()
        return AgreementReport(
            groups=groups_of(found.alerts), falls=[self._item(each) for each in found.falls], fall=FALL,
            answers_day=round(found.answers_day, 2),
            days_to_tell=None if found.days_to_tell is None else round(found.days_to_tell, 1),
        )  # fmt: skip

    def _item(self, fall: Fall) -> FallItem:
        details = [self._alerts.get(alert) for alert in reversed(fall.alerts[-SHOWN_MAX:])]
        shown = [AlertItem.of(each.row) for each in details if each is not None and each.row.reviewed.deleted_t is None]
        return FallItem.of_row(fall, text=str(fall), alerts=shown)


def groups_of(alerts: Sequence[AnsweredAlert]) -> list[AgreementGroup]:
    """Return all of them, then by network, camera, label and hours; of each kind those with most answers first."""
    found: dict[tuple[GroupBy, str], list[AnsweredAlert]] = {}
    for each in alerts:
        keys: list[tuple[GroupBy, str]] = [
            ("site", ""), ("network", each.model), ("camera", each.camera), ("label", each.label),
            ("hours", HOURS[each.hour // 6]),
        ]  # fmt: skip
        for key in keys:
            found.setdefault(key, []).append(each)
    groups = [_group(by, name, rows) for (by, name), rows in found.items()]
    kinds: tuple[GroupBy, ...] = ("site", "network", "camera", "label", "hours")
    by_kind = (sorted((each for each in groups if each.by == by), key=lambda each: -each.judged) for by in kinds)
    return [each for kind in by_kind for each in kind[:GROUPS_MAX]]


def _group(by: GroupBy, name: str, rows: Sequence[AnsweredAlert]) -> AgreementGroup:
    answers = [each.real for each in rows if each.real is not None]
    chances = [each.chance for each in rows if each.chance is not None]
    both = [each.person == each.judge for each in rows if each.person is not None and each.judge is not None]
    n, right = len(answers), sum(answers)
    return AgreementGroup(
        by=by, name=name, alerts=len(rows), judged=n, right=right,
        share_low=round(recall_low(right, n), 4) if n else None,
        share_high=round(error_bound(right, n), 4) if n else None,
        expected=round(sum(chances) / len(chances), 4) if chances else None,
        by_people=sum(each.person is not None for each in rows), by_judge=sum(each.judge is not None for each in rows),
        both=len(both), alike=sum(both),
    )  # fmt: skip


AgreementPart = Annotated[AgreementReader, Depends(provided(AgreementReader))]


@router.get(f"{API}/agreement")
def agreement(reader: AgreementPart) -> AgreementReport:
    """Return how often people and language models call alerts right, and which shares have fallen."""
    return reader.report()
