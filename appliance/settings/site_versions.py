"""Keeps the last texts of the site file: who changed it, when and why, so that a change can be undone."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import PreconditionError
from appliance.settings.site_editor import digest_of, replace_text

logger = logging.getLogger(__name__)

VERSIONS_KEPT = 20  # of at most 1 MB each: 20 MB of the storage folder
FOLDER = "site-versions"


@dataclass(frozen=True, slots=True)
class SiteVersion:
    """A text of the site file that was in force. number: counts up. t: UTC seconds when it came into force.

    who: a user's name, or `file` for an edit by hand. why: a sentence. digest: sha256 of the text, in hex.
    """

    number: int
    t: float
    who: str
    why: str
    digest: str


class SiteVersions:
    """The versions in a folder, one JSON file each, readable by their owner alone. For one thread at a time.

    A file that cannot be read is left out and said in the log; it is never a reason not to start.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def add(self, text: str, who: str, why: str) -> SiteVersion:
        """Keep `text` as the newest, unless it is; the oldest beyond `VERSIONS_KEPT` go. Raises DiskWriteError."""
        known = self.all()
        if known and known[0].digest == digest_of(text):
            return known[0]
        version = SiteVersion(known[0].number + 1 if known else 1, self._clock.now(), who, why, digest_of(text))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._path(version.number), json.dumps(asdict(version) | {"text": text}, ensure_ascii=False))
        for old in known[VERSIONS_KEPT - 1 :]:
            with contextlib.suppress(OSError):
                self._path(old.number).unlink()
        return version

    def all(self) -> list[SiteVersion]:
        """Newest first."""
        found = [self._read(path) for path in self._folder.glob("*.json")]
        return sorted((version for version, _ in filter(None, found)), key=lambda version: -version.number)

    def text(self, number: int) -> str:
        """Return the text of a version. Raise PreconditionError if there is no such version."""
        found = self._read(self._path(number))
        if found is None:
            raise PreconditionError(f"there is no version {number} of the site file; the last {VERSIONS_KEPT} are kept")
        return found[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.json"

    def _read(self, path: Path) -> tuple[SiteVersion, str] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            text = str(data.pop("text"))
            version = SiteVersion(**data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("the version %s of the site file cannot be read and is left out: %s", path.name, error)
            return None
        return version, text
