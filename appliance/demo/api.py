"""The demo's view of the appliance: its HTTP API, asked as any integrator would."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from appliance.errors import VedetteError

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class NoAnswer(VedetteError):
    """The dashboard did not answer, or not as it should; ask again later."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An alert as the API lists it, as far as the demo tells of it."""

    id: str
    camera: str
    title: str
    rules: tuple[str, ...]
    t_start: float
    verdict: str | None
    page: str


class Api:
    """Asks the appliance on this machine. No state; never through a proxy."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port

    def healthy(self) -> bool:
        """Whether the dashboard answers."""
        try:
            self._get("/healthz")
        except NoAnswer:
            return False
        return True

    def alerts(self, limit: int = 50) -> list[Seen]:
        """The newest alerts, newest first. Raises NoAnswer."""
        try:
            return [
                Seen(
                    id=str(item["id"]),
                    camera=str(item["camera"]),
                    title=str(item["title"]),
                    rules=tuple(map(str, item["rules"])),
                    t_start=float(item["t_start"]),
                    verdict=item["verdict"],
                    page=str(item["page"]),
                )
                for item in self._get(f"/api/v1/alerts?limit={limit}")["alerts"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise NoAnswer(f"the list of alerts is not as expected ({error!r})") from None

    def reason(self, alert: str) -> str:
        """Why the cloud decided so; empty when nobody did. Raises NoAnswer."""
        verdict = self._get(f"/api/v1/alerts/{alert}").get("verdict") or {}
        return str(verdict.get("reason", ""))

    def _get(self, path: str) -> Any:
        link = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            link.request("GET", path, headers={"Accept": "application/json"})
            answer = link.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
            if answer.status != http.client.OK:
                raise NoAnswer(f"{path} answered {answer.status}")
            return json.loads(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{path}: {error}") from None
        finally:
            link.close()
