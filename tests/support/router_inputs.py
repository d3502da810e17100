"""The router's inputs by the names that a log line has, whatever group they are in."""

from __future__ import annotations

from typing import Any

from appliance.base.json_lines import grouped
from appliance.types import RouteInputs


def route_inputs(**known: Any) -> RouteInputs:
    assert set(known) <= set(RouteInputs.KEYS)
    return grouped(RouteInputs, known)
