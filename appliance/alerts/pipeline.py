"""Runs the decisions of one camera: rules engine, then alert policy. Pure: the same boxes give the same alerts."""

from __future__ import annotations

from collections.abc import Set

from appliance.alerts.merge_policy import AlertPolicy
from appliance.config import AlertsConfig, CameraConfig
from appliance.rules.engine import RulesEngine
from appliance.rules.schedule import LocalTime
from appliance.types import FrameBoxes, PipelineStep, StreamHeader


class Pipeline:
    """The decisions of one camera. Owner: the core (one per camera) or a replay; not shared between threads.

    local_time: the weekday (Monday 0) and minute of the day of a frame time, for schedules; None: every rule is always
    armed, as in a replay, whose times are seconds since the clip began. Messages are fed in the order in which they
    were made. A message of another camera is a mistake of the caller: ValueError. rules, policy: to be asked, not fed.
    """

    def __init__(
        self, camera_name: str, camera: CameraConfig, alerts: AlertsConfig, local_time: LocalTime | None = None
    ) -> None:
        self._camera = camera_name
        self.rules = RulesEngine(camera_name, camera, local_time)
        self.policy = AlertPolicy(camera_name, alerts, camera.rules)

    @property
    def is_idle(self) -> bool:
        """No track is remembered and no alert is open: a frame in which nothing is decides nothing."""
        return not self.policy.is_open and not self.rules.tracks

    def feed(self, message: StreamHeader | FrameBoxes, *, off: Set[str] = frozenset()) -> PipelineStep:
        """Everything this message decides: its events, and for each the change or suppression it caused, in order.

        off: names of rules that report nothing now.
        """
        if message.camera != self._camera:
            raise ValueError(f"a message of camera {message.camera} was fed to the pipeline of {self._camera}")
        events = self.rules.feed(message, off=off)
        if isinstance(message, StreamHeader):
            return self.policy.begin(message)
        decided = self.policy.feed(message, events)
        return PipelineStep(events, decided.changes, decided.suppressed)

    def tick(self, t: float) -> PipelineStep:
        """Time has come to `t` (the camera's time) without boxes; call it while the camera is not delivering."""
        return self.policy.tick(t)

    def close(self, t: float, reason: str) -> PipelineStep:
        """End the stream at `t`; an open alert ends with it."""
        return self.policy.close(t, reason)
