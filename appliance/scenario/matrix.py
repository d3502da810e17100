"""One scenario in several kinds of weather: a plan for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from appliance.scenario.plan import Plan
from appliance.weather.weather import Weather


def in_each_weather(plan: Plan, instead: Sequence[Weather] = ()) -> list[Plan]:
    """One plan for each weather that the scenario names under `with`, or for each of `instead`."""
    return [replace(plan, weather=each, name=title(plan.name, each)) for each in instead or plan.scenario.weathers]


def title(name: str, weather: Weather) -> str:
    """`yard [rain:10mm, night:1lux]`; nothing is added for clear weather."""
    return f"{name} [{weather}]" if weather.conditions else name


def weathers(wanted: Iterable[str], seed: int) -> tuple[Weather, ...]:
    """What was written on the command line, each a weather of its own."""
    return tuple(Weather.read([each], seed) for each in wanted)
