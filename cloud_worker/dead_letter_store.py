"""Stores escalations that could not be judged, with the reason; a person lists and requeues them."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Literal

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from appliance.base.errors import UsageError
from appliance.broker.nats_connection import broker_errors, complaint
from appliance.wire import STREAM_ESCALATION
from cloud_worker.stream_setup import STREAM_DEAD, site_and_priority

Kind = Literal["unreadable", "stray", "redelivered", "engine", "media", "fault"]
KINDS: tuple[Kind, ...] = ("unreadable", "stray", "redelivered", "engine", "media", "fault")
"""unreadable: not an escalation. stray: on a subject that no worker reads. redelivered: workers died over it. engine:
the judge failed at it each time. media: what was announced never came. fault: a fault in the worker, each time."""

REQUEUED = "Vedette-Requeued"
_REASON, _KIND, _SUBJECT = "Vedette-Dead-Reason", "Vedette-Dead-Kind", "Vedette-Dead-Subject"
_DELIVERIES, _STORED, _WORKER = "Vedette-Dead-Deliveries", "Vedette-Dead-Stored", "Vedette-Dead-Worker"
_MESSAGE_ID = "Vedette-Dead-Msg-Id"
_REASON_CHARS_MAX = 500  # a header of NATS; the log has all
LIST_MAX = 1000  # rows on a terminal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An escalation, and why it is here. seq: its number in the stream of dead letters, 0 before it is there.

    stored: when the broker had got the escalation, ISO 8601. data: the message as the site sent it.
    """

    kind: Kind
    reason: str
    subject: str
    message_id: str
    deliveries: int
    stored: str
    worker: str
    data: bytes
    seq: int = 0


async def put(js: JetStreamContext, letter: DeadLetter) -> None:
    """Keep the letter, once however often it is published. Raise UplinkError."""
    site = site_and_priority(letter.subject)
    headers = {
        _REASON: _plain(letter.reason)[:_REASON_CHARS_MAX],
        _KIND: letter.kind,
        _SUBJECT: _plain(letter.subject)[:_REASON_CHARS_MAX],
        _DELIVERIES: str(letter.deliveries),
        _STORED: letter.stored,
        _WORKER: _plain(letter.worker),
        _MESSAGE_ID: _plain(letter.message_id)[:_REASON_CHARS_MAX],
        "Nats-Msg-Id": _plain(f"dead.{letter.stored}.{letter.subject}.{letter.message_id}")[: 2 * _REASON_CHARS_MAX],
    }
    subject = f"vedette.{site[0] if site else 'unknown'}.dead"
    with broker_errors("a dead letter could not be stored, and is tried again"):
        try:
            await js.publish(subject, letter.data, stream=STREAM_DEAD, headers=headers)
        except (nats.js.errors.BadRequestError, nats.errors.MaxPayloadError) as error:  # the same the next time
            logger.error(
                "%s: a dead letter of %d bytes is lost: %s", letter.subject, len(letter.data), complaint(error)
            )


async def list_newest(js: JetStreamContext, count: int) -> list[DeadLetter]:
    """Return the newest `count` dead letters, the newest first. Raise UplinkError."""
    found: list[DeadLetter] = []
    with broker_errors("the dead letters could not be read"), contextlib.suppress(nats.js.errors.NotFoundError):
        state = (await js.stream_info(STREAM_DEAD)).state
        for seq in range(state.last_seq, state.first_seq - 1, -1):
            if len(found) >= min(count, LIST_MAX) or len(found) >= state.messages:
                break
            with contextlib.suppress(nats.js.errors.NotFoundError):  # sent again, and so no longer here
                found.append(_letter(seq, await js.get_msg(STREAM_DEAD, seq)))
    return found


async def read_one(js: JetStreamContext, seq: int) -> DeadLetter:
    """Return dead letter number `seq`. Raise UsageError when there is none, UplinkError."""
    with broker_errors(f"the dead letter {seq} could not be read"):
        try:
            return _letter(seq, await js.get_msg(STREAM_DEAD, seq))
        except nats.js.errors.NotFoundError:
            raise UsageError(f"there is no dead letter {seq}: see `vedette-worker dead-letters list`") from None


async def requeue(js: JetStreamContext, seq: int) -> DeadLetter:
    """Publish the escalation again, as if the site had, and delete its dead letter. Raise UsageError, UplinkError.

    Its id is a new one: under the old one the broker may take it for a double.
    """
    letter = await read_one(js, seq)
    if site_and_priority(letter.subject) is None:
        raise UsageError(f"dead letter {seq} came on {letter.subject}, where no site may ask: it cannot be sent again")
    headers = {REQUEUED: str(seq), "Nats-Msg-Id": f"requeued.{seq}.{letter.message_id}"}
    with broker_errors(f"the dead letter {seq} could not be sent again"):
        await js.publish(letter.subject, letter.data, stream=STREAM_ESCALATION, headers=headers)
        await js.delete_msg(STREAM_DEAD, seq)
    return letter


async def move_stray(js: JetStreamContext, subject: str, worker: str) -> DeadLetter | None:
    """Move the first message of a subject that no worker reads out of the queue. Raise UplinkError.

    It does not move the last one: after some hundred of those were deleted nats-server 2.15 no longer finds the ones
    before them.
    """
    with broker_errors("a stray escalation could not be moved"), contextlib.suppress(nats.js.errors.NotFoundError):
        found = await js.get_msg(STREAM_ESCALATION, seq=1, subject=subject, next=True)
        headers = found.headers or {}
        letter = DeadLetter(
            kind="stray",
            reason="no site may ask on this subject: site names are of letters, digits, - and _",
            subject=subject,
            message_id=headers.get("Nats-Msg-Id", str(found.seq)),
            deliveries=0,
            stored=str(found.time or ""),
            worker=worker,
            data=found.data or b"",
        )
        await put(js, letter)
        assert found.seq is not None
        await js.delete_msg(STREAM_ESCALATION, found.seq)
        return letter
    return None  # another worker was faster


def _letter(seq: int, message: RawStreamMsg) -> DeadLetter:
    headers = message.headers or {}
    kind = headers.get(_KIND, "")
    return DeadLetter(
        kind=next((known for known in KINDS if known == kind), "fault"),
        reason=headers.get(_REASON, ""),
        subject=headers.get(_SUBJECT, ""),
        message_id=headers.get(_MESSAGE_ID, ""),
        deliveries=int(number) if (number := headers.get(_DELIVERIES, "")).isdigit() else 0,
        stored=headers.get(_STORED, ""),
        worker=headers.get(_WORKER, ""),
        data=message.data or b"",
        seq=seq,
    )


def _plain(text: str) -> str:
    """Return the text as a header may hold it: printable ASCII, one line."""
    return "".join(char if " " <= char <= "~" else "?" for char in text).strip()
