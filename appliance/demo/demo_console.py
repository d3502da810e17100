"""The output of `vedette demo`: alerts and verdicts as lines for people, or as JSON lines."""

from __future__ import annotations

import http.client
import json
import sys
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

from appliance.base.clock import Clock
from appliance.base.errors import VedetteError, printable, redact

TIMEOUT_S = 3.0  # of the demo's own dashboard on loopback, also on a busy laptop


ANSWER_BYTES_MAX = 4 * 1024 * 1024  # a page of alerts has some 100 kB


class NoAnswer(VedetteError):
    """The dashboard did not answer, or not as it should; ask again later."""


@dataclass(frozen=True, slots=True)
class DemoAlert:
    """An alert of the API's list, as far as the demo shows it."""

    id: str
    camera: str
    title: str
    rules: tuple[str, ...]
    t_start: float
    verdict: str | None
    page: str


class DashboardClient:
    """Asks the appliance on this machine. No state; never through a proxy."""

    def __init__(self, port: int) -> None:
        self._port = port

    def healthy(self) -> bool:
        """Return whether the dashboard answers."""
        try:
            self._get("/healthz")
        except NoAnswer:
            return False
        return True

    def alerts(self, limit: int = 50) -> list[DemoAlert]:
        """Return the newest alerts, newest first. Raise NoAnswer."""
        try:
            return [
                DemoAlert(
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
        """Return the cloud's reason for its verdict; "" without one. Raise NoAnswer."""
        verdict = self._get(f"/api/v1/alerts/{alert}").get("verdict") or {}
        return str(verdict.get("reason", ""))

    def _get(self, path: str) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
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


REMEMBERED_MAX = 2000  # alerts that were printed already; the newest 50 are asked for


class DemoConsole:
    """Prints lines for people, or JSON lines for programs. It has no state.

    Secrets are taken out, and so is everything that would steer a terminal: a reason is what a model wrote.
    """

    def __init__(self, clock: Clock, *, as_json: bool, out: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._out = out or sys.stdout

    def emit(self, event: str, text: str, *, stamped: bool = True, **fields: object) -> None:
        """Print that `event` happened; `text` for people, `fields` for programs."""
        now = self._clock.now()
        if self._as_json:
            line = json.dumps(
                {"event": event, "t": round(now, 3), **{key: _shown(each) for key, each in fields.items()}}
            )
        else:
            line = f"{datetime.fromtimestamp(now).astimezone():%H:%M:%S}  {text}" if stamped else text
        try:
            print(line if self._as_json else redact(printable(line)), file=self._out, flush=True)
        except BrokenPipeError:
            self._out = open("/dev/null", "w")  # noqa: SIM115 (the reader is gone; the demo goes on)


def _shown(value: object) -> object:
    """Return `value` without secrets. Before it is JSON: an address may end in a quote, which is escaped there."""
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return redact(value) if isinstance(value, str) else value


class AlertReporter:
    """Prints each alert and each verdict once.

    State: the alerts printed, at most `REMEMBERED_MAX`, and their verdicts. Owner: the main thread. Alerts that began
    before `since_t` (of an earlier demo in the same folder) are passed over.
    """

    def __init__(self, api: DashboardClient, console: DemoConsole, url: str, since_t: float) -> None:
        self._api = api
        self._console = console
        self._url = url
        self._since_t = since_t
        self._verdicts: OrderedDict[str, str | None] = OrderedDict()

    def poll(self) -> None:
        """Ask once and print what is new; an appliance that does not answer is asked again next time."""
        try:
            for alert in reversed(self._api.alerts()):
                if alert.t_start >= self._since_t:
                    self._take(alert)
        except NoAnswer:
            return

    def _take(self, alert: DemoAlert) -> None:
        if alert.id not in self._verdicts:
            self._verdicts[alert.id] = None
            self._console.emit(
                "alert", self._alert_line(alert), id=alert.id, camera=alert.camera, rules=list(alert.rules)
            )
            while len(self._verdicts) > REMEMBERED_MAX:
                self._verdicts.popitem(last=False)
        if alert.verdict is not None and self._verdicts[alert.id] != alert.verdict:
            reason = self._api.reason(alert.id)
            self._verdicts[alert.id] = alert.verdict
            text = f"verdict  {alert.camera}: {alert.verdict}{f' - {reason}' if reason else ''}"
            self._console.emit("verdict", text, id=alert.id, verdict=alert.verdict, reason=reason)

    def _alert_line(self, alert: DemoAlert) -> str:
        rules = ", ".join(alert.rules)
        return f"alert    {alert.camera}: {alert.title} ({rules})  {self._url.rstrip('/')}{alert.page}"
