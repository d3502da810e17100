"""The JSON messages of Vedette over NATS: escalations, media and verdicts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from appliance.base.analyze_protocol import AnalyzeAnswer, AnalyzeCost
from appliance.base.json_lines import WireError, first_problem
from appliance.types import CONFIRMING_KINDS, JUDGE_KINDS, Decision, JudgeKind, Severity

MESSAGE_BYTES_MAX = 512 * 1024  # half of max_payload of nats-server (1 MB)
CHUNK_BYTES = 128 * 1024  # 1 s of an uplink of 1 Mbit/s: what a lost link sends again
MEDIA_PER_ESCALATION_MAX = 16  # images and clips of all steps together
BOXES_MAX = 16  # of one image
STEPS_MAX = 3  # messages that one escalation may take: the first, and two more that the worker asks for
# Of escalations and verdicts. 2 added the steps: MediaRef.region, Escalation.step, Verdict.need …; 3 added the versions
# of the sides: Verdict.worker_version, answer_schema, and what the worker keeps: Verdict.looks, archive; 4 says who
# judged: Verdict.kind, the decision `rechecked`, and in which language: Escalation.language; 5 lets the decision come
# before its reason: Verdict.provisional, counts what the model server had cached: Verdict.tokens_cached, and says which
# of several engines answered: Verdict.answered_by, fallback; 6 says where an object was missed: FrameSupport.boxes.
WIRE_SCHEMA = 6
RECHECKED_SCHEMA = 4  # a site of an older schema does not know this decision
PROVISIONAL_SCHEMA = 5  # a site of an older schema would keep the sentence that stands for the reason
REASON_FOLLOWS = "The reason follows."
NO_REASON = "No reason was given with this decision."
AUDIT = "audit"
"""`Escalation.kind` of a frame in which nothing was reported."""
BY_APPLIANCE = "this appliance"
"""`answered_by` of a verdict of the appliance's own model; no engine of a worker can have a name with a space."""
# The kind of judge behind each engine name of a worker from before schema 4.
ENGINE_KINDS: dict[str, JudgeKind] = {"openai": "vlm", "redetect": "detector"}
MEDIA_BYTES_MAX = 32 * 1024 * 1024  # a clip of 60 s at 4 Mbit/s is 30 MB
TEXT_CHARS_MAX = 300  # of names and versions; a broker keeps verdicts of at most 68 kB
TIME_MAX = 4e9  # UTC seconds: the year 2096; what is later cannot be shown as a date either
STORED_FAULTS_MAX = 64  # more wrong values than a message has


def _blanked(text: str) -> str:
    """Return `text`, as long as it is, with a blank for each character that a terminal or a log would obey."""
    return "".join(char if char.isprintable() else " " for char in text)


Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX), AfterValidator(_blanked)]
"""A word or a line for people."""
Key = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
"""A text that is compared with something, never shown as it is."""
Time = Annotated[float, Field(ge=0, le=TIME_MAX)]
Seconds = Annotated[float, Field(ge=0, le=TIME_MAX)]
Score = Annotated[float, Field(ge=-1e6, le=1e6)]
Side = Annotated[float, Field(ge=-100, le=100)]
WireBox = tuple[Side, Side, Side, Side]
"""A share of the frame each; an object may reach beyond its edge."""
Count = Annotated[int, Field(ge=0, le=10**12)]
Version = Annotated[int, Field(ge=1, le=10**6)]
Stage = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


Need = Literal["crop", "frame", "clip"]
"""Evidence that a worker may ask for."""


class _WireModel(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_inf_nan="null", allow_inf_nan=False, cache_strings="none"
    )

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
            raise WireError(first_problem(error)) from None

    @classmethod
    def from_stored(cls, data: bytes) -> Any:
        """Parse like `from_json` what a version with fewer limits has let in.

        A value that is too long is cut, one that is out of its bounds is set to the nearest.
        """
        try:
            return cls.from_json(data)
        except WireError:
            tame = json.loads(data)
            for _ in range(STORED_FAULTS_MAX):
                try:
                    return cls.model_validate(tame)
                except ValidationError as error:
                    if not _tame(tame, error):
                        raise WireError(first_problem(error)) from None
            raise


