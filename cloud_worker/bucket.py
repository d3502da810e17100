"""A bucket of any S3-compatible store: what is put there is verified, what is linked to is signed here.

Every object carries our sha-256 as checksum, which the store verifies when it receives it; the worker reads back what
the store says it holds, and the bytes themselves where the store says nothing.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.client import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError

from cloud_worker.config import Archive as ArchiveSettings

_NEVER = frozenset({400, 401, 403, 404})  # wrong key, no bucket: trying again does not help this object


class NotStored(Exception):
    """The store refused, did not answer, or holds something else. `again`: whether trying again may help."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, slots=True)
class Piece:
    """One object to store."""

    key: str
    mime: str
    data: bytes
    sha256: str
    tags: str


class NotSigned(Exception):
    """There are no credentials to sign a link with."""


class Bucket:
    """Owner of the S3 client; any thread may call. Nothing is tried twice: who calls counts."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._name = settings.bucket
        self._client = _client(settings)

    def store(self, piece: Piece) -> None:
        """Put it and verify what the store holds. Raises NotStored."""
        place = {"Bucket": self._name, "Key": piece.key}
        ours = base64.b64encode(bytes.fromhex(piece.sha256)).decode()
        try:
            self._client.put_object(
                **place, Body=piece.data, ContentType=piece.mime, ChecksumSHA256=ours, Tagging=piece.tags
            )
            head = self._client.head_object(**place, ChecksumMode="ENABLED")
            theirs = head.get("ChecksumSHA256")
            if theirs is None:
                body = self._client.get_object(**place)["Body"]
                theirs = base64.b64encode(hashlib.sha256(body.read(len(piece.data) + 1)).digest()).decode()
        except ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            said = error.response.get("Error", {})
            why = f"{said.get('Code', status)}: {str(said.get('Message', ''))[:120]}"
            raise NotStored(why, again=status not in _NEVER) from None
        except BotoCoreError as error:
            raise NotStored(f"{type(error).__name__}", again=True) from None
        if theirs != ours:
            raise NotStored("the store holds other bytes than were sent", again=True)

    def sign(self, key: str, seconds: int) -> str:
        """A link that opens an object for so long, made without asking the store. Raises NotSigned."""
        parameters = {"Bucket": self._name, "Key": key}
        try:
            url: str = self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds)
        except BotoCoreError as error:
            raise NotSigned(str(error)) from None
        return url

    def close(self) -> None:
        self._client.close()


def _client(settings: ArchiveSettings) -> Any:
    """A client that gives up soon: the retries are ours, so that they are counted."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=settings.url,
        region_name=settings.region,
        aws_access_key_id=settings.access_key.get_secret_value() if settings.access_key else None,
        aws_secret_access_key=settings.secret_key.get_secret_value() if settings.secret_key else None,
        config=BotoConfig(
            signature_version="s3v4",
            connect_timeout=settings.timeout_s,
            read_timeout=settings.timeout_s,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path" if settings.url else "auto"},
            request_checksum_calculation="when_required",
            max_pool_connections=settings.threads + 1,
        ),
    )
