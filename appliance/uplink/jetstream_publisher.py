"""Makes the NATS messages of an escalation, publishes them to JetStream and waits for each acknowledgement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, PubAck

from appliance.base.errors import EvidenceError, UplinkError, VedetteError
from appliance.broker.nats_connection import broker_errors, complaint
from appliance.broker.nats_link import NatsLink, end_tasks
from appliance.store.escalations import MediaRow
from appliance.wire import (
    CHUNK_BYTES,
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    Escalation,
    MediaRef,
    escalation_headers,
    escalation_subject,
    media_subject,
    message_id,
)

# A chunk over a 32 kbit/s uplink takes half a minute; a lost connection is noticed at once, not by this.
PUBLISH_S_MAX = 90.0
# A broker that answers a PING sent behind a message has read the message: its acknowledgement is late, or lost.
ASK_AFTER_S, LATE_S_MAX = 10.0, 10.0
STREAM_INFO_S_MAX = 10.0  # some hundred bytes each way
ASKED_TOGETHER = 16  # chunks: 2 MB of a clip are one round trip, and some 3 kB
_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
_WRONG_LAST = 10071  # nats-server: "wrong last sequence: N", of the subject; 0: it has no message
_TOO_LARGE = 10054  # nats-server: a message over the stream's max_msg_size


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """One message to the broker. `kind` is its name in the traffic counter and the audit."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    kind: str

    @property
    def size(self) -> int:
        """Bytes of payload, subject and headers, as the NATS protocol writes them."""
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
        return len(self.payload) + len(self.subject) + len("NATS/1.0\r\n\r\n") + lines


def escalation_message(escalation: Escalation, priority: str) -> NatsMessage:
    """Return an escalation, ready to publish under `priority`."""
    subject, headers = escalation_subject(escalation.site, priority), escalation_headers(escalation)
    return NatsMessage(subject, escalation.to_json(), headers, "facts")


def chunk_message(site: str, ref: MediaRef, n: int, payload: bytes) -> NatsMessage:
    """Chunk `n` (from 0) of a file, ready to publish. The id makes a repeated chunk harmless."""
    headers = {
        "Nats-Msg-Id": message_id(site, ref.id, n),
        "Vedette-Sha256": ref.sha256,
        "Vedette-Chunk": f"{n + 1}/{ref.chunks}",
    }
    return NatsMessage(media_subject(site, ref.id, n), payload, headers, ref.kind)


