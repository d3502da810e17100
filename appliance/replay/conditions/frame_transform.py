"""Applies the image conditions of a replay to each frame, before motion gate and detector see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import av

from appliance.replay.conditions.condition_spec import ConditionSet, FootageCondition
from appliance.replay.conditions.image_effects import (
    DAY_LUX,
    Blur,
    Dirt,
    Effect,
    EffectTime,
    Exposure,
    Infrared,
    Insects,
    Night,
    PlaneConverter,
    SeededRandom,
    SensorNoise,
    Shake,
    frame_of,
)
from appliance.replay.conditions.rain_snow_fog import Fog, Rain, Snow
from appliance.replay.conditions.stream_faults import BlackImage, Compression, Scale


class FrameTransform:
    """Makes of a frame what the camera would have shown. One camera, one thread.

    State: caches only. The outcome depends on the frame, its number and time, the conditions and the seed.
    """

    def __init__(self, conditions: ConditionSet) -> None:
        pairs = [
            (each, effect)
            for each, random in _randoms(conditions)
            for effect in _MAKERS.get(each.kind.name, _nothing)(each, random)
        ]
        self._effects = sorted(pairs, key=lambda pair: pair[1].stage)
        self._freezes = _freezes(conditions)
        self._converter = PlaneConverter()

    def __call__(self, frame: int, t: float, image: av.VideoFrame) -> av.VideoFrame:
        """Return the frame that is examined instead.

        Its rotation is undone even where nothing else is changed, so that size and orientation do not jump when a
        condition begins.
        """
        planes = self._converter.to_planes(image)
        frame, t = _frozen(self._freezes, frame, t)
        for condition, effect in self._effects:
            if condition.at(t):
                planes = effect.apply(planes, EffectTime(frame, t, t - condition.t0))
        return frame_of(planes, image)


def frame_transform_of(conditions: ConditionSet) -> FrameTransform | None:
    """Return the transform; None: nothing changes what is in a frame."""
    return FrameTransform(conditions) if conditions.image_conditions else None


def shake_offset(conditions: ConditionSet, frame: int, t: float) -> tuple[float, float]:
    """Return (x, y) in pixels by which the image is moved at that frame, right and down; see `Shake`."""
    x = y = 0.0
    frame, t = _frozen(_freezes(conditions), frame, t)
    for each, random in _randoms(conditions):
        if each.kind.name == "shake" and each.at(t):
            moved = Shake(each.amount, random).offset(frame)
            x, y = x + moved[0], y + moved[1]
    return x, y


def _freezes(conditions: ConditionSet) -> tuple[FootageCondition, ...]:
    return tuple(each for each in conditions.conditions if each.kind.name == "freeze")


def _frozen(freezes: Sequence[FootageCondition], frame: int, t: float) -> tuple[int, float]:
    """Return the number and time of the frame whose conditions apply: a frozen frame keeps its rain and noise.

    Its number only seeds them, so the milliseconds at which the freeze began do as well as any.
    """
    for each in freezes:
        if each.at(t):
            return round(each.t0 * 1000), each.t0
    return frame, t


def _randoms(conditions: ConditionSet) -> list[tuple[FootageCondition, SeededRandom]]:
    """Return each condition with its own randomness; the second of a kind is not like the first."""
    seen: Counter[str] = Counter()
    found = []
    for each in conditions.conditions:
        name = each.kind.name
        found.append((each, SeededRandom(conditions.seed, f"{name}/{seen[name]}")))
        seen[name] += 1
    return found


def _nothing(condition: FootageCondition, random: SeededRandom) -> tuple[Effect, ...]:
    """Return no effect, for a fault that changes which frames come, not their content."""
    return ()


def _night(condition: FootageCondition, random: SeededRandom) -> tuple[Effect, ...]:
    return Night(condition.amount, random), SensorNoise(2.0 + 2.2 * (DAY_LUX / condition.amount) ** 0.3, random)


def _infrared(condition: FootageCondition, random: SeededRandom) -> tuple[Effect, ...]:
    return Infrared(condition.amount, switches=condition.t0 > 0), SensorNoise(4.0, random, grey=True)


_MAKERS: Mapping[str, Callable[[FootageCondition, SeededRandom], tuple[Effect, ...]]] = {
    "rain": lambda each, random: (Rain(each.amount, random),),
    "snow": lambda each, random: (Snow(each.amount, random),),
    "fog": lambda each, random: (Fog(each.amount, random),),
    "night": _night,
    "infrared": _infrared,
    "exposure": lambda each, random: (Exposure(each.amount),),
    "flash": lambda each, random: (Exposure(each.amount, fades=True),),
    "dirt": lambda each, random: (Dirt(each.amount, random),),
    "insects": lambda each, random: (Insects(each.amount, random),),
    "blur": lambda each, random: (Blur(each.amount),),
    "shake": lambda each, random: (Shake(each.amount, random),),
    "noise": lambda each, random: (SensorNoise(each.amount, random),),
    "scale": lambda each, random: (Scale(each.amount),),
    "jpeg": lambda each, random: (Compression(each.amount),),
    "black": lambda each, random: (BlackImage(),),
}
