"""The section `health`: when a camera, or the appliance, is reported as faulty."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from appliance.base.config_model import ConfigModel
from appliance.types import HealthKind


class HealthConfig(ConfigModel):
    """When a camera, or the appliance, is reported as faulty. See docs/health.md."""

    ignore: tuple[HealthKind, ...] = ()
    stalled_s: Annotated[float, Field(ge=3, le=3600)] = 6.0
    frozen_s: Annotated[float, Field(ge=2, le=3600)] = 7.0
    black_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    covered_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    moved_s: Annotated[float, Field(ge=1, le=3600)] = 4.0
    moved_share: Annotated[float, Field(ge=0.03, le=0.4)] = 0.05
    unexamined_s: Annotated[float, Field(ge=2, le=3600)] = 5.0
    detector_s: Annotated[float, Field(ge=2, le=3600)] = 8.0
    overloaded_s: Annotated[float, Field(ge=5, le=3600)] = 10.0
    offset_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0
