"""The section `costs`: the prices behind the comparison on the page Savings.

The description of each price says where its default is from; the dashboard and docs/costs.md show it beside the price.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from appliance.base.config_model import ConfigModel
from appliance.config.values import Amount

_GB = "1 GB by mobile network in the UK, 2023, by cable.co.uk (237 countries: Israel 0.02, USA 6.00)"
_PI_NODE = "a Raspberry Pi 5 as a node in a shop, early 2026: 150 over 3 years, 5 a month for its connection"


class EdgeCostConfig(ConfigModel):
    """The costs of one appliance. operations_million: people and services, for a million inferences."""

    device_price: Annotated[Amount, Field(description=_PI_NODE)] = 150.0
    device_years: Annotated[float, Field(gt=0, le=50, description=_PI_NODE)] = 3.0
    power_w: Annotated[
        Amount, Field(description="a Raspberry Pi 5 under load, at the wall: github.com/geerlingguy/sbc-reviews 60")
    ] = 9.0
    electricity_kwh: Annotated[Amount, Field(description="0.10 a kWh, early 2026; in much of Europe 0.30")] = 0.10
    connectivity_month: Annotated[Amount, Field(description=_PI_NODE)] = 5.0
    maintenance_month: Annotated[Amount, Field(description="nothing until you say so")] = 0.0
    operations_million: Annotated[Amount, Field(description="nothing until you say so")] = 0.0


class CloudCostConfig(ConfigModel):
    """The costs of sending every main stream to the cloud and of running the detector there.

    gpu_use: the share of its paid hours in which the GPU works. uplink_gb: also of what escalations send; where
    escalation.prices.uplink_gb is named and this is not, that one; None: always that one.
    """

    gpu_hour: Annotated[Amount, Field(description="an NVIDIA L4 on demand, RunPod by deploybase.ai, 2026")] = 0.44
    inferences_hour: Annotated[
        float, Field(gt=0, description="one in 10 ms on an L4, early 2026: an upper bound of its time")
    ] = 360_000.0
    gpu_use: Annotated[float, Field(gt=0, le=1, description="never idle; at 0.1 an inference costs ten times")] = 1.0
    uplink_gb: Annotated[Amount | None, Field(description=_GB)] = 0.62


class JudgeCostConfig(ConfigModel):
    """The prices of the judge's GPU, for spot beside reserved. warm_hours_day: it is kept on for, used or not."""

    spot_hour: Annotated[Amount, Field(description="an H100 on the spot market, early 2026")] = 0.80
    reserved_hour: Annotated[Amount, Field(description="an H100, early 2026; an H200 3.69")] = 2.01
    warm_hours_day: Annotated[float, Field(ge=0, le=24, description="always: a cold model takes a minute")] = 24.0


class CostsConfig(ConfigModel):
    """The prices behind the comparison on the page Savings, all in one currency."""

    currency: Annotated[str, Field(min_length=1, max_length=8, description="that of the defaults")] = "USD"
    edge: EdgeCostConfig = EdgeCostConfig()
    cloud: CloudCostConfig = CloudCostConfig()
    judge: JudgeCostConfig = JudgeCostConfig()
