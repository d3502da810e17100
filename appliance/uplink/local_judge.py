"""Judges waiting escalations on the appliance with a local model server, while the cloud is away or the appliance idle.

The judge is the worker's (`vedette-worker judge`, a child), with its prompts and checks. Its verdict has `answered_by:
this appliance` and costs nothing. As with all verdicts, the first final one counts. `unsure` is left for the cloud, if
the site has one. Evidence that the privacy rules withhold is not sent to this model either.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from appliance.base.backoff import Backoff
from appliance.base.child_processes import CLOUD_WORKER, end_child
from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, StoreUnavailable
from appliance.base.json_lines import WireError
from appliance.base.telemetry import LogThrottle
from appliance.config import LocalJudgeConfig
from appliance.sandbox.sandbox import child_environment
from appliance.store.escalations import Delivery, EscalationRow, MediaRow
from appliance.uplink.send_workers import EgressPolicy
from appliance.uplink.uplink_service import UplinkDeps
from appliance.uplink.worker_announcements import LocalJudgeState
from appliance.wire import BY_APPLIANCE, MESSAGE_BYTES_MAX, Escalation, Verdict, traceparent_of

EVERY_S = 2.0  # between two looks at an outbox without work; a judgement takes longer
POLL_MS = 250  # between two looks whether the judgement is still wanted
CALLS_MAX, MARGIN_S = 2, 30.0  # calls of the model for one judgement, and what the child needs besides
AWAY_FIRST_S, AWAY_LAST_S = 5.0, 300.0  # before a server that is away is asked again
TRIED_MAX = 1024  # escalations that this judge could not settle; the oldest is asked again
END_S = 2.0  # of a child whose input has ended
WAITING: tuple[Delivery, ...] = ("ready", "deferred")  # not with the cloud: to be sent, or kept back by the router
SENT: Delivery = "sent"

logger = logging.getLogger(__name__)


class JudgingStopped(EngineError):
    """The judgement was not wanted any more."""


class JudgeChild:
    """The worker's judge in a process of its own. Owner: one thread. State: the process; the first question starts it.

    The key of the model server goes over standard input: no other process can read it there.
    """

    def __init__(self, settings: LocalJudgeConfig, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, escalation: Escalation, paths: Mapping[str, str], unwanted: Callable[[], bool]) -> Verdict:
        """Return the verdict. Raise EngineUnavailable, EngineError, JudgingStopped once it is `unwanted`."""
        line = json.dumps({"escalation": escalation.model_dump(mode="json"), "paths": dict(paths)})
        child = self._child or self._start()
        try:
            answer = json.loads(self._answer(child, line, unwanted))
        except BaseException:
            self.close()
            raise
        if "verdict" not in answer:
            failed = EngineUnavailable if answer.get("away") else EngineError
            raise failed(str(answer.get("error")))
        try:
            found: Verdict = Verdict.from_json(json.dumps(answer["verdict"]).encode())
        except WireError as error:
            raise EngineError(f"its verdict is not valid: {error}") from None
        if (found.escalation, found.site) != (escalation.id, escalation.site):
            raise EngineError("its verdict is about another escalation")
        return found.model_copy(update={"answered_by": BY_APPLIANCE})

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]
        end_child(child, asked_s=END_S)
        child.stdout.close()  # type: ignore[union-attr]

    def _start(self) -> subprocess.Popen[bytes]:
        settings = self._settings
        engine = {
            "kind": "openai", "url": settings.url, "model": settings.model, "second_look": False,
            "images_max": settings.images_max, "image_side_max": settings.image_side_max,
            "crop_side_max": settings.image_side_max, "timeout_s": settings.timeout_s,
            "api_key": settings.api_key.get_secret_value() if settings.api_key else None,
        }  # fmt: skip
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", CLOUD_WORKER, "judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=child_environment(),
            )  # fmt: skip
        except OSError as error:
            raise EngineUnavailable(f"its process cannot be started: {error.strerror}") from None
        self._child = child
        self._write(child, json.dumps(engine))
        return child

    def _answer(self, child: subprocess.Popen[bytes], line: str, unwanted: Callable[[], bool]) -> bytes:
        self._write(child, line)
        assert child.stdout is not None
        ready, answer = select.poll(), b""
        ready.register(child.stdout, select.POLLIN | select.POLLHUP)
        until = self._clock.monotonic() + CALLS_MAX * self._settings.timeout_s + MARGIN_S
        while not answer.endswith(b"\n"):
            if unwanted():
                raise JudgingStopped("the appliance has other work")
            if self._clock.monotonic() > until or len(answer) > MESSAGE_BYTES_MAX:
                raise EngineError("no answer came in time")
            if ready.poll(POLL_MS):
                part = os.read(child.stdout.fileno(), MESSAGE_BYTES_MAX)
                if not part:
                    raise EngineUnavailable("its process ended; the log says why")
                answer += part
        return answer

    @staticmethod
    def _write(child: subprocess.Popen[bytes], line: str) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, as the end of its output tells
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()


@dataclass(frozen=True, slots=True)
class LocalJudgeSources:
    """Functions that return the reasons for and against local judging as texts; '': no reason. Each returns at once.

    cloud_away: why the cloud does not answer. busy: why the appliance is not idle. shed: why it sheds load. upkeep: the
    upkeep of the outbox on a site without uplink; None: there is a cloud, which gets the escalations that are not
    settled here.
    """

    cloud_away: Callable[[], str]
    busy: Callable[[], str]
    shed: Callable[[], str]
    upkeep: Callable[[], None] | None = None


class LocalJudge:
    """Judges one escalation at a time. Owner of one thread that calls `run()`, and of the child.

    State: the steps that it could not settle, and `state`, which any thread may read.
    """

    def __init__(
        self, settings: LocalJudgeConfig, deps: UplinkDeps, policy: EgressPolicy, clock: Clock,
        sources: LocalJudgeSources, changed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Take `changed`, which is called when an alert has a verdict."""
        self._settings = settings
        self._deps = deps
        self._policy = policy
        self._clock = clock
        self._sources = sources
        self._changed = changed
        self._child = JudgeChild(settings, clock)
        self._tried: OrderedDict[str, None] = OrderedDict()
        self._stop = threading.Event()
        self._throttle = LogThrottle(logger, clock)
        self.state = LocalJudgeState()

    def run(self) -> None:
        """Judge until `stop()`."""
        away = Backoff(AWAY_FIRST_S, AWAY_LAST_S)
        try:
            while not self._stop.is_set():
                pause_s = EVERY_S
                try:
                    pause_s = 0.0 if self.run_once() else EVERY_S
                    if not pause_s:
                        away.reset()
                except EngineUnavailable as error:
                    self._throttle.report(f"the local judge at {self._settings.url} is away: {error}")
                    self.state = replace(self.state, error=str(error))
                    pause_s = away.next_s()
                except StoreUnavailable as error:
                    self._throttle.report(f"the local judge waits: {error}")
                self.state = replace(self.state, at_work=False)
                if pause_s and not self._stop.is_set():
                    self._clock.sleep(pause_s, self._stop)
        finally:
            self._child.close()

    def stop(self) -> None:
        self._stop.set()

    def run_once(self) -> bool:
        """Judge the most urgent waiting escalation; False: none waits, or none may be judged now. Raise StoreError.

        Raise EngineUnavailable while the model server does not answer.
        """
        if self._sources.upkeep is not None:
            self._sources.upkeep()
        away = self._sources.cloud_away()
        why = self._waits_for(away)
        self.state = replace(self.state, waits_for=why)
        states = (*WAITING, SENT) if away else WAITING
        row = None if why else self._deps.outbox.queue.most_urgent(states, tuple(self._tried))
        if row is None:
            return False
        media = self._deps.outbox.media_of(row.id)
        if self._is_held_back(row, media):
            self._leave(row, "it has no image that may be shown")
            return True
        self.state = replace(self.state, at_work=True)
        paths = {each.ref.id: str(self._deps.root / each.path) for each in media}
        try:
            verdict = self._child.ask(row.body, paths, lambda: self._stop.is_set() or bool(self._sources.shed()))
        except EngineUnavailable:
            raise
        except JudgingStopped:
            return False
        except EngineError as error:
            self._leave(row, str(error))
            return True
        self.state = replace(self.state, error="")
        self._take(row, verdict)
        return True

    def _waits_for(self, away: str) -> str:
        if shed := self._sources.shed():
            return shed
        if self._settings.when == "idle":
            return self._sources.busy()
        return "" if away or self._settings.when == "always" else "the cloud answers"

    def _is_held_back(self, row: EscalationRow, media: Sequence[MediaRow]) -> bool:
        return (
            not media
            or self._policy.forbids(row.body)
            or any(self._policy.withholds(row.camera, each.path) for each in media)
        )

    def _take(self, row: EscalationRow, verdict: Verdict) -> None:
        if verdict.decision == "unsure" and verdict.need is None and self._sources.upkeep is None:
            self._leave(row, "the model is unsure")
            return
        now = self._clock.now()
        effect = self._deps.outbox.answered_here(row, lambda: self._deps.alerts.take_verdict(verdict, now))
        if effect == "known":  # the cloud was faster
            return
        self.state = replace(self.state, judged=self.state.judged + 1)
        answer = verdict.decision if verdict.need is None else f"the {verdict.need} is asked for"
        logger.info("local verdict on alert %s: %s, %s", row.alert, answer, traceparent_of(row.body))
        self._changed()

    def _leave(self, row: EscalationRow, why: str) -> None:
        """Leave this step of an escalation for the cloud; without one, give it up."""
        left = "left for the cloud" if self._sources.upkeep is None else "given up"
        logger.info("escalation %s is %s: %s", row.id, left, why)
        if self._sources.upkeep is not None:
            self._deps.outbox.give_up(row, f"this appliance's own judge could not answer: {why}")
        self._tried[f"{row.id}:{row.step}"] = None
        if len(self._tried) > TRIED_MAX:
            self._tried.popitem(last=False)
        self.state = replace(self.state, left=self.state.left + 1)
