"""Archives evidence and verdicts in a bucket of any S3-compatible store: verified, and never delaying a verdict.

Keys: PREFIX/SITE/media/SHA256.EXT (the same image is stored once an hour at most) and
PREFIX/SITE/YYYY/MM/DD/ESCALATION.STEP.json.
Every object carries our SHA-256 as checksum, which the store verifies when it receives it; the worker reads back what
the store reports, and the bytes themselves where the store reports nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import boto3
from botocore.client import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import UsageError
from appliance.base.telemetry import LogThrottle
from appliance.wire import ArchiveLink, MediaRef, Verdict
from cloud_worker.config import ArchiveConfig
from cloud_worker.judge import EVIDENCE_BYTES_MAX, JudgeCase

# Not all errors that botocore raises over an answer it does not understand are of its own tree.
_ANSWER_ERRORS = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    HTTPError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)
_NEVER = frozenset({400, 401, 403, 404})  # wrong key, no bucket: trying again does not help this object
ArchiveResult = Literal["stored", "known", "failed", "left_out"]
LINKS_CHARS_MAX = 32 * 1024  # half of the longest verdict that a broker keeps
WAITING_BYTES_MAX = 8 * EVIDENCE_BYTES_MAX  # of evidence in memory, until it is stored or given up
KNOWN_S = 3600.0  # for which a stored image is not stored again; afterwards it may have expired, or been erased
KNOWN_MAX = 8192  # digests of images stored lately, 64 bytes each
_EXTENSION = {"image/jpeg": "jpg", "image/webp": "webp", "video/mp4": "mp4"}

logger = logging.getLogger(__name__)


class NotStored(Exception):
    """The store refused, did not answer, or holds something else. retryable: whether trying again may help."""

    def __init__(self, why: str, *, retryable: bool) -> None:
        super().__init__(why)
        self.retryable = retryable


class NotSigned(Exception):
    """There are no credentials to sign a link with."""


class S3Archive:
    """Owner of a queue, bounded in verdicts and in bytes, and of the threads that empty it.

    Invariant: whoever calls `links` or `put` never waits for the store. counted: called with each object's result,
    from several threads.
    """

    def __init__(self, settings: ArchiveConfig, clock: Clock, counted: Callable[[ArchiveResult], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._counted = counted
        self._bucket = S3Bucket(settings)
        self._queue: queue.Queue[tuple[JudgeCase, Verdict]] = queue.Queue(settings.waiting_max)
        self._known: dict[str, float] = {}  # until when, in the order of storing
        self._lock = threading.Lock()
        self._throttle = LogThrottle(logger, clock)
        self._stop = threading.Event()
        self._abort = threading.Event()
        self._under_way = self._waiting_bytes = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"archive-{n}", daemon=True) for n in range(settings.threads)
        ]
        for thread in self._threads:
            thread.start()

    def links(self, case: JudgeCase, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        """Return the links, made here without a request to the store."""
        seconds = int(self._settings.link_hours * 3600)
        if seconds <= 0:
            return ()
        expires_t = float(int(self._clock.now())) + seconds
        refs = [file.ref for file in case.files]
        wanted: list[tuple[str, str, str]] = [(ref.kind, ref.id, self._media_key(verdict.site, ref)) for ref in refs]
        wanted.append(("verdict", "", self._verdict_key(verdict)))
        try:
            links = tuple(
                ArchiveLink.model_validate(
                    {
                        "kind": kind,
                        "media": media,
                        "key": key,
                        "url": self._bucket.sign(key, seconds),
                        "expires_t": expires_t,
                    }
                )
                for kind, media, key in wanted
            )
        except NotSigned as error:
            self._report(f"the archive's links cannot be signed: {error}")
            return ()
        except ValidationError:
            links = ()
        if not links or sum(len(each.url) for each in links) > LINKS_CHARS_MAX:
            self._report("the archive's links are too long for a verdict, which goes without: credentials make them so")
            return ()
        return links

    def put(self, case: JudgeCase, verdict: Verdict) -> None:
        with self._lock:  # nobody else fills the queue meanwhile
            fits = self._waiting_bytes + _size(case) <= WAITING_BYTES_MAX and not self._queue.full()
            if fits:
                self._waiting_bytes += _size(case)
                self._queue.put_nowait((case, verdict))
        if not fits:
            for _ in range(len(case.files) + 1):
                self._counted("left_out")
            most = f"{self._settings.waiting_max} verdicts or {WAITING_BYTES_MAX // 2**20} MiB"
            self._report(f"the archive is {most} behind; the newest are left out")

    def waiting(self) -> int:
        return self._queue.qsize() + self._under_way

    def check(self) -> str:
        """Describe the archive in one sentence, after storing and verifying a small object. Raise NotStored."""
        data = b"Stored by `vedette-worker check`.\n"
        kept = f"vedette-keep-days={self._settings.keep_days}&vedette-kind=check"
        self._bucket.store(
            ArchiveObject(f"{self._prefix}check.txt", "text/plain", data, hashlib.sha256(data).hexdigest(), kept)
        )
        return f"the archive {self._settings.bucket} takes objects and holds what it was sent"

    def close(self, seconds: float) -> None:
        self._stop.set()
        deadline = self._clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
        self._abort.set()
        with contextlib.suppress(queue.Empty):
            while True:
                case, _ = self._queue.get_nowait()
                with self._lock:
                    self._waiting_bytes -= _size(case)
                for _ in range(len(case.files) + 1):
                    self._counted("left_out")
        self._bucket.close()

    def _run(self) -> None:
        while not (self._stop.is_set() and self._queue.empty()) and not self._abort.is_set():
            try:
                case, verdict = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            with self._lock:
                self._under_way += 1
            try:
                for item in self._objects(case, verdict):
                    self._store(item)
            except Exception:  # the next one is archived all the same
                logger.exception("a verdict could not be archived: a fault in the worker")
                self._counted("failed")
            finally:
                with self._lock:
                    self._under_way -= 1
                    self._waiting_bytes -= _size(case)

    def _objects(self, case: JudgeCase, verdict: Verdict) -> list[ArchiveObject]:
        kept = f"vedette-keep-days={self._settings.keep_days}&vedette-site={verdict.site}"
        items = [
            ArchiveObject(
                self._media_key(verdict.site, each.ref),
                each.ref.mime,
                each.data,
                each.ref.sha256,
                f"{kept}&vedette-kind={each.ref.kind}",
            )
            for each in case.files
        ]
        data = verdict.model_copy(update={"archive": ()}).to_json()  # links are keys to a door: they are not kept
        digest = hashlib.sha256(data).hexdigest()
        items.append(
            ArchiveObject(self._verdict_key(verdict), "application/json", data, digest, f"{kept}&vedette-kind=verdict")
        )
        return items

    def _store(self, item: ArchiveObject) -> None:
        """Store it, in at most `tries` attempts."""
        with self._lock:
            known = self._clock.monotonic() < self._known.get(item.key, 0.0)
        if known:
            self._counted("known")
            return
        backoff = Backoff(0.5, 30.0)
        for attempt in range(1, self._settings.tries + 1):
            try:
                self._bucket.store(item)
            except NotStored as error:
                if attempt < self._settings.tries and error.retryable and not self._abort.is_set():
                    self._clock.sleep(backoff.next_s(), self._abort)
                    continue
                self._report(f"an object could not be archived in {attempt} attempts: {error}")
                self._counted("failed")
                return
            self._remember(item.key)
            self._counted("stored")
            return

    def _remember(self, key: str) -> None:
        if not key.endswith(".json"):
            with self._lock:
                self._known.pop(key, None)
                self._known[key] = self._clock.monotonic() + KNOWN_S
                while len(self._known) > KNOWN_MAX:
                    del self._known[next(iter(self._known))]

    def _report(self, matter: str) -> None:
        with self._lock:
            self._throttle.report(matter)

    def _media_key(self, site: str, ref: MediaRef) -> str:
        return f"{self._prefix}{site}/media/{ref.sha256}.{_EXTENSION[ref.mime]}"

    def _verdict_key(self, verdict: Verdict) -> str:
        day = iso_utc(verdict.judged_t)[:10].replace("-", "/")
        return f"{self._prefix}{verdict.site}/{day}/{verdict.escalation}.{verdict.step or 0}.json"

    @property
    def _prefix(self) -> str:
        prefix = self._settings.prefix.strip("/")
        return f"{prefix}/" if prefix else ""


def _size(case: JudgeCase) -> int:
    """Return the bytes of its evidence."""
    return sum(len(each.data) for each in case.files)


@dataclass(frozen=True, slots=True)
class ArchiveObject:
    """One object to store. tags: as S3 takes them, `name=value&name=value`."""

    key: str
    mime: str
    data: bytes
    sha256: str
    tags: str


class S3Bucket:
    """Owner of the S3 client; any thread may call. Nothing is tried twice: the caller retries and counts."""

    def __init__(self, settings: ArchiveConfig) -> None:
        self._name = settings.bucket
        self._client = _client(settings)

    def store(self, item: ArchiveObject) -> None:
        """Put it and verify what the store holds. Raise NotStored."""
        target = {"Bucket": self._name, "Key": item.key}
        ours = base64.b64encode(bytes.fromhex(item.sha256)).decode()
        try:
            self._client.put_object(
                **target, Body=item.data, ContentType=item.mime, ChecksumSHA256=ours, Tagging=item.tags
            )
            head = self._client.head_object(**target, ChecksumMode="ENABLED")
            theirs = head.get("ChecksumSHA256")
            if theirs is None:
                body = self._client.get_object(**target)["Body"]
                theirs = base64.b64encode(hashlib.sha256(body.read(len(item.data) + 1)).digest()).decode()
        except _ANSWER_ERRORS as error:
            raise _refusal(error) from None
        if theirs != ours:
            raise NotStored("the store holds other bytes than were sent", retryable=True)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is deleted already. Raise NotStored."""
        try:
            self._client.delete_object(Bucket=self._name, Key=key)
        except _ANSWER_ERRORS as error:
            raise _refusal(error) from None

    def sign(self, key: str, seconds: int) -> str:
        """Return a link that opens an object for `seconds`, made without a request to the store. Raise NotSigned."""
        parameters = {"Bucket": self._name, "Key": key}
        try:
            url: str = self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds)
        except BotoCoreError as error:
            raise NotSigned(str(error)) from None
        return url

    def close(self) -> None:
        self._client.close()


