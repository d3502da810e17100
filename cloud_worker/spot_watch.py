"""Watches for the cloud's notice that this machine's spot capacity is taken back, so that its work goes on elsewhere.

| kind | what is asked | the notice |
|---|---|---|
| aws | `/latest/meta-data/spot/instance-action`, with a token (IMDSv2) | JSON with `time`; 404: none. Two minutes |
| gcp | `/computeMetadata/v1/instance/preempted` | `TRUE`. Thirty seconds |
| azure | `/metadata/scheduledevents` | an event `Preempt`. Thirty seconds at least |

Only the machine itself can reach these addresses. Unmeasured: on a machine of these clouds; tests ask a stand-in.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime

from appliance.base.clock import Clock
from appliance.base.telemetry import LogThrottle
from cloud_worker.config import SpotConfig

ADDRESSES = {
    "aws": "http://169.254.169.254", "gcp": "http://metadata.google.internal", "azure": "http://169.254.169.254",
}  # fmt: skip
ANSWER_S_MAX = 2.0  # of a service on the machine itself
ANSWER_BYTES_MAX = 64 * 1024  # some hundred bytes are usual
_TOKEN_S = "300"  # life of a session token of AWS
_NONE = 404  # HTTP: no notice has been given
# Any of them is an answer that is none of such a service: no HTTP, no JSON, or JSON of another shape.
_ANSWER_ERRORS = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)

logger = logging.getLogger(__name__)


class SpotWatch:
    """State: none but its log. Owner: the worker's loop, one task."""

    def __init__(self, settings: SpotConfig, clock: Clock, noticed: Callable[[float], None]) -> None:
        """noticed: called once, with the seconds that are left."""
        self._settings = settings
        self._clock = clock
        self._noticed = noticed
        self._url = settings.url or ADDRESSES[settings.kind]
        self._log = LogThrottle(logger, clock)

    async def run(self) -> None:
        """Ask every `every_s` until there is a notice; then wait for ever."""
        while True:
            try:
                left_s = await asyncio.to_thread(self._left_s)
            except _ANSWER_ERRORS as error:
                self._log.report(f"the notices of the spot market cannot be read: {error} (spot.kind, spot.url)")
            else:
                if left_s is not None:
                    self._noticed(left_s)
                    await asyncio.Event().wait()
            await asyncio.sleep(self._settings.every_s)

    def _left_s(self) -> float | None:
        """Return the seconds until the machine is taken back; None: there is no notice. Raise any of _ANSWER_ERRORS."""
        grace_s = self._settings.grace_s
        if self._settings.kind == "gcp":
            path, headers = "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}
            return grace_s if self._read(path, headers) == b"TRUE" else None
        if self._settings.kind == "azure":
            body = self._read("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
            events = json.loads(body or b"{}").get("Events", [])
            return grace_s if any(each.get("EventType") == "Preempt" for each in events) else None
        token = self._read("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_S}, method="PUT")
        headers = {"X-aws-ec2-metadata-token": (token or b"").decode("ascii")}
        body = self._read("/latest/meta-data/spot/instance-action", headers)
        if body is None:
            return None
        at = datetime.fromisoformat(json.loads(body)["time"].replace("Z", "+00:00"))
        return max(0.0, at.timestamp() - self._clock.now())

    def _read(self, path: str, headers: Mapping[str, str], method: str = "GET") -> bytes | None:
        """Return the answer; None: there is no such thing (404)."""
        request = urllib.request.Request(self._url + path, headers=dict(headers), method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # one would answer for itself
        try:
            with direct.open(request, timeout=ANSWER_S_MAX) as answer:
                body: bytes = answer.read(ANSWER_BYTES_MAX)
                return body
        except urllib.error.HTTPError as error:
            if error.code == _NONE:
                return None
            raise
