"""Load shedding in steps, with hysteresis, while the appliance is hot, throttled or short of memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from appliance.config import LoadSheddingConfig
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import MemoryReading, SensorReading
from appliance.types import CACHES, RINGS, HealthKind

RATE, RESOLUTION, OFFLOAD = 1, 2, 3
"""Steps against heat, each with those before it. Those against lack of memory: CACHES, RINGS."""
THROTTLED_S = 60.0  # for so long, or while it comes again, a processor counts as throttled that was so twice
MEMORY_STEP_S = 10.0  # PSI's shortest mean: what a step gave back is seen then
MEMORY_CLEAR_S = 60.0  # shorter, and shedding itself would end what it is for, in turns
CLEAR_FACTOR = 1.25  # so much more than the limit is free again before anything is taken back
_MB = 1_000_000  # bytes
HEAT_STEPS: Mapping[int, str] = {
    RATE: "fewer detections a second",
    RESOLUTION: "fewer detections a second, at a lower resolution",
    OFFLOAD: "fewer detections a second, at a lower resolution, and what is doubtful goes to the cloud",
}
MEMORY_STEPS: Mapping[int, str] = {
    CACHES: "caches are emptied, and pre-roll in memory is halved",
    RINGS: "caches are emptied, pre-roll in memory is quartered, and no second stream is kept for live views",
}


@dataclass(frozen=True, slots=True)
class SheddingStep:
    """How far it has come. step: 0: nothing is shed. reason: why, as of the last step up."""

    step: int = 0
    reason: str = ""


class StepHysteresis:
    """A step that rises while a load is too much and falls after it has been well for a while.

    It goes up one step when it is too much for `hold_s`, and then every `step_s` as long as it stays so. Sensors
    flicker: it stays so while at least half of the readings in that time say so, the last one among them. It goes down
    one step when it is well for `clear_s`. A reading that is neither, or not known, counts for nothing.

    State: the step, since when it is as it is, the readings of the last while. Owner: one thread.
    """

    def __init__(self, *, hold_s: float, step_s: float, clear_s: float) -> None:
        self._hold_s, self._step_s, self._clear_s = hold_s, step_s, clear_s
        self._hot_since = 0.0
        self._well_since: float | None = None
        self._readings: deque[tuple[float, bool]] = deque()
        self.now = SheddingStep()

    def update(self, at: float, too_much: bool | None, why: str, steps_max: int) -> SheddingStep:
        """at: monotonic seconds. too_much: False: it is well; None: neither, or not known."""
        step, wait_s = self.now.step, self._step_s if self.now.step else self._hold_s
        while self._readings and at - self._readings[0][0] > wait_s:
            self._readings.popleft()
        if too_much and not any(hot for _, hot in self._readings):
            self._hot_since = at
        self._well_since = (self._well_since or at) if too_much is False else None
        if too_much is not None:
            self._readings.append((at, too_much))
        mostly = 2 * sum(hot for _, hot in self._readings) >= len(self._readings)
        if step > steps_max:
            self._move(steps_max, at, self.now.reason)
        elif too_much and mostly and step < steps_max and at - self._hot_since >= wait_s:
            self._move(step + 1, at, why)
        elif self._well_since is not None and step and at - self._well_since >= self._clear_s:
            self._move(step - 1, at, self.now.reason)
        return self.now

    def _move(self, step: int, at: float, why: str) -> None:
        self.now, self._hot_since = SheddingStep(step, why if step else ""), at
        self._well_since = at if self._well_since is not None else None


@dataclass(frozen=True, slots=True)
class LoadShedding:
    """The work that is shed now.

    fps_share, input_share: the shares that remain of detections a second, and of the sides of the detector's input.
    preroll_share: the share that remains of the rings that lie in memory.
    """

    heat: SheddingStep = SheddingStep()
    memory: SheddingStep = SheddingStep()
    fps_share: float = 1.0
    input_share: float = 1.0

    @property
    def offload(self) -> bool:
        """True if doubtful alerts go to the cloud at once."""
        return self.heat.step >= OFFLOAD

    @property
    def preroll_share(self) -> float:
        return 0.5**self.memory.step

    @property
    def faults(self) -> Mapping[HealthKind, str]:
        """A sentence for each of the two that lasts."""
        found: dict[HealthKind, str] = {}
        if self.heat.step:
            found["hot"] = f"the appliance is hot or throttled ({self.heat.reason}): {HEAT_STEPS[self.heat.step]}"
        if self.memory.step:
            reason, step = self.memory.reason, MEMORY_STEPS[self.memory.step]
            found["memory"] = f"the appliance is short of memory ({reason}): {step}"
        return found


NOTHING_SHED = LoadShedding()


class LoadShedder:
    """Decides from the appliance's status what is shed. Owner: one thread.

    State: the two hystereses, and when throttling was read last: flags come and go, and counters rise in bursts.
    """

    def __init__(self, settings: LoadSheddingConfig) -> None:
        self._settings = settings
        self._heat = StepHysteresis(hold_s=settings.hold_s, step_s=settings.step_s, clear_s=settings.clear_s)
        self._memory = StepHysteresis(hold_s=0.0, step_s=MEMORY_STEP_S, clear_s=MEMORY_CLEAR_S)
        self._throttled: deque[tuple[float, str]] = deque(maxlen=2)

    def update(self, at: float, status: SensorStatus) -> LoadShedding:
        """at: monotonic seconds."""
        settings = self._settings
        if not settings.enabled:
            return NOTHING_SHED
        hot, why_hot = _heat(self._latched(at, status.reading), settings)
        short, why_short = _shortage(status.memory, settings)
        heat = self._heat.update(at, hot, why_hot, OFFLOAD if settings.offload else RESOLUTION)
        memory = self._memory.update(at, short, why_short, RINGS)
        return LoadShedding(
            heat,
            memory,
            settings.fps_share if heat.step >= RATE else 1.0,
            settings.input_share if heat.step >= RESOLUTION else 1.0,
        )

    def _latched(self, at: float, reading: SensorReading) -> SensorReading:
        """Return the reading, with the throttling that was read twice within the last THROTTLED_S."""
        if reading.throttling:
            self._throttled.append((at, reading.throttling[0]))
            return reading
        if len(self._throttled) < 2 or at - self._throttled[0][0] > THROTTLED_S:
            return reading
        return replace(reading, throttling=(self._throttled[-1][1],))


def _heat(reading: SensorReading, settings: LoadSheddingConfig) -> tuple[bool | None, str]:
    """Too hot or throttled: True; well: False; in between, or not known: None. And why."""
    hottest = reading.hottest
    if reading.throttling:
        return True, reading.throttling[0]
    if hottest is None:
        return (None if reading.throttling is None else False), ""
    if hottest.celsius >= settings.temperature_max_c:
        return True, f"{hottest.celsius:.0f} °C at {hottest.name}"
    return (False if hottest.celsius < settings.temperature_clear_c else None), ""


def _shortage(memory: MemoryReading, settings: LoadSheddingConfig) -> tuple[bool | None, str]:
    """Judge memory in the same way: it is as full as the worst of its three measures, where 1 is the limit."""
    least = settings.memory_available_min_mb * _MB
    measured: list[tuple[float, str]] = []
    if memory.available_bytes is not None and least:
        left = f"{memory.available_bytes / _MB:.0f} MB are left"
        measured.append((least / max(1, memory.available_bytes), left))
    if memory.stalled is not None:
        waits = f"tasks wait for it {memory.stalled:.0%} of the time"
        measured.append((memory.stalled / settings.memory_stalled_max, waits))
    if memory.group_bytes is not None and memory.group_max_bytes:
        share = memory.group_bytes / memory.group_max_bytes
        measured.append((share / settings.memory_group_share_max, f"{share:.0%} of its control group's limit are used"))
    if not measured:
        return None, ""
    worst, why = max(measured)
    if worst >= 1:
        return True, why
    return (False if worst * CLEAR_FACTOR <= 1 else None), ""
