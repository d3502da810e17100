"""`vedette cameras discover`: what answers in the local network, as a table or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from appliance.base.clock import SystemClock
from appliance.onvif.discovery import LISTEN_S, discover_cameras


def discover_command(*, as_json: bool) -> int:
    """Print the cameras. Returns the exit code."""
    found = discover_cameras(SystemClock())
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return 0
    if not found:
        print(f"No ONVIF camera answered within {LISTEN_S:g} s. Is ONVIF on in the camera, and is it in this network?")
    for each in found:
        about = ", ".join(part for part in (each.name, each.make, each.place) if part)
        print(f"{each.address}  {about}" + (f"  (it names {each.elsewhere}, not used)" if each.elsewhere else ""))
    return 0