def _tame(message: Any, error: ValidationError) -> bool:
    """Bring the first value that is wrong into its limits; False where none would do."""
    first = error.errors(include_url=False, include_input=False)[0]
    *path, last = first["loc"] or ("",)
    if last == "[key]":
        last = path.pop()
    limits = first.get("ctx", {})
    try:
        parent = _at(message, path)
        match first["type"]:
            case "string_too_long" | "too_long":
                parent[last] = parent[last][: limits["max_length"]]
            case "less_than_equal":
                parent[last] = limits["le"]
            case "greater_than_equal":
                parent[last] = limits["ge"]
            case "finite_number":
                parent[last] = 0.0
            case "string_pattern_mismatch":
                del parent[last]
            case _:
                return False
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _at(message: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        message = message[part]
    return message


class MediaRef(_WireModel):
    """One image or clip that travels beside an escalation, in chunks of `CHUNK_BYTES` bytes.

    id is the first 32 hex digits of sha256. t is the camera's time of the frame (a clip: of its first frame).
    box is where the flagged object is in this very image (None: not seen in it). region: the part of the camera's
    frame that a crop shows (None: all of it).
    """

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kind: Literal["crop", "frame", "clip"]
    mime: Literal["image/jpeg", "image/webp", "video/mp4"]
    bytes: Annotated[int, Field(ge=1, le=MEDIA_BYTES_MAX)]
    sha256: Sha256
    chunks: Annotated[int, Field(ge=1, le=MEDIA_BYTES_MAX // CHUNK_BYTES + 1)]
    t: Time
    width: Annotated[int, Field(ge=1, le=16384)] = 1
    height: Annotated[int, Field(ge=1, le=16384)] = 1
    box: WireBox | None = None
    region: WireBox | None = None


class Escalation(_WireModel):
    """The message to the cloud about an alert, with evidence. Idempotent by `id` and `step` on both sides.

    step counts the messages of this escalation from 0; each holds all evidence sent so far. can: what the site would
    send next if it were asked to, the cheapest first. image_free: this site sends no images at all. model: the detector
    that raised the alert; box_version: of the appliance, "" from one older than schema 3. language: of LANGUAGES, in
    which the reason is wanted. elsewhere_s: the site has other regions, and may ask there what has no verdict after so
    long; a worker asks the site first whether an older one is still wanted (`wanted_subject`). 0: it has none.
    """

    schema_version: Version = WIRE_SCHEMA
    id: Name
    site: Name
    camera: Text
    alert: Key
    rule: Text
    kind: Text
    label: Text
    severity: Severity
    question: Annotated[str, Field(max_length=2000)] = ""
    t: Time
    created_t: Time
    score: Score = 0.0
    zone: Text = ""
    model: Text = ""
    media: Annotated[tuple[MediaRef, ...], Field(max_length=MEDIA_PER_ESCALATION_MAX)] = ()
    step: Annotated[int, Field(ge=0, lt=STEPS_MAX)] = 0
    can: Annotated[tuple[Need, ...], Field(max_length=8)] = ()
    image_free: bool = False
    box_version: Annotated[Text, Field(max_length=64)] = ""
    language: Annotated[Text, Field(max_length=16)] = "en"
    elsewhere_s: Annotated[float, Field(ge=0, le=86400)] = 0.0


class FoundBox(_WireModel):
    """Where a judge sees an object in an image. box: shares of the image."""

    label: Text
    box: WireBox


class FrameSupport(_WireModel):
    """The support of an alert by one evidence frame.

    boxes: of what was missed in a frame without a report, where a vision-language model says it is.
    """

    media: Key
    t: Time
    supports: Literal["yes", "no", "unsure"]
    score: Score | None = None
    boxes: Annotated[tuple[FoundBox, ...], Field(max_length=BOXES_MAX)] = ()


class ArchiveLink(_WireModel):
    """A link to a piece of evidence, or the verdict, that needs no other credential until `expires_t`.

    The upload may still be under way, or have failed: then the link answers 404.
    """

    kind: Literal["crop", "frame", "clip", "verdict"]
    media: Key = ""
    key: Annotated[str, Field(max_length=1024)]
    url: Annotated[str, Field(max_length=4096, pattern=r"^(https?://[\x21-\x7e]+)?$")] = ""
    expires_t: Time = 0.0


class Verdict(_WireModel):
    """The cloud's answer to one escalation.

    seconds is the time the judge itself took; timings holds the stages in seconds: link (made at the site until stored
    at the broker: two clocks), queue, fetch, preprocess, model, publish (judged until handed to the broker).
    `engine` says what judged: a re-detection never pretends to be a language model. answer_schema: the version of the
    form in which the model had to answer. looks: how often the model was asked.
    kind: who judged. Of a worker of before schema 4 it is known by its `engine`, and else `unknown`. Only a
    vision-language model and a person confirm (and a stand-in, in tests and replays): `confirmed` of any other is read
    as `rechecked`. need: this is not the final verdict; the site is to send that and escalate once more (the decision
    is `unsure` then, which is how a site that does not know of `need` takes it). step: which step was judged; None: an
    older worker. provisional: decision, confidence and support are final, and the reason is still being written: it
    follows in a second verdict on the same escalation. tokens_cached: of tokens_in, what the model server had cached.
    answered_by: of several engines, the name of the one that answered; fallback: how many better ones did not.
    """

    schema_version: Version = WIRE_SCHEMA
    escalation: Name
    site: Name
    alert: Key
    decision: Decision
    reason: Annotated[str, Field(min_length=1, max_length=400), AfterValidator(_blanked)]
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    support: Annotated[tuple[FrameSupport, ...], Field(max_length=MEDIA_PER_ESCALATION_MAX)] = ()
    kind: JudgeKind = "unknown"
    engine: Text
    model: Text
    prompt_version: Text = ""
    seconds: Seconds
    tokens_in: Count = 0
    tokens_out: Count = 0
    timings: Annotated[dict[Stage, Seconds], Field(max_length=32)] = {}
    worker: Text = ""
    judged_t: Time
    need: Need | None = None
    step: Annotated[int, Field(ge=0, lt=STEPS_MAX)] | None = None
    worker_version: Text = ""
    answer_schema: Text = ""
    looks: Annotated[int, Field(ge=0, le=8)] = 1
    archive: Annotated[tuple[ArchiveLink, ...], Field(max_length=MEDIA_PER_ESCALATION_MAX + 1)] = ()
    provisional: bool = False
    tokens_cached: Count = 0
    answered_by: Text = ""
    fallback: Annotated[int, Field(ge=0, le=64)] = 0

    @model_validator(mode="before")
    @classmethod
    def _by_who_judged(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = judge_kind(data.get("kind"), data.get("engine"))
        stands = data.get("decision") != "confirmed" or kind in CONFIRMING_KINDS
        return {**data, "kind": kind, "decision": data.get("decision") if stands else "rechecked"}


def judge_kind(kind: object, engine: object) -> JudgeKind:
    """Return the kind of judge, by what a verdict says of itself.

    A detector is one by whatever other name, and a kind that this version does not know is `unknown`.
    """
    by_engine = ENGINE_KINDS.get(engine) if isinstance(engine, str) else None
    if by_engine == "detector":
        return by_engine
    if kind in (None, ""):
        return by_engine or "unknown"
    return next((each for each in JUDGE_KINDS if each == kind), "unknown")


LANGUAGES: dict[str, str] = {
    "cs": "Czech", "da": "Danish", "de": "German", "en": "English", "es": "Spanish", "fi": "Finnish", "fr": "French",
    "hu": "Hungarian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "nb": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "zh": "Chinese",
}  # fmt: skip
"""The languages in which a site may want its reasons, by ISO 639-1 code. A site that wants another language is answered
in English."""

POOL_STATUS_BYTES_MAX = 4096  # several times an announcement with long names
POOL_COUNT_MAX = 10_000_000  # escalations or slots; more than a stream stores
PRICE_MAX = 10_000.0  # an hour, in any currency


class PoolStatus(_WireModel):
    """The announcement of a worker to all sites, every few seconds; one that is older than ttl_s counts for nothing.

    waiting: escalations that the broker stores, of all sites; slots: how many this worker judges at a time; judge_s:
    the mean time of one; cold_start_s: until it is ready; gpu_hour: the price of an hour, None: it has none.
    """

    schema_version: Version = WIRE_SCHEMA
    worker: Name
    ready: bool
    waiting: Annotated[int, Field(ge=0, le=POOL_COUNT_MAX)] = 0
    slots: Annotated[int, Field(ge=1, le=4096)] = 1
    judge_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    cold_start_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    gpu_hour: Annotated[float, Field(ge=0, le=PRICE_MAX)] | None = None
    ttl_s: Annotated[float, Field(ge=1, le=300)] = 60.0


POOL_SUBJECT = "vedette_pool.status"
"""Only workers may publish there; not below `vedette.`, where the second word is a site's name."""
STREAM_ESCALATION = "VEDETTE_ESCALATION"
STREAM_MEDIA = "VEDETTE_MEDIA"
STREAM_VERDICT = "VEDETTE_VERDICT"
_DIGEST_CHARS = 20  # 80 bits: nobody can foresee or collide it
PRIORITIES = ("high", "normal", "low")
PRIORITY_OF: dict[Severity, str] = {"alert": "high", "warning": "normal", "info": "low"}


def escalation_subject(site: str, priority: str) -> str:
    return f"vedette.{site}.escalation.{priority}"


def media_subject(site: str, media: str, chunk: int) -> str:
    """Every chunk has a subject of its own, so that the worker can fetch exactly what it lacks."""
    return f"vedette.{site}.media.{media}.{chunk}"


def verdict_subject(site: str) -> str:
    return f"vedette.{site}.verdict"


def wanted_subject(site: str) -> str:
    """Return where a site is asked, by the id, whether it still wants an escalation: it replies `yes` or `no`."""
    return f"vedette.{site}.wanted"


def message_id(site: str, *parts: str | int) -> str:
    """Return a `Nats-Msg-Id` that names the site.

    JetStream compares ids in the whole stream, and two sites may send the same image. Where another site may write into
    the stream, a part of the id must be what that site cannot know.
    """
    return ".".join((site, *map(str, parts)))


def escalation_message_id(escalation: Escalation) -> str:
    """Return the id of an escalation's message, with a digest of all that is in it.

    Another site that could foresee the id would publish something under it first, and the broker would take the
    escalation for a double and drop it.
    """
    return message_id(escalation.site, hashlib.sha256(escalation.to_json()).hexdigest()[:_DIGEST_CHARS])


TRACEPARENT = "traceparent"
"""The header of an escalation and of its verdicts that says which trace they are of (W3C Trace Context)."""
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")


def traceparent_of(escalation: Escalation) -> str:
    """Return the context in which a step is sent: one trace an escalation, the same however often it is sent."""
    trace = hashlib.sha256(f"{escalation.site}/{escalation.id}".encode()).hexdigest()[:32]
    return _traceparent(trace, f"{escalation.id}/{escalation.step}", "01")


def traceparent_after(before: str, span: str) -> str:
    """Return the context of what follows `before` in the same trace; '' where that is no context."""
    found = _TRACEPARENT.fullmatch(before)
    return _traceparent(found[1], f"{before}/{span}", found[2]) if found else ""


def _traceparent(trace: str, span: str, flags: str) -> str:
    return f"00-{trace}-{hashlib.sha256(span.encode()).hexdigest()[:16]}-{flags}"


def escalation_headers(escalation: Escalation) -> dict[str, str]:
    """Return the headers of an escalation's message. The id makes a repeated one harmless."""
    return {"Nats-Msg-Id": escalation_message_id(escalation), TRACEPARENT: traceparent_of(escalation)}


def verdict_message_id(verdict: Verdict) -> str:
    """Return the id of a verdict: an escalation has one final verdict, and one request for more evidence a step.

    A decision that comes before its reason is a message of its own.
    """
    if verdict.need is not None:
        return message_id(verdict.site, verdict.escalation, "need", verdict.step or 0)
    return message_id(verdict.site, verdict.escalation, "decision" if verdict.provisional else "verdict")


def answer_message_ids(escalation: Escalation) -> tuple[str, str]:
    """Return the ids under which this step is answered: by a final verdict, or by a request for more evidence."""
    return (
        message_id(escalation.site, escalation.id, "verdict"),
        message_id(escalation.site, escalation.id, "need", escalation.step),
    )


_ANSWERS: dict[Decision, Literal["yes", "no", "unsure"]] = {
    "confirmed": "yes", "rechecked": "yes", "rejected": "no", "unsure": "unsure",
}  # fmt: skip


def analyze_answer(verdict: Verdict, cost: AnalyzeCost, status_url: str = "") -> AnalyzeAnswer:
    """Return the answer that a verdict is; the caller names the camera, which a verdict does not."""
    return AnalyzeAnswer(
        id=verdict.alert, camera="", status="answered", tier="cloud", answer=_ANSWERS[verdict.decision],
        confidence=verdict.confidence, reason=verdict.reason, judge=verdict.kind, model=verdict.model, cost=cost,
        timings=dict(verdict.timings), provisional=verdict.provisional, status_url=status_url,
        answered_by=verdict.answered_by,
        flagged=f"better engines that did not answer: {verdict.fallback}" if verdict.fallback else "",
    )  # fmt: skip
