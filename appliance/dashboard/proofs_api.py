"""`/api/v1/proofs`: networks that were tried on this site's recording beside the one in force, and what differs."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Depends

from appliance.canary.judge import Outcome
from appliance.canary.proof_store import ProofReport, ProofStore
from appliance.dashboard.schemas import API, ApiModel
from appliance.web.dependencies import provided
from appliance.web.route_list import RouteList

router = RouteList(prefix=f"{API}/proofs", tags=["settings"])


class DifferingItem(ApiModel):
    """A frame in which only one of both is sure of an object. found: `old` (the network in force) or `new`."""

    camera: str
    t: float
    kind: str
    found: str
    frame: str
    timeline: str


class ProofItem(ApiModel):
    """A trial. networks: in force, then the candidate. cpu_ratio: CPU time of an inference against the other's.

    objects: those that the network in force is sure of; lost: of them those that the candidate does not see; gained:
    those that only the candidate is sure of. wins, losses: known alerts and kept scenarios that only one gets right.
    footage_s, wall_s: seconds of recording, and of the clock.
    """

    candidate: str
    made_t: float
    outcome: Outcome
    reasons: tuple[str, ...]
    lacking: tuple[str, ...]
    networks: tuple[str, str]
    frames: int
    objects: int
    lost: int
    gained: int
    wins: int
    losses: int
    cpu_ratio: float | None
    footage_s: float
    wall_s: float
    differing: list[DifferingItem]

    @classmethod
    def of(cls, report: ProofReport) -> ProofItem:
        differing = []
        for each in report.differing:
            camera = quote(each.camera, safe="")
            frame = f"{API}/cameras/{camera}/frame?t={each.t:.1f}&size=small"
            timeline = f"/cameras/{camera}/timeline?t={each.t:.1f}"
            differing.append(DifferingItem.of_row(each, frame=frame, timeline=timeline))
        found = report.judgement
        judged = {name: getattr(found, name) for name in cls.model_fields if hasattr(found, name)}
        return cls.of_row(report, **judged, differing=differing)


ProofPart = Annotated[ProofStore, Depends(provided(ProofStore))]


@router.get("")
def proofs(store: ProofPart) -> list[ProofItem]:
    """Return the last trial of each network, the newest first. `vedette models prove` makes them."""
    return [ProofItem.of(each) for each in store.all()]
