"""One tree of errors: what went wrong, and what the code that meets it should do.

VedetteError
├── UsageError            exit 2, name the file, the key and the remedy
│   ├── ConfigError       a site or worker file is wrong: refuse to start
│   ├── ModelError        a model file is missing, not ONNX, or of an unknown layout: refuse to start
│   ├── MissingDependency a program or package is absent, or a port is taken: name the package that brings it
│   └── PreconditionError something must be done first (a review, another name): name it
├── SourceError           a camera or clip: report once, back off, try again (a clip: stop with the reason)
│   ├── SourceRefused     wrong password, not found, unsupported: back off slowly, a person must act
│   └── SourceLost        end, cut, stall, garbage: back off and reconnect
├── DetectorError         the detector failed on a frame: that frame counts as not examined
├── EvidenceError         a still or clip cannot be cut (yet): wait, or mark the evidence as missing
├── NotMeasured           nobody knows whether a segment holds a frame: keep the file, measure it later
├── StoreError            the database refused: corrupt, newer schema: stop, the supervisor starts again
│   └── StoreUnavailable  the disk is full or the file busy: what is stored is fine; wait, and try again
├── UplinkError           no link, no stream, refused: the outbox waits
└── EngineError           the judge failed: retry later, then `unsure` with the reason
    └── EngineUnavailable the judge is away, overloaded or refuses us: keep the escalation and wait
"""

from __future__ import annotations

import errno
import re

# Match what follows the scheme: perhaps user and password (which may hold spaces, quotes and angle brackets; a port
# ends before one), then all up to a space or quote. Anchored at `://` and bounded, so that a text made to be slow takes
# no longer than any other.
_ADDRESS = re.compile(r"""://((?:[^\s/?#@"'<>:]{0,256}:(?!\d{1,5}[\s"'<>])[^/?#@\n]{1,256}@)?[^\s"'<>]*)""")
_CAMERA_SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps")
_CLOSING = ".,:;!)"


def redact(text: str) -> str:
    """Return `text` without the secrets of URLs: no user, no password, no query; only the host of a camera's URL.

    Cameras take passwords in the path and in the query as well (`/user=admin_password=x`).
    """
    return _ADDRESS.sub(_without_secrets, text)


def _without_secrets(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 6) : found.start()].lower()
    written: str = found[1]
    address = written.rstrip(_CLOSING)
    closing = written[len(address) :]
    address, *query = re.split(r"[?#]", address, maxsplit=1)
    of_camera = before.endswith(_CAMERA_SCHEMES)
    authority, slash, path = address.partition("/")
    if of_camera and "@" in path:  # a password with a slash in it
        authority, slash, path = address.rpartition("@")[2].partition("/")
    host = authority.rpartition("@")[2]
    if of_camera:
        return f"://{host}{'/…' if path or query else slash}{closing}"
    return f"://{host}{slash}{path}{'?…' if query else ''}{closing}"


def camera_address(url: str) -> str:
    """Return a camera's URL for people: `rtsp://host:port/…`; the whole path of a file. It may hold spaces."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in _CAMERA_SCHEMES:
        return redact(url)
    host, *more = re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)
    return f"{scheme}://{host}{'/…' if more else ''}"


def printable(text: str) -> str:
    """Return `text` on one line; ANSI codes, line ends, lone surrogates and the like are written out (`\\x1b`)."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def lacks_files(error: BaseException) -> bool:
    """Return True if the process or the machine has no file descriptor left, and that raised or caused this."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class VedetteError(Exception):
    """Root of all errors raised on purpose. The message is one sentence without secrets."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UsageError(VedetteError):
    """Wrong use or configuration: exit code 2."""


class ConfigError(UsageError):
    """A configuration file is wrong; `problems` holds one line per fault, each with its remedy."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = [redact(problem) for problem in problems]
        super().__init__(f"{source}: " + "; ".join(problems))


class ModelError(UsageError):
    """A model cannot be used; the message names the file and what would work."""


class ModelForbidden(ModelError):
    """The system forbids this process a file of a model; a process with other rights may read it."""


def unreadable_model(what: str, error: OSError) -> ModelError:
    """Return the error that says why a file of a model cannot be read. what: the path, and which file it is."""
    kind = ModelForbidden if isinstance(error, PermissionError) else ModelError
    return kind(f"{what} cannot be read: {error.strerror}")


class MissingDependency(UsageError):
    """A program, package or port that is needed is not there; the message says how to get it."""


class PreconditionError(UsageError):
    """The action cannot be done yet; the message names what must be done first."""


class SourceError(VedetteError):
    """A camera or clip failed."""


class SourceRefused(SourceError):
    """The other side refused (authentication, not found, unsupported): trying again soon will not help."""


class SourceLost(SourceError):
    """The stream ended, stalled, was cut or made no sense: trying again may help."""


class DetectorError(VedetteError):
    """The detector could not examine a frame. Never to be read as "nothing there"."""


class EvidenceError(VedetteError):
    """A still or clip could not be cut from the recorded segments."""


class NotMeasured(VedetteError):
    """The segment could not be read within the limits, and it is not known whether there is a frame in it.

    The machine was too busy or short of memory, or the file is hostile.
    """


class StoreError(VedetteError):
    """The database could not be opened, migrated or written."""


class StoreUnavailable(StoreError):
    """The database cannot be written now (full disk, busy file), but may be later: keep what was to be written."""


class UplinkError(VedetteError):
    """The broker could not be reached or refused a message."""


class EngineError(VedetteError):
    """The cloud model could not give an answer."""


class EngineUnavailable(EngineError):
    """The cloud model cannot be used now, which means nothing for the escalation.

    `after_s`: its Retry-After. `probed`: it is probed all the time, so that a call while it is away costs nothing.
    """

    def __init__(self, message: str, after_s: float | None = None, *, probed: bool = False) -> None:
        super().__init__(message)
        self.after_s = after_s
        self.probed = probed
