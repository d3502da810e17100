"""Answers by hand, and films that raise questions, for tests of verdicts in a replay."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from appliance import wire
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.replay.replay_result import ReplayResult
from appliance.replay.verdict_source import VerdictSource
from appliance.uplink.verdict_client import TimedVerdict
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay

UPLINK = BrokerConfig(url="nats://127.0.0.1:4222")


def asking(**camera: object) -> SiteConfig:
    """The site of block_footage.py with an uplink; it begins with whole pictures, as questions always did."""
    config = site(**camera)
    # A strange name must change no answer: nothing of it is part of what is asked.
    return config.model_copy(
        update={"uplink": UPLINK, "escalation": config.escalation.model_copy(update={"first": "frames"})}
    )


def visits(path: Path, starts: tuple[float, ...] = (1.0, 20.0), seconds: float = 36.0, *, left: float = 0.1) -> Path:
    """Somebody walks from the left into the yard at each of `starts`, and is gone 8 s later: an alert each."""

    def where(t: float) -> float | None:
        for start in starts:
            if start <= t < start + 8:
                return left + 0.02 * starts.index(start) + 0.25 * min(t - start, 2.4)
        return None

    return block_clip(path, seconds, where)


class ScriptedCloud:
    """Answers each question with the next decision; `None` in the script: no verdict comes. A decision such as
    `need:frame` asks for more. `asked` holds what was asked."""

    site = "replay-test"

    def __init__(self, *script: str | None, seconds: float = 2.5, model: str = "vlm", answer_schema: str = "") -> None:
        self._script = list(script)
        self._seconds = seconds
        self._model = model
        self._answer_schema = answer_schema
        self.asked: list[wire.Escalation] = []
        self.files: list[int] = []

    def ask(
        self, escalation: wire.Escalation, priority: str, files: list[tuple[wire.MediaRef, bytes]]
    ) -> TimedVerdict | None:
        self.asked.append(escalation)
        self.files.append(len(files))
        decision = self._script.pop(0)
        if decision is None:
            return None
        verdict = wire.Verdict(
            escalation=escalation.id,
            site=escalation.site,
            alert=escalation.alert,
            decision="unsure" if decision.startswith("need:") else decision,
            reason=f"It is {decision}.",
            kind="simulated",
            engine="scripted",
            model=self._model,
            prompt_version="1",
            answer_schema=self._answer_schema,
            seconds=1.0,
            timings={"queue": 0.1, "model": 1.0},
            judged_t=1_700_000_000.0,
            need=decision.removeprefix("need:") if decision.startswith("need:") else None,
            step=escalation.step,
        )
        return TimedVerdict(verdict, 0.25, self._seconds, 1000)


def play(clip: Path, config: SiteConfig, source: VerdictSource | None, **how: object) -> tuple[ReplayResult, bytes]:
    """One replay of camera gate and its log."""
    log = io.BytesIO()
    replay_: Callable[..., ReplayResult] = replay
    result = replay_(
        clip, config.for_decisions(), "gate", BrightBlock(), log, clock=ManualClock(), verdict_source=source, **how
    )
    return result, log.getvalue()


def after_header(log: bytes) -> bytes:
    return log.split(b"\n", 1)[1]
