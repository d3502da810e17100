"""What the terminal shows of the demo: one calm line for each thing that a person wants to know."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from datetime import datetime
from typing import TextIO

from appliance.clock import Clock
from appliance.demo.api import Api, NoAnswer, Seen
from appliance.errors import redact

REMEMBERED_MAX = 2000


class Teller:
    """Prints lines for people, or JSON lines for programs. State: none. Secrets are taken out."""

    def __init__(self, clock: Clock, *, as_json: bool, out: TextIO | None = None) -> None:
        self._clock = clock
        self._as_json = as_json
        self._out = out or sys.stdout

    def tell(self, event: str, text: str, *, stamped: bool = True, **fields: object) -> None:
        """Say that `event` happened; `text` for people, `fields` for programs."""
        now = self._clock.now()
        if self._as_json:
            line = json.dumps({"event": event, "t": round(now, 3), **fields})
        else:
            line = f"{_clock_time(now)}  {text}" if stamped else text
        try:
            print(redact(line), file=self._out, flush=True)
        except BrokenPipeError:
            self._out = open("/dev/null", "w")  # noqa: SIM115 (nobody listens any more; the demo goes on)


class Story:
    """Tells each alert and each verdict once.

    State: the alerts told of, at most `REMEMBERED_MAX`, and their verdicts. Owner: the main thread. Alerts that began
    before `since_t` (of an earlier demo in the same folder) are passed over.
    """

    def __init__(self, api: Api, teller: Teller, url: str, since_t: float) -> None:
        self._api = api
        self._teller = teller
        self._url = url
        self._since_t = since_t
        self._verdicts: OrderedDict[str, str | None] = OrderedDict()
        self.alerts = 0
        self.verdicts = 0

    def look(self) -> None:
        """Ask once and tell what is new; an appliance that does not answer now is asked again later."""
        try:
            for alert in reversed(self._api.alerts()):
                if alert.t_start >= self._since_t:
                    self._take(alert)
        except NoAnswer:
            return

    def _take(self, alert: Seen) -> None:
        if alert.id not in self._verdicts:
            self._verdicts[alert.id] = None
            self.alerts += 1
            self._teller.tell(
                "alert", self._alert_line(alert), id=alert.id, camera=alert.camera, rules=list(alert.rules)
            )
            while len(self._verdicts) > REMEMBERED_MAX:
                self._verdicts.popitem(last=False)
        if alert.verdict is not None and self._verdicts[alert.id] != alert.verdict:
            reason = self._api.reason(alert.id)
            self._verdicts[alert.id] = alert.verdict
            self.verdicts += 1
            text = f"verdict  {alert.camera}: {alert.verdict}{_sentence(reason)}"
            self._teller.tell("verdict", text, id=alert.id, verdict=alert.verdict, reason=reason)

    def _alert_line(self, alert: Seen) -> str:
        rules = ", ".join(alert.rules)
        return f"alert    {alert.camera}: {alert.title} ({rules})  {self._url.rstrip('/')}{alert.page}"


def _sentence(reason: str) -> str:
    return f" - {reason}" if reason else ""


def _clock_time(t: float) -> str:
    return datetime.fromtimestamp(t).astimezone().strftime("%H:%M:%S")
