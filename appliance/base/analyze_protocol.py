"""Request, answer, accepted media types and rate limit of `POST /api/v1/analyze`, shared by appliance and worker."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

PATH = "/api/v1/analyze"
ITEMS_MAX = 8  # pictures and clips of one request
BODY_BYTES_MAX = 12 * 1024 * 1024  # bytes of a request: 9 MB of pictures in base64, or a clip of 15 s at 4 Mbit/s
LABEL_CHARS_MAX, TIME_MAX = 300, 4e9  # characters of a name and UTC seconds, as in wire.py
TEXT_CHARS_MAX = 2000  # characters, as of a rule's text for the model
KEYS_MAX = 1024  # callers whose rate is remembered; one that was forgotten starts anew
Tier = Literal["auto", "edge", "cloud"]
"""Choose who answers: whoever the router thinks right, the appliance alone, or the cloud model."""
MediaKind = Literal["picture", "clip"]


class AnalyzeItem(BaseModel):
    """A picture (JPEG, PNG, WebP) or a clip (MP4) as base64, and what is asked of it.

    camera: whose pictures, and whose money. question: in your words, for the cloud model. label: "is there one?", which
    the appliance's detector can answer. Neither: the boxes alone. t: when it was taken; null: now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    camera: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    media: Base64Bytes
    question: Annotated[str, Field(max_length=TEXT_CHARS_MAX)] = ""
    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX, pattern=r"^[A-Za-z0-9 _-]*$")] = ""
    tier: Tier = "auto"
    t: Annotated[float, Field(ge=0, le=TIME_MAX)] | None = None


class AnalyzeRequest(BaseModel):
    """A batch: each item is answered for itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: Annotated[list[AnalyzeItem], Field(min_length=1, max_length=ITEMS_MAX)]


class AnalyzeBox(BaseModel):
    """An object, its box in shares of the picture. t: seconds into a clip; 0: of a picture."""

    label: str
    score: float
    box: tuple[float, float, float, float]
    t: float = 0.0


class AnalyzeCost(BaseModel):
    """The cost of the cloud's part; all 0 where the appliance answered. estimated: nobody has judged it yet."""

    money: float = 0.0
    currency: str = ""
    gpu_s: float = 0.0
    bytes: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False


class AnalyzeAnswer(BaseModel):
    """The answer to one item.

    status: answered; pending (status_url has the answer later); refused, with the reason. tier: who gave `answer`; "":
    there is none yet, or boxes alone. judge: the kind of judge in the cloud; answered_by: of several engines, which.
    flagged: a reason to doubt `answer`; "": none. Of the appliance's answer: why it stands without the cloud, or until
    the cloud answers. Of the cloud's: how many better engines did not answer. provisional: the reason is still being
    written. timings: seconds by stage.
    """

    id: str = ""
    camera: str
    status: Literal["answered", "pending", "refused"]
    tier: Literal["edge", "cloud", ""] = ""
    answer: Literal["yes", "no", "unsure", ""] = ""
    confidence: float | None = None
    reason: str = ""
    judge: str = ""
    answered_by: str = ""
    model: str = ""
    boxes: list[AnalyzeBox] = []
    cost: AnalyzeCost = AnalyzeCost()
    timings: dict[str, float] = {}
    flagged: str = ""
    provisional: bool = False
    status_url: str = ""


class AnalyzeAnswers(BaseModel):
    """The answers, in the order of the items."""

    items: list[AnalyzeAnswer]


def media_kind(media: bytes) -> MediaKind | None:
    """Return what these bytes say they are; None: nothing that is taken."""
    if media.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")) or (media[:4] + media[8:12] == b"RIFFWEBP"):
        return "picture"
    return "clip" if media[4:8] == b"ftyp" else None


class RequestRate:
    """Limits how many items each caller may send: a token bucket a caller, which holds one minute's worth.

    State: what each of the last KEYS_MAX callers has left. Owner: one thread at a time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Take `now`, which returns monotonic seconds."""
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, items: int, per_minute: int) -> float:
        """Take so many of `per_minute`; return 0, or, with nothing taken, the seconds after which there is room."""
        now, full = self._now(), float(per_minute)
        left, at = self._left.pop(caller, (full, now))
        left = min(full, left + (now - at) * full / 60)
        wait_s = max(0.0, (min(items, full) - left) * 60 / full)
        self._left[caller] = (left if wait_s else left - items, now)
        while len(self._left) > KEYS_MAX:
            self._left.popitem(last=False)
        return wait_s
