"""What an export is made of: pictures with the boxes that were drawn in them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from appliance.types import Box, Review

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")


class Drawn(BaseModel):
    """One box as the detector drew it. box: shares of the picture; flagged: its track was what the alert was about."""

    model_config = ConfigDict(frozen=True)

    label: str
    track: int
    score: float
    box: Box
    flagged: bool


class Sample(BaseModel):
    """One picture. file: its name; t: the camera's time, UTC seconds; drawn: empty for a background."""

    model_config = ConfigDict(frozen=True)

    file: str
    t: float
    width: int
    height: int
    drawn: tuple[Drawn, ...] = ()


class Exported(BaseModel):
    """What one alert gave. review: what a person had said of it then; left_out: why there are no samples of it."""

    model_config = ConfigDict(frozen=True)

    alert: str
    camera: str
    t_start: float
    review: Review
    split: Split
    samples: tuple[Sample, ...] = ()
    left_out: str = ""

    @property
    def background(self) -> bool:
        return self.review == "false_alarm"
