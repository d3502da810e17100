"""Fetches the evidence files of an escalation, chunk by chunk, and verifies the hash of each file."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext

from appliance.base.json_lines import WireError
from appliance.broker.nats_connection import broker_errors
from appliance.wire import CHUNK_BYTES, STREAM_MEDIA, MediaRef, media_subject

FETCH_S_MAX = 10.0  # a chunk of 128 kB on the slowest link that keeps a deadline
FETCHES_MAX = 8  # at once, of one escalation; more wait for each other on one connection


class MediaRefused(WireError):
    """An image is missing, too large or not what its reference says; the others may still do."""


class MediaAbsent(MediaRefused):
    """The broker does not have it (yet)."""


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One piece of evidence, complete and with the right hash. `data` is still encoded."""

    ref: MediaRef
    data: bytes


def chunks_of(size: int) -> int:
    """Return how many chunks `size` bytes make."""
    return max(1, -(-size // CHUNK_BYTES))


async def fetch(
    js: JetStreamContext, site: str, ref: MediaRef, bytes_max: int, *, gate: asyncio.Semaphore
) -> EvidenceFile:
    """Return all chunks of `ref`, put together. gate: of FETCHES_MAX, one for all files of an escalation.

    Raise MediaRefused (this image is no use) or UplinkError (try again).
    """
    _check(ref, bytes_max)
    parts = await asyncio.gather(*(_chunk(js, site, ref, n, gate) for n in range(ref.chunks)))
    return _verified(ref, b"".join(parts))


async def read(paths: Mapping[str, str], ref: MediaRef, bytes_max: int) -> EvidenceFile:
    """Return the file that lies here, at one of `paths`, by the ids of references. Raise MediaRefused."""
    _check(ref, bytes_max)
    try:
        data = await asyncio.to_thread(Path(paths[ref.id]).read_bytes)
    except (KeyError, OSError) as error:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: it cannot be read ({type(error).__name__})") from None
    return _verified(ref, data)


def _verified(ref: MediaRef, data: bytes) -> EvidenceFile:
    if len(data) != ref.bytes or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: its bytes do not have the hash that was announced")
    return EvidenceFile(ref, data)


def _check(ref: MediaRef, bytes_max: int) -> None:
    if ref.id != ref.sha256[:32]:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: its id does not belong to its hash")
    if ref.chunks != chunks_of(ref.bytes):
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: {ref.bytes} bytes are not {ref.chunks} chunks")
    if ref.bytes > bytes_max:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: {ref.bytes} bytes are over the limit of {bytes_max}")


async def _chunk(js: JetStreamContext, site: str, ref: MediaRef, n: int, gate: asyncio.Semaphore) -> bytes:
    subject = media_subject(site, ref.id, n)
    async with gate:
        with broker_errors(f"chunk {n + 1} of {ref.id[:8]} could not be fetched"):
            try:
                return await asyncio.wait_for(_last(js, subject), FETCH_S_MAX)
            except nats.js.errors.NotFoundError:
                raise MediaAbsent(f"{ref.kind} {ref.id[:8]}: chunk {n + 1} of {ref.chunks} is not there") from None


async def _last(js: JetStreamContext, subject: str) -> bytes:
    """Return the last message of `subject`.

    Any replica may answer at first; if its answer is late or missing, the request goes to the leader.
    """
    try:
        found = await js.get_last_msg(STREAM_MEDIA, subject, direct=True)
    except (nats.js.errors.NotFoundError, nats.errors.NoRespondersError):
        found = await js.get_last_msg(STREAM_MEDIA, subject)
    return found.data or b""
