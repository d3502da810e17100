"""A verdict cassette: the cloud's answers as JSON lines, found again by what was asked. The format and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from appliance import wire
from appliance.types import SCHEMA

CASSETTE: Literal["vedette.cassette"] = "vedette.cassette"
VERSION = 1
JUDGES_MAX = 16
_YEAR_S = 366 * 86400.0

Seconds = Annotated[float, Field(ge=0, le=_YEAR_S)]


class _Part(BaseModel):
    """Readers ignore fields that they do not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class Judge(_Part):
    """Who answered."""

    engine: Annotated[str, Field(max_length=200)]
    model: Annotated[str, Field(max_length=200)]
    prompt_version: Annotated[str, Field(max_length=200)] = ""

    def __str__(self) -> str:
        prompt = f", prompt {self.prompt_version}" if self.prompt_version else ""
        said = f"{self.engine} {self.model}{prompt}"
        return "".join(letter if letter.isprintable() else "?" for letter in said)


class CassetteHeader(_Part):
    """First line. recorded: when, for people; nothing of the header is part of a match."""

    cassette: Literal["vedette.cassette"] = CASSETTE
    version: Annotated[int, Field(ge=1)] = VERSION
    schema_version: int = SCHEMA
    judges: Annotated[tuple[Judge, ...], Field(min_length=1, max_length=JUDGES_MAX)]
    recorded: Annotated[str, Field(max_length=40)] = ""
    vedette: Annotated[str, Field(max_length=40)] = ""


class Asked(_Part):
    """What was asked. t: of the event, in seconds of `clip`, or with `utc` UTC seconds (a recording, a live box).

    camera, t, utc and clip are there for `--match nearest`. step: how often more evidence had been asked for.
    with_clip: a clip went along. Its bytes are no part of the key: they are cut from packets that no replay has.
    """

    camera: Annotated[str, Field(max_length=64)]
    rule: Annotated[str, Field(max_length=64)]
    kind: Annotated[str, Field(max_length=64)]
    label: Annotated[str, Field(max_length=200)]
    zone: Annotated[str, Field(max_length=200)]
    question: Annotated[str, Field(max_length=2000)]
    score: float = 0.0
    t: float
    utc: bool = False
    clip: Annotated[str, Field(max_length=1000)] = ""
    step: Annotated[int, Field(ge=0, le=100)] = 0
    with_clip: bool = False


class CassetteLine(_Part):
    """One verdict. total_s: from the question's moment to the verdict, of which `stages` says what is known in seconds;
    bytes: what asking put on the uplink."""

    key: wire.Sha256
    asked: Asked
    media: Annotated[tuple[wire.Sha256, ...], Field(max_length=wire.MEDIA_PER_ESCALATION_MAX)] = ()
    verdict: wire.Verdict
    total_s: Seconds
    stages: Annotated[dict[str, Seconds], Field(max_length=32)] = {}
    bytes: Annotated[int, Field(ge=0)] = 0

    @property
    def judge(self) -> Judge:
        return Judge(engine=self.verdict.engine, model=self.verdict.model, prompt_version=self.verdict.prompt_version)

    @property
    def fits_its_key(self) -> bool:
        """Whether the key is that of what stands beside it."""
        return self.key == key_of(self.asked, self.media)


def key_of(asked: Asked, media: Iterable[str]) -> str:
    """64 hex digits of the words of a question and its pictures, in any order.

    Left out is all that differs between a live box and a replay of it, or between two replays, although the same is
    asked: site, camera, times, ids, score, and where in the picture the tracker put its box. A question without any
    picture is told from others by the facts that its judge is shown instead.
    """
    pictures = [*sorted(media), *(["clip"] if asked.with_clip else [])]
    said: list[object] = [asked.question, asked.rule, asked.kind, asked.label, asked.zone, pictures]
    if not pictures:
        said += [asked.camera, asked.score]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()


def asked_of(body: wire.Escalation, *, t: float, utc: bool, clip: str = "") -> Asked:
    """Of a question as it is sent."""
    return Asked(
        camera=body.camera,
        rule=body.rule,
        kind=body.kind,
        label=body.label,
        zone=body.zone,
        question=body.question,
        score=round(body.score, 3),
        t=round(t, 3),
        utc=utc,
        clip=clip,
        step=body.step,
        with_clip=any(ref.kind == "clip" for ref in body.media),
    )


def media_of(body: wire.Escalation) -> tuple[str, ...]:
    """The hashes of a question's pictures, sorted."""
    return tuple(sorted(ref.sha256 for ref in body.media if ref.kind != "clip"))


def stages_of(verdict: wire.Verdict) -> dict[str, float]:
    """The worker's stages in seconds, as far as they can be true."""
    return {name: seconds for name, seconds in [*verdict.timings.items()][:30] if 0 <= seconds <= _YEAR_S}