def _refusal(error: Exception) -> NotStored:
    """Return what a store's error says."""
    if not isinstance(error, ClientError):
        return NotStored(f"{type(error).__name__}", retryable=True)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    answer = error.response.get("Error", {})
    why = f"{answer.get('Code', status)}: {str(answer.get('Message', ''))[:120]}"
    return NotStored(why, retryable=status not in _NEVER)


def keys_of_receipt(text: str, prefix: str) -> list[str]:
    """Return the keys in the archive that receipts of an appliance's erasures name (`/api/v1/erasures`, one or a list).

    Raise UsageError for what is no receipt, and for a key that is not under `prefix`.
    """
    try:
        found = json.loads(text)
        receipts = found if isinstance(found, list) else [found]
        keys = [str(each["what"]) for one in receipts for each in one["unreached"] if each["kind"] == "archive"]
    except (ValueError, TypeError, KeyError):
        raise UsageError("this is no receipt of an erasure, as the page Who looked offers it as JSON") from None
    inside = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    if foreign := [key for key in keys if not key.startswith(inside)]:
        raise UsageError(f"{foreign[0]} does not lie under archive.prefix ({prefix})")
    return list(dict.fromkeys(keys))


def _client(settings: ArchiveConfig) -> Any:
    """Return a client that gives up soon: the archive itself retries, so that the retries are counted."""
    client = boto3.session.Session().client(
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
    # A store that ends the connection within its "100 Continue" keeps botocore reading its end for ever.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-parameter-build.s3.HeadBucket", _refuse_redirect)
    return client


def _refuse_redirect(**_: object) -> None:
    """Raise NotStored for a redirect that names no region.

    Otherwise botocore asks such a store for the bucket's region, and so on as deep as Python lets it.
    """
    raise NotStored("it redirects without naming a region: check archive.url and archive.region", retryable=True)
