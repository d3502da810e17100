"""NATS messages of the uplink: an escalation, and evidence files cut into chunks, each with its subject and headers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import EvidenceError
from appliance.wire import (
    CHUNK_BYTES,
    Escalation,
    MediaRef,
    escalation_message_id,
    escalation_subject,
    media_subject,
    message_id,
)


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """One message to the broker. `kind` is what the meter and the audit call it."""

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
    """Return an escalation, ready to publish under `priority`. The id makes a repeated one harmless."""
    headers = {"Nats-Msg-Id": escalation_message_id(escalation)}
    return NatsMessage(escalation_subject(escalation.site, priority), escalation.to_json(), headers, "facts")


def chunk_message(site: str, ref: MediaRef, n: int, payload: bytes) -> NatsMessage:
    """Chunk `n` (from 0) of a file, ready to publish. The id makes a repeated chunk harmless."""
    headers = {
        "Nats-Msg-Id": message_id(site, ref.id, n),
        "Vedette-Sha256": ref.sha256,
        "Vedette-Chunk": f"{n + 1}/{ref.chunks}",
    }
    return NatsMessage(media_subject(site, ref.id, n), payload, headers, ref.kind)


def read_chunk(root: Path, path: str, ref: MediaRef, n: int) -> bytes:
    """Chunk `n` of the file at `path` under `root`. Raises EvidenceError when the file is gone or another one."""
    try:
        with (root / path).open("rb") as file:
            size = file.seek(0, 2)
            if size != ref.bytes:
                raise EvidenceError(f"{path}: has {size} bytes, {ref.bytes} were announced")
            file.seek(n * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None
