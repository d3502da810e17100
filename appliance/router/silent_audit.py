"""Draws frames in which nothing was reported, to be sent as an audit: what the detector misses raises no alert."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance import wire
from appliance.config import Rule
from appliance.router.decide import must_wait
from appliance.router.escalation_planner import RouterContext, escalation_id
from appliance.types import FrameBoxes, RouteInputs

SILENT_RULE = "silent-audit"
SLOT_S = 60.0  # of each slot at most one frame is drawn
_DAY_S = 86400.0  # seconds


@dataclass(frozen=True, slots=True)
class SilentFrame:
    """A frame that is to be sent although nothing was reported in it. labels: what the camera's rules watch for."""

    escalation: wire.Escalation
    labels: tuple[str, ...]
    run: str


class SilentFrameAudit:
    """Draws frames of one camera. Owner: the core, in one thread. State: the slot that was looked at last.

    Which slots are drawn follows from site, camera and time alone. Of a drawn slot the first frame counts that was
    examined, in which none of the watched objects was detected, and while no alert was open. It goes only if the camera
    is watched then, the owner's rules let a whole frame of it leave, and the budget and the load have room for it, or
    not at all.
    """

    def __init__(
        self,
        camera: str,
        rules: Sequence[Rule],
        context: RouterContext,
        armed: Callable[[Rule, float], bool],
        may_leave: Callable[[str, float], bool],
    ) -> None:
        """armed: whether a rule is, at a time; may_leave: whether a whole frame of a camera is, at a time."""
        settings = context.settings
        self._camera = camera
        self._rules = [rule for rule in rules if rule.escalate and rule.severity in settings.severities]
        self._context = context
        self._armed = armed
        self._may_leave = may_leave
        self._share = settings.router.silent_frames_day * SLOT_S / _DAY_S
        self._enabled = context.uplink and settings.enabled and self._share > 0 and bool(self._rules)
        self._slot = -1

    def draw(self, boxes: FrameBoxes, model: str, run: str, now: float) -> SilentFrame | None:
        """Return the frame as an escalation, if it is one of the sample. Call it for frames while no alert is open."""
        slot = int(boxes.t // SLOT_S)
        if not self._enabled or not boxes.looked or slot == self._slot or not self._is_drawn(slot):
            return None
        watching = [rule for rule in self._rules if self._armed(rule, boxes.t)]
        labels = tuple(dict.fromkeys(label for rule in watching for label in rule.labels))
        if not watching or any(found.label in labels for found in boxes.objects):
            return None
        self._slot = slot
        if not self._may_leave(self._camera, boxes.t) or not self._has_room(now):
            return None
        return SilentFrame(self._escalation(slot, boxes, labels, model, now), labels, run)

    def _is_drawn(self, slot: int) -> bool:
        return _fraction(f"silent|{self._context.site}|{self._camera}|{slot}") < self._share

    def _has_room(self, now: float) -> bool:
        """Room in the budget beyond the reserve for alerts, now; an audit is never put off, but left out."""
        context, settings = self._context, self._context.settings
        load = context.system_load
        if load.link_up is False:
            return False
        hours = settings.off_peak
        waits = hours is not None and "info" in hours.severities and context.off_peak_in_s is not None
        inputs = RouteInputs(
            severity="info",
            queue_age_s=load.queue_age_s,
            load=load.load,
            temperature_c=load.temperature_c,
            off_peak_in_s=context.off_peak_in_s(now) if waits and context.off_peak_in_s else None,
            pool_wait_s=load.pool_wait_s,
            gpu_hour=load.gpu_hour,
        )
        cost = context.budget.cost(context.bytes_[0] + settings.frame_bytes_max, self._camera, "frames")
        if must_wait(inputs, cost, context.budget.limits(now), settings, now, urgent=False) is not None:
            return False
        context.budget.spend(cost, now)
        return True

    def _escalation(
        self, slot: int, boxes: FrameBoxes, labels: tuple[str, ...], model: str, now: float
    ) -> wire.Escalation:
        site = self._context.site
        alert = hashlib.sha256(f"silent|{site}|{self._camera}|{slot}".encode()).hexdigest()[:16]
        named = " or ".join(labels)[:60]
        return wire.Escalation(
            id=escalation_id(site, alert),
            site=site,
            camera=self._camera,
            alert=alert,
            rule=SILENT_RULE,
            kind="audit",
            label=named,
            severity="info",
            question=f"Nothing was reported here. Is there a {named} in this picture that should have been noticed?",
            t=boxes.t,
            created_t=now,
            model=model,
        )


def _fraction(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2.0**64
