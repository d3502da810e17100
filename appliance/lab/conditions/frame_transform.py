"""Applies the image conditions of a replay to each frame, before motion gate and detector see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import av

from appliance.lab.conditions.condition_spec import ConditionSet, FootageCondition
from appliance.lab.conditions.image_effect import Effect, EffectTime, PlaneConverter, SeededRandom, frame_of
from appliance.lab.conditions.lens_shake import Blur, Dirt, Insects, Shake
from appliance.lab.conditions.night_light import DAY_LUX, Exposure, Infrared, Night, SensorNoise
from appliance.lab.conditions.rain_snow_fog import Fog, Rain, Snow
from appliance.lab.conditions.stream_faults import BlackImage, Compression, Scale


class FrameTransform:
    """Makes of a frame what the camera would have shown. One camera, one thread.

    State: caches only. What comes out depends on the picture, its number and time, the conditions and the seed.
    """

    def __init__(self, weather: ConditionSet) -> None:
        pairs = [
            (each, effect)
            for each, chance in _chances(weather)
            for effect in _MAKERS.get(each.kind.name, _nothing)(each, chance)
        ]
        self._effects = sorted(pairs, key=lambda pair: pair[1].stage)
        self._freezes = _freezes(weather)
        self._copies = PlaneConverter()

    def __call__(self, frame: int, t: float, picture: av.VideoFrame) -> av.VideoFrame:
        """The picture that is examined instead; upright even where nothing else is changed, so that size and
        orientation do not jump when a condition begins."""
        planes = self._copies.to_planes(picture)
        frame, t = _frozen(self._freezes, frame, t)
        for condition, effect in self._effects:
            if condition.at(t):
                planes = effect.apply(planes, EffectTime(frame, t, t - condition.t0))
        return frame_of(planes, picture)


def frame_transform_of(weather: ConditionSet) -> FrameTransform | None:
    """None: nothing changes what is in a frame."""
    return FrameTransform(weather) if weather.image_conditions else None


def shake_offset(weather: ConditionSet, frame: int, t: float) -> tuple[float, float]:
    """(x, y) in pixels by which the picture is moved at that frame, right and down; see `Shake`."""
    x = y = 0.0
    frame, t = _frozen(_freezes(weather), frame, t)
    for each, chance in _chances(weather):
        if each.kind.name == "shake" and each.at(t):
            moved = Shake(each.amount, chance).offset(frame)
            x, y = x + moved[0], y + moved[1]
    return x, y


def _freezes(weather: ConditionSet) -> tuple[FootageCondition, ...]:
    return tuple(each for each in weather.conditions if each.kind.name == "freeze")


def _frozen(freezes: Sequence[FootageCondition], frame: int, t: float) -> tuple[int, float]:
    """The frame and time whose weather is seen: a frozen picture's rain and grain are frozen with it."""
    for each in freezes:
        if each.at(t):
            return round(each.t0 * 1000), each.t0
    return frame, t


def _chances(weather: ConditionSet) -> list[tuple[FootageCondition, SeededRandom]]:
    """Each kind has its own chance, whatever else is wrong; the second of a kind is not like the first."""
    seen: Counter[str] = Counter()
    found = []
    for each in weather.conditions:
        name = each.kind.name
        found.append((each, SeededRandom(weather.seed, f"{name}/{seen[name]}")))
        seen[name] += 1
    return found


def _nothing(condition: FootageCondition, chance: SeededRandom) -> tuple[Effect, ...]:
    """Of a fault that changes which frames come, not what is in them."""
    return ()


def _night(condition: FootageCondition, chance: SeededRandom) -> tuple[Effect, ...]:
    return Night(condition.amount, chance), SensorNoise(2.0 + 2.2 * (DAY_LUX / condition.amount) ** 0.3, chance)


def _infrared(condition: FootageCondition, chance: SeededRandom) -> tuple[Effect, ...]:
    return Infrared(condition.amount, switches=condition.t0 > 0), SensorNoise(4.0, chance, grey=True)


_MAKERS: Mapping[str, Callable[[FootageCondition, SeededRandom], tuple[Effect, ...]]] = {
    "rain": lambda each, chance: (Rain(each.amount, chance),),
    "snow": lambda each, chance: (Snow(each.amount, chance),),
    "fog": lambda each, chance: (Fog(each.amount, chance),),
    "night": _night,
    "infrared": _infrared,
    "exposure": lambda each, chance: (Exposure(each.amount),),
    "flash": lambda each, chance: (Exposure(each.amount, fades=True),),
    "dirt": lambda each, chance: (Dirt(each.amount, chance),),
    "insects": lambda each, chance: (Insects(each.amount, chance),),
    "blur": lambda each, chance: (Blur(each.amount),),
    "shake": lambda each, chance: (Shake(each.amount, chance),),
    "noise": lambda each, chance: (SensorNoise(each.amount, chance),),
    "scale": lambda each, chance: (Scale(each.amount),),
    "jpeg": lambda each, chance: (Compression(each.amount),),
    "black": lambda each, chance: (BlackImage(),),
}