def read_chunk(root: Path, path: str, ref: MediaRef, n: int) -> bytes:
    """Return chunk `n` of the file at `path` under `root`. Raise EvidenceError if the file is gone or changed."""
    try:
        with (root / path).open("rb") as file:
            size = file.seek(0, 2)
            if size != ref.bytes:
                raise EvidenceError(f"{path}: has {size} bytes, {ref.bytes} were announced")
            file.seek(n * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None


logger = logging.getLogger(__name__)

_NEVER_LAST = str(2**62)  # no stream ever has so many messages


class PublishRefused(VedetteError):
    """The broker will never take this message; the others go on."""


class JetStreamPublisher:
    """Publishes messages and waits for the acknowledgement of each. Owner: the uplink's task.

    State: `last_refused` is true if the broker refused the last message. The next one is then preceded by a check for
    space.
    """

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self.last_refused = False

    async def publish(self, message: NatsMessage, stream: str) -> None:
        """Publish a message; return when the broker has stored it.

        Raise PublishRefused (the broker will never take this message) or UplinkError (it may later).
        """
        await self._link.while_up(self._publish(message, stream))

    async def find_lost(self, site: str, begun: Sequence[MediaRow]) -> list[MediaRow]:
        """Return the files of `begun` of which the broker has lost acknowledged chunks. Raise UplinkError."""
        if not begun:
            return []
        jetstream = (await self._link.client()).jetstream(timeout=STREAM_INFO_S_MAX)
        lost = [each for each in begun if not await self._link.while_up(_is_stored(jetstream, site, each))]
        if lost:
            logger.warning(
                "escalation %s: the broker lost %d files; they are sent again", lost[0].escalation, len(lost)
            )
        return lost

    async def _publish(self, message: NatsMessage, stream: str) -> None:
        client = await self._link.client()
        with broker_errors("not acknowledged"):
            try:
                if self.last_refused:
                    await _check_room(client.jetstream(timeout=STREAM_INFO_S_MAX), stream, message.size)
                jetstream = client.jetstream(timeout=PUBLISH_S_MAX)
                headers = dict(message.headers)
                await _acknowledged(
                    client, jetstream.publish(message.subject, message.payload, stream=stream, headers=headers)
                )
                self.last_refused = False
            except (nats.js.errors.NoStreamResponseError, nats.js.errors.NotFoundError):
                self.last_refused = True
                raise UplinkError("no worker has made the streams yet, or JetStream is off") from None
            except nats.errors.MaxPayloadError:
                raise PublishRefused(f"{len(message.payload)} bytes are over the broker's max_payload") from None
            except nats.js.errors.APIError as error:
                if error.err_code == _TOO_LARGE:
                    raise PublishRefused(f"{len(message.payload)} bytes are over the stream's limit") from None
                self.last_refused = True
                raise UplinkError(f"the broker refuses: {complaint(error)}") from None


async def _acknowledged(client: Client, publishing: Coroutine[Any, Any, PubAck]) -> None:
    """Await the acknowledgement, also on a slow link. Raise nats errors if the broker read it and is silent."""
    task = asyncio.create_task(publishing)
    try:
        await asyncio.wait({task}, timeout=ASK_AFTER_S)
        if not task.done():
            await client.flush(int(PUBLISH_S_MAX))
            await asyncio.wait({task}, timeout=LATE_S_MAX)
        if not task.done():
            raise nats.errors.TimeoutError
        task.result()
    finally:
        await end_tasks(task)


async def _check_room(jetstream: JetStreamContext, stream: str, size: int) -> None:
    """Check that the stream exists and has space, before a chunk is sent again after a refusal.

    The request costs some hundred bytes. Raise UplinkError or NotFoundError. If the broker does not answer the request,
    the chunk is sent.
    """
    try:
        info = await jetstream.stream_info(stream)
    except nats.errors.TimeoutError:
        return
    bytes_max = info.config.max_bytes or -1
    if 0 < bytes_max < info.state.bytes + size and info.config.discard == DiscardPolicy.NEW:
        raise UplinkError(f"the stream {stream} is full ({info.state.bytes} of {bytes_max} bytes)")


async def check_serving(site: str, client: Client) -> None:
    """Raise UplinkError unless the stream of escalations has a leader, by a message that it must refuse."""
    jetstream = client.jetstream(timeout=STREAM_INFO_S_MAX)
    with broker_errors("its streams do not answer"):
        try:
            subject, headers = escalation_subject(site, PRIORITIES[-1]), {_EXPECTED_LAST: _NEVER_LAST}
            await jetstream.publish(subject, b"", stream=STREAM_ESCALATION, headers=headers)
        except nats.js.errors.APIError as error:
            if error.err_code != _WRONG_LAST:
                raise


async def _is_stored(jetstream: JetStreamContext, site: str, media: MediaRow) -> bool:
    """Return True if the broker still has every chunk that it acknowledged.

    For each chunk, publish an empty message that expects an impossible last sequence number. The broker refuses it in
    any case, and its refusal names the last sequence number on the chunk's subject: 0 means that the chunk is gone.
    This needs no permission that would list other sites' media. It stores nothing, so it can be repeated after a cut or
    a kill, and costs some hundred bytes a chunk. ASKED_TOGETHER chunks are asked about at a time, as nothing else is
    sent meanwhile. The check ends with the first of these groups that lacks one; the file is then sent again.
    """
    with broker_errors("the media stream cannot be asked"):
        for first in range(0, media.chunks_acked, ASKED_TOGETHER):
            some = range(first, min(first + ASKED_TOGETHER, media.chunks_acked))
            asked = (_holds(jetstream, media_subject(site, media.ref.id, n)) for n in some)
            if not all(await asyncio.gather(*asked)):
                return False
    return True


async def _holds(jetstream: JetStreamContext, subject: str) -> bool:
    """Return False if the media stream has no message on the subject. Raise nats errors."""
    try:
        await jetstream.publish(subject, b"", stream=STREAM_MEDIA, headers={_EXPECTED_LAST: _NEVER_LAST})
    except nats.js.errors.APIError as error:
        if error.err_code != _WRONG_LAST:  # full, say: nothing is known, and what it took it does not lose
            return True
        return not (error.description or "").endswith(": 0")
    return True
