"""The JSON that crosses a border: the ingest channel, the replay log, and the messages over NATS.

Readers ignore fields they do not know (a newer side may add some) and refuse what they cannot understand with
`WireError`. Golden files of each version live in `fixtures/wire`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from appliance.errors import VedetteError
from appliance.types import SCHEMA, Box, Decision, IngestMessage, LogLine, Severity

MESSAGE_BYTES_MAX = 512 * 1024
CHUNK_BYTES = 128 * 1024
MEDIA_PER_ESCALATION_MAX = 16
MEDIA_BYTES_MAX = 32 * 1024 * 1024

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class WireError(VedetteError):
    """A message that cannot be understood; the text says which field and why."""


_ingest: TypeAdapter[IngestMessage] = TypeAdapter(Annotated[IngestMessage, Field(discriminator="type")])
_log: TypeAdapter[LogLine] = TypeAdapter(Annotated[LogLine, Field(discriminator="type")])


def encode_ingest(message: IngestMessage) -> bytes:
    """One JSON line, newline included."""
    return _ingest.dump_json(message) + b"\n"


def decode_ingest(line: bytes) -> IngestMessage:
    """Read one line of the ingest channel. Raises WireError."""
    message: IngestMessage = _read(_ingest, line)
    return message


def encode_log(line: LogLine) -> bytes:
    """One line of a replay log, newline included; equal values give equal bytes."""
    return _log.dump_json(line) + b"\n"


def decode_log(line: bytes) -> LogLine:
    """Read one line of a replay log. Raises WireError."""
    found: LogLine = _read(_log, line)
    return found


def _read(adapter: TypeAdapter[Any], data: bytes) -> Any:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise WireError(_first_problem(error)) from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "message"
    return f"{where}: {first['msg']}"


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null", allow_inf_nan=False)

    def to_json(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes) -> Any:
        """Parse and validate. Raises WireError, with the first field that is wrong."""
        if len(data) > MESSAGE_BYTES_MAX:
            raise WireError(f"message of {len(data)} bytes is over the limit of {MESSAGE_BYTES_MAX}")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise WireError(_first_problem(error)) from None


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


STREAM_ESCALATION = "VEDETTE_ESCALATION"
STREAM_MEDIA = "VEDETTE_MEDIA"
STREAM_VERDICT = "VEDETTE_VERDICT"
PRIORITIES = ("high", "normal", "low")
PRIORITY_OF: dict[Severity, str] = {"alert": "high", "warning": "normal", "info": "low"}


def escalation_subject(site: str, priority: str) -> str:
    return f"vedette.{site}.escalation.{priority}"


def media_subject(site: str, media: str, chunk: int) -> str:
    """Every chunk has a subject of its own, so that the worker can fetch exactly what it lacks."""
    return f"vedette.{site}.media.{media}.{chunk}"


def verdict_subject(site: str) -> str:
    return f"vedette.{site}.verdict"


def message_id(site: str, *parts: str | int) -> str:
    """A `Nats-Msg-Id`. JetStream looks for doubles in the whole stream, so it names the site: two sites may send the
    same picture, and none may make another's message look like a double."""
    return ".".join((site, *map(str, parts)))
