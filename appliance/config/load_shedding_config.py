"""The `load_shedding` section: when the appliance does less, because of heat or lack of memory. See docs/power.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from appliance.base.config_model import ConfigModel


class LoadSheddingConfig(ConfigModel):
    """When load is shed and when it comes back.

    Heat: from temperature_max_c on, or throttled, for hold_s, one step after another, each step_s apart; back one step
    when it has been below temperature_clear_c and not throttled for clear_s. Memory: at once.
    """

    enabled: bool = True
    temperature_max_c: Annotated[float, Field(ge=30, le=120)] = 80.0
    temperature_clear_c: Annotated[float, Field(ge=20, le=119)] = 74.0
    hold_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    step_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    clear_s: Annotated[float, Field(ge=1, le=86400)] = 120.0
    fps_share: Annotated[float, Field(ge=0.1, lt=1)] = 0.5
    input_share: Annotated[float, Field(ge=0.5, lt=1)] = 0.75
    offload: bool = False
    memory_available_min_mb: Annotated[float, Field(ge=0)] = 200.0
    memory_stalled_max: Annotated[float, Field(gt=0, le=1)] = 0.1
    memory_group_share_max: Annotated[float, Field(gt=0, le=1)] = 0.9

    @model_validator(mode="after")
    def _apart(self) -> LoadSheddingConfig:
        if self.temperature_clear_c >= self.temperature_max_c:
            raise ValueError("temperature_clear_c must be below temperature_max_c, or it would go back and forth")
        return self
