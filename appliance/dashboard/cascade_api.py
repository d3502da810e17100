"""`/api/v1/cascade`: what stays at the edge, by which claims, what is missed, and what the workers announce."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.schemas import API, ApiModel
from appliance.router.calibration import GroupFit, error_bound
from appliance.store.database import Database
from appliance.store.decisions import DecisionStore, TierCounts
from appliance.store.silent_frames import SilentFrameStore
from appliance.web.routes import RouteList, provided

CASCADE_DAYS = 30  # a month, as bills are
GROUPS_MAX = 64  # cameras and labels with most answers
DAY_S = 86400.0  # seconds

router = RouteList(prefix=API, tags=["savings"])


class CascadeClaim(ApiModel):
    """The claim about the alerts of one label on one camera ("": of all).

    known: answers by people and language models; right: how many of them confirmed the alert. sure_from: from this
    chance on an alert stays at the edge as sure; error_high: with 95 % confidence no larger share of these is wrong.
    doubtful_below: below this chance it stays as doubtful; recall_low: with 95 % confidence no smaller share of the
    right ones lies above. null: nothing is claimed (yet); needed: so many answers it takes.
    """

    camera: str
    label: str
    known: int
    right: int
    sure_from: float | None
    error_high: float | None
    needed: int
    doubtful_below: float | None
    recall_low: float | None

    @classmethod
    def of(cls, camera: str, label: str, fit: GroupFit) -> CascadeClaim:
        sure, claim = fit.sure, fit.claim
        return cls(
            camera=camera,
            label=label,
            known=fit.n,
            right=fit.real,
            sure_from=sure.chance_max if sure.holds else None,
            error_high=sure.error_high if sure.holds else None,
            needed=sure.needed,
            doubtful_below=claim.chance_min if claim.chance_min > 0 else None,
            recall_low=claim.recall_low if claim.chance_min > 0 else None,
        )


class SilentMisses(ApiModel):
    """Frames in which nothing was reported and which were sent all the same.

    known: those for which there is an answer whether something was missed, by who gave it. missed_high: with 95 %
    confidence something was missed in no larger share of such frames; null: there are no answers.
    """

    sent: int
    known: int
    by: dict[str, int]
    missed: int
    missed_high: float | None
    missed_alerts: list[str]


class PoolItem(ApiModel):
    """The workers as they announced themselves lately; null: nobody said."""

    workers: int
    ready: int
    wait_s: float | None
    gpu_hour: float | None


_NO_POOL = PoolItem(workers=0, ready=0, wait_s=None, gpu_hour=None)


class CascadeReport(ApiModel):
    """The last decision about each alert of the last `days`.

    kept: stayed at the edge, of these sure and doubtful by the appliance's own estimate. asked: escalated, of these
    audited only as one of a sample, and flagged while the appliance's own answer stood. labels: answers that count, by
    who gave them.
    """

    days: int
    alerts: int
    kept: int
    kept_share: float | None
    sure: int
    doubtful: int
    asked: int
    audited: int
    flagged: int
    labels: dict[str, int]
    claims: list[CascadeClaim]
    silent: SilentMisses
    pool: PoolItem


class CascadeReader:
    """Reads what the router decided and learnt. Any thread may call."""

    def __init__(self, db: Database, probes: CoreProbes) -> None:
        self._db = db
        self._decisions = DecisionStore(db)
        self._silent = SilentFrameStore(db)
        self._probes = probes
        self._held: tuple[tuple[int, int, int], TierCounts, SilentMisses] | None = None

    def report(self, days: int = CASCADE_DAYS) -> CascadeReport:
        """Return the report. Raise StoreError."""
        tiers, silent = self._counts(days)
        pool = self._probes.pool() if self._probes.pool is not None else None
        alerts = tiers.kept + tiers.asked
        return CascadeReport.of_row(
            tiers,
            days=days,
            alerts=alerts,
            kept_share=tiers.kept / alerts if alerts else None,
            labels=dict(tiers.labels),
            claims=self._claims(),
            silent=silent,
            pool=PoolItem.model_validate(pool) if pool else _NO_POOL,
        )

    def _claims(self) -> list[CascadeClaim]:
        calibration = self._probes.calibration()
        if not calibration.everything.n:
            return []
        places = sorted(calibration.cameras.items(), key=lambda each: (-each[1].n, each[0]))[:GROUPS_MAX]
        everything = CascadeClaim.of("", "", calibration.everything)
        named = ((place.partition("/"), fit) for place, fit in places)
        return [everything, *(CascadeClaim.of(camera, label, fit) for (camera, _, label), fit in named)]

    def _counts(self, days: int) -> tuple[TierCounts, SilentMisses]:
        """Return the counts.

        They are made anew when an alert has changed, and each minute, since each alert is read.
        """
        since_t = self._db.clock.now() - days * DAY_S
        key = (self._db.rev(), days, int(since_t // 60))
        held = self._held
        if held is None or held[0] != key:
            held = self._held = (key, self._decisions.tiers(since_t), self._counted())
        return held[1], held[2]

    def _counted(self) -> SilentMisses:
        found = self._silent.counts()
        return SilentMisses.of_row(
            found,
            by=dict(found.by),
            missed_high=round(error_bound(found.missed, found.known), 4) if found.known else None,
            missed_alerts=list(found.missed_alerts),
        )


CascadePart = Annotated[CascadeReader, Depends(provided(CascadeReader))]


@router.get("/cascade")
def cascade(reader: CascadePart, days: Annotated[int, Query(ge=1, le=366)] = CASCADE_DAYS) -> CascadeReport:
    """Return what the router kept at the edge in the last days, and what it claims of that."""
    return reader.report(days)
