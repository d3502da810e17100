"""The `sensors` section: where the sensors of the appliance are read. See docs/power.md."""

from __future__ import annotations

from pathlib import Path

from appliance.base.config_model import ConfigModel


class SensorsConfig(ConfigModel):
    """root: of the file system in which /sys, /proc and /dev of the appliance lie."""

    root: Path = Path("/")
