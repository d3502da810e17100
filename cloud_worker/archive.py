"""Keeps evidence and verdicts in a bucket of any S3-compatible store, beside the answer and never in its way.

Keys: PREFIX/SITE/media/SHA256.EXT (the same picture is stored once) and PREFIX/SITE/YYYY/MM/DD/ESCALATION.STEP.json.
What is put there is verified: see bucket.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Literal

from appliance.backoff import Backoff
from appliance.clock import Clock, iso_utc
from appliance.telemetry import Repeats
from appliance.wire import ArchiveLink, MediaRef, Verdict
from cloud_worker.bucket import Bucket, NotSigned, NotStored, Piece
from cloud_worker.config import Archive as ArchiveSettings
from cloud_worker.judge import Case

Result = Literal["stored", "known", "failed", "left_out"]
KNOWN_MAX = 8192
_EXTENSION = {"image/jpeg": "jpg", "image/webp": "webp", "video/mp4": "mp4"}

logger = logging.getLogger(__name__)


class Archive:
    """Owner of a bounded queue and of the threads that empty it.

    Invariant: whoever calls `links` or `put` never waits for the store. counted: told of each object's result; called
    from several threads.
    """

    def __init__(self, settings: ArchiveSettings, clock: Clock, counted: Callable[[Result], None]) -> None:
        self._settings = settings
        self._clock = clock
        self._counted = counted
        self._bucket = Bucket(settings)
        self._queue: queue.Queue[tuple[Case, Verdict]] = queue.Queue(settings.waiting_max)
        self._known: dict[str, None] = {}
        self._lock = threading.Lock()
        self._repeats = Repeats(logger, clock)
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._under_way = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"archive-{n}", daemon=True) for n in range(settings.threads)
        ]
        for thread in self._threads:
            thread.start()

    def links(self, case: Case, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        """Made here, without asking the store."""
        seconds = int(self._settings.link_hours * 3600)
        if seconds <= 0:
            return ()
        expires_t = float(int(self._clock.now())) + seconds
        refs = [picture.ref for picture in case.pictures]
        wanted: list[tuple[str, str, str]] = [(ref.kind, ref.id, self._media_key(verdict.site, ref)) for ref in refs]
        wanted.append(("verdict", "", self._verdict_key(verdict)))
        try:
            return tuple(
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

    def put(self, case: Case, verdict: Verdict) -> None:
        try:
            self._queue.put_nowait((case, verdict))
        except queue.Full:
            for _ in range(len(case.pictures) + 1):
                self._counted("left_out")
            self._report(f"the archive is {self._settings.waiting_max} verdicts behind; the newest are left out")

    def waiting(self) -> int:
        return self._queue.qsize() + self._under_way

    def check(self) -> str:
        """One sentence on what it is, after storing and verifying a small object. Raises NotStored."""
        data = b"Stored by `vedette-worker check`.\n"
        kept = f"vedette-keep-days={self._settings.keep_days}&vedette-kind=check"
        self._bucket.store(
            Piece(f"{self._prefix}check.txt", "text/plain", data, hashlib.sha256(data).hexdigest(), kept)
        )
        return f"the archive {self._settings.bucket} takes objects and holds what it was sent"

    def close(self, seconds: float) -> None:
        self._stop.set()
        deadline = self._clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
        self._hurry.set()
        with contextlib.suppress(queue.Empty):
            while True:
                case, _ = self._queue.get_nowait()
                for _ in range(len(case.pictures) + 1):
                    self._counted("left_out")
        self._bucket.close()

    def _run(self) -> None:
        while not (self._stop.is_set() and self._queue.empty()) and not self._hurry.is_set():
            try:
                case, verdict = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            with self._lock:
                self._under_way += 1
            try:
                for piece in self._pieces(case, verdict):
                    self._keep(piece)
            finally:
                with self._lock:
                    self._under_way -= 1

    def _pieces(self, case: Case, verdict: Verdict) -> list[Piece]:
        kept = f"vedette-keep-days={self._settings.keep_days}&vedette-site={verdict.site}"
        pieces = [
            Piece(
                self._media_key(verdict.site, each.ref),
                each.ref.mime,
                each.data,
                each.ref.sha256,
                f"{kept}&vedette-kind={each.ref.kind}",
            )
            for each in case.pictures
        ]
        data = verdict.model_copy(update={"archive": ()}).to_json()  # links are keys to a door: they are not kept
        digest = hashlib.sha256(data).hexdigest()
        pieces.append(
            Piece(self._verdict_key(verdict), "application/json", data, digest, f"{kept}&vedette-kind=verdict")
        )
        return pieces

    def _keep(self, piece: Piece) -> None:
        """Store it, in at most `tries` attempts."""
        with self._lock:
            known = piece.key in self._known
        if known:
            self._counted("known")
            return
        backoff = Backoff(0.5, 30.0)
        for attempt in range(1, self._settings.tries + 1):
            try:
                self._bucket.store(piece)
            except NotStored as error:
                if attempt < self._settings.tries and error.again and not self._hurry.is_set():
                    self._clock.sleep(backoff.next_s(), self._hurry)
                    continue
                self._report(f"an object could not be archived in {attempt} attempts: {error}")
                self._counted("failed")
                return
            self._remember(piece.key)
            self._counted("stored")
            return

    def _remember(self, key: str) -> None:
        if not key.endswith(".json"):
            with self._lock:
                self._known[key] = None
                while len(self._known) > KNOWN_MAX:
                    del self._known[next(iter(self._known))]

    def _report(self, matter: str) -> None:
        with self._lock:
            self._repeats.report(matter)

    def _media_key(self, site: str, ref: MediaRef) -> str:
        return f"{self._prefix}{site}/media/{ref.sha256}.{_EXTENSION[ref.mime]}"

    def _verdict_key(self, verdict: Verdict) -> str:
        day = iso_utc(verdict.judged_t)[:10].replace("-", "/")
        return f"{self._prefix}{verdict.site}/{day}/{verdict.escalation}.{verdict.step or 0}.json"

    @property
    def _prefix(self) -> str:
        prefix = self._settings.prefix.strip("/")
        return f"{prefix}/" if prefix else ""
