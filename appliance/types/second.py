"""A second look on the spot: what the core asks the ingest process to look at once more, and what that saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.types.words import Box, Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """Look at this place of the picture of time `t`; box: where the flagged object was seen."""

    t: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Footage:
    """A recorded segment: path relative to the storage folder, and which of the camera's time is readable in it."""

    path: str
    t_start: float
    t_end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLook:
    """To the ingest process: look again at one alert's object. id: comes back with the answer."""

    type: Literal["second_look"] = "second_look"
    id: str
    camera: str
    glimpses: tuple[Glimpse, ...]
    footage: tuple[Footage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One object, its box in shares of the camera's whole picture."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What was found around one glimpse; `box` is the glimpse's."""

    t: float
    box: Box
    found: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondSight:
    """What a second look saw. error: why there was none, in a sentence, and then `sightings` says nothing: it is never
    "nothing there". ms: from when it began until the last answer, its waiting for the detector included."""

    type: Literal["second_sight"] = "second_sight"
    id: str
    camera: str
    model: str = ""
    ms: float = 0.0
    sightings: tuple[Sighting, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeVerdict:
    """What the box itself says of an alert after a second look; the cloud's word, when it comes, stands above it.

    decision: confirmed or unsure; a box never withdraws an alert by itself. confidence: the chance that the alert is
    right, 0..1. why: what kept the cloud from answering. seen: in so many of the `looks` pictures the object was found;
    score: the mean of how sure it was of it, 0 where it was not found. ms: see SecondSight.
    """

    decision: Decision
    confidence: float
    reason: str
    model: str
    why: str
    looks: int
    seen: int
    score: float
    ms: float
    source: Literal["edge"] = "edge"
