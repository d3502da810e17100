"""The messages over NATS as schema 1 had them, frozen: a side that was not updated."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from appliance.types import Box, Decision, Severity
from appliance.wire import CHUNK_BYTES, MEDIA_BYTES_MAX, MEDIA_PER_ESCALATION_MAX, Name, Sha256

SCHEMA = 1


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null", allow_inf_nan=False)

    def to_json(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes) -> Any:
        return cls.model_validate_json(data)


class MediaRef(_Wire):
    """One picture or clip that travels beside an escalation, in chunks of `CHUNK_BYTES` bytes.

    id is the first 32 hex digits of sha256. t is the camera's time of the frame (a clip: of its first frame).
    box is where the flagged object is in this very frame (None: not seen in it).
    """

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kind: Literal["crop", "frame", "clip"]
    mime: Literal["image/jpeg", "image/webp", "video/mp4"]
    bytes: Annotated[int, Field(ge=1, le=MEDIA_BYTES_MAX)]
    sha256: Sha256
    chunks: Annotated[int, Field(ge=1, le=MEDIA_BYTES_MAX // CHUNK_BYTES + 1)]
    t: float
    width: Annotated[int, Field(ge=1, le=16384)] = 1
    height: Annotated[int, Field(ge=1, le=16384)] = 1
    box: Box | None = None


class Escalation(_Wire):
    """A question to the cloud, with its evidence. Idempotent by `id` on both sides."""

    schema_version: int = SCHEMA
    id: Name
    site: Name
    camera: str
    alert: str
    rule: str
    kind: str
    label: str
    severity: Severity
    question: Annotated[str, Field(max_length=2000)] = ""
    t: float
    created_t: float
    score: float = 0.0
    zone: str = ""
    model: str = ""
    media: Annotated[tuple[MediaRef, ...], Field(max_length=MEDIA_PER_ESCALATION_MAX)] = ()


class FrameSupport(_Wire):
    """What one evidence frame says about the claim."""

    media: str
    t: float
    supports: Literal["yes", "no", "unsure"]
    score: float | None = None


class Verdict(_Wire):
    """The cloud's answer to one escalation.

    seconds is the time the judge itself took; timings holds the worker's stages in seconds (queue, fetch,
    preprocess, model). `engine` says what judged: a re-detection never pretends to be a language model.
    """

    schema_version: int = SCHEMA
    escalation: Name
    site: Name
    alert: str
    decision: Decision
    reason: Annotated[str, Field(min_length=1, max_length=400)]
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    support: Annotated[tuple[FrameSupport, ...], Field(max_length=MEDIA_PER_ESCALATION_MAX)] = ()
    engine: str
    model: str
    prompt_version: str = ""
    seconds: Annotated[float, Field(ge=0)]
    tokens_in: Annotated[int, Field(ge=0)] = 0
    tokens_out: Annotated[int, Field(ge=0)] = 0
    timings: dict[str, float] = {}
    worker: str = ""
    judged_t: float
