"""The `costs` section: prices of the appliance, and of sending everything to the cloud instead.

Each field's description says where its default is from; the dashboard and docs/costs.md show it beside the price.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from appliance.base.config_model import ConfigModel
from appliance.config.values import Amount

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

    gpu_use: the share of its paid hours in which the GPU works; uplink_gb: None: escalation.prices.uplink_gb.
    """

    gpu_hour: Annotated[Amount, Field(description="an NVIDIA L4 on demand, RunPod by deploybase.ai, 2026")] = 0.44
    inferences_hour: Annotated[
        float, Field(gt=0, description="one in 10 ms on an L4, early 2026: an upper bound of its time")
    ] = 360_000.0
    gpu_use: Annotated[float, Field(gt=0, le=1, description="never idle; at 0.1 an inference costs ten times")] = 1.0
    uplink_gb: Annotated[Amount | None, Field(description="as escalation.prices.uplink_gb")] = None


class CostsConfig(ConfigModel):
    """The prices behind the comparison on the page Savings, all in one currency."""

    currency: Annotated[str, Field(min_length=1, max_length=8, description="that of the defaults")] = "USD"
    edge: EdgeCostConfig = EdgeCostConfig()
    cloud: CloudCostConfig = CloudCostConfig()
