"""Changes the site file key by key: comments, order and layout of everything else stay as the person wrote them.

The file is the one truth. A change is made in its text, checked as a whole file, shown as a difference, and only then
written, atomically. Whoever takes over an admin's browser must not read the service's environment or run a program on
the appliance. So a change by key may not bring in a variable (`check_variables`), and no change may touch a key that
names a program, a folder, a key or a file (`FILE_KEYS`, `check_file_keys`). A person who may write to the appliance's
disk can still make such a change in the file by hand.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, count
from pathlib import Path
from typing import Any

import yaml

from appliance.base import yamlfile
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError, discard_temporary, finish_file, temporary_path
from appliance.config.site_file import SECRET_NAME, SiteConfig, read_secrets, secrets_path, variables
from appliance.detect.class_labels import COCO_NAME
from appliance.detect.model_files import AUTO_MODEL, HOG_MODEL, bundle_store, present_models
from appliance.settings.secret_scrubber import SecretScrubber, secrets_of_text, site_text_without_secrets, texts_in
from appliance.settings.yaml_edit import SiteChange, edit

FILE_KEYS = {
    **dict.fromkeys(("decode.ffmpeg", "detector.hailo.python"), "a program that the appliance runs"),
    **dict.fromkeys(("storage.dir", "storage.preroll_dir", "sensors.root"), "a folder of the appliance"),
    **dict.fromkeys(  # *.tls_*: of uplink, mqtt and targets of notify
        ("dashboard.certificate", "dashboard.certificate_key", "uplink.credentials", "uplink.nkey", "*.tls_*"),
        "a file with a key or a certificate",
    ),
    **dict.fromkeys(
        ("detector.labels", "*.model"),  # of detector, second_look and cameras
        "a file of the appliance; what is installed can be chosen by its name",
    ),
}
"""Keys that only the site file changes, `*` for any section, and what each names."""
SERVED_MODEL = "escalation.local_judge.model"  # what a server nearby calls it: no file
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\s\[\]]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class SiteText:
    """The site file as it stands. digest: sha256 of the text, in hex."""

    text: str
    digest: str
    config: SiteConfig

    def as_written(self) -> dict[str, Any]:
        """Keys and values as they stand there: `${NAME}` is not expanded, defaults are not filled in."""
        written = yaml.safe_load(self.text)
        return written if isinstance(written, dict) else {}

    def free_stem(self, stem: str, keys: Collection[str], section: str) -> str:
        """Return `stem`, with a number where the file names `${stem_key}` outside `section`, a dotted key.

        section: that the names are for, or the one key. Two names may have the same stem: `a-b` and `a_b`.
        """
        named = _variables_by_key(self.text).items()
        taken = {name for key, names in named if not f"{key}.".startswith(f"{section}.") for name in names}
        numbered = chain([stem], (f"{stem}_{n}" for n in count(2)))
        return next(each for each in numbered if taken.isdisjoint(f"{each}_{key}" for key in keys))


@dataclass(frozen=True, slots=True)
class SiteProposal:
    """A change that was checked and not yet written. diff: unified, values of secret keys left out."""

    before: SiteText
    after: SiteText
    diff: str


class SiteFileChanged(PreconditionError):
    """The file is no longer the one that the change was made for: read it again."""

    def __init__(self) -> None:
        super().__init__("the site file was changed meanwhile; load it again and repeat the change")


class SiteEditor:
    """Reads the site file at `path`, proposes changes and writes them. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> SiteText:
        """Return the file as it is now. Raises ConfigError with every fault."""
        return checked_text(yamlfile.read_text(self.path), self.path)

    def propose(
        self, changes: Sequence[SiteChange], base: str, secrets: Mapping[str, str] | None = None
    ) -> SiteProposal:
        """Return what the file would be after `changes`, one after the other. base: the digest that they were made for.

        secrets: values to keep beside the file, named by the changes. Raises SiteFileChanged. Raises ConfigError if the
        result is not a valid site file, or if a key or variable may only be changed by hand.
        """
        before = self._read_unchecked(base)
        text = edit(before, changes)
        check_variables(before, text, secrets or ())  # first, since later errors may show expanded values
        return self.propose_text(text, base, secrets)

    def propose_text(
        self, text: str, base: str, secrets: Mapping[str, str] | None = None, held: SiteConfig | None = None
    ) -> SiteProposal:
        """Return the proposal to replace the whole text by one that was in force before. Raises as `propose`.

        held: the settings in force, whose keys of FILE_KEYS stay; None: those of the file, which must be valid then.
        The text must not come from a request: its variables are not checked. A kept version may name variables, because
        `propose` has checked it, or a person wrote it by hand or restored it from a backup (SECURITY.md).
        """
        before = self._read_unchecked(base)
        old = checked_text(before, self.path) if held is None else SiteText(before, digest_of(before), held)
        after = checked_text(text, self.path, secrets)
        check_file_keys(old.config, after.config)
        return SiteProposal(old, after, difference(before, text))

    def write(self, proposal: SiteProposal) -> None:
        """Write the proposed text to the file, whole or not at all. Raises SiteFileChanged, DiskWriteError."""
        self._read_unchecked(proposal.before.digest)
        replace_text(self.path, proposal.after.text)

    def _read_unchecked(self, base: str) -> str:
        text = yamlfile.read_text(self.path)
        if digest_of(text) != base:
            raise SiteFileChanged
        return text


def first_site_file(path: Path, listen: str | None) -> Path:
    """Return `path`, with a site file without cameras written to it if there was none.

    listen: HOST or HOST:PORT of the dashboard. Raises UsageError: it is neither, or there is a file already, which
    says where; DiskWriteError.
    """
    if path.exists():
        if listen is not None:
            raise UsageError(f"--listen is for the first run, and there is {path} already: set dashboard.host there")
        return path
    dashboard: dict[str, str | int] = {}
    if listen is not None:
        found = _LISTEN.fullmatch(listen)
        if found is None:
            raise UsageError(f"`{listen}` is no HOST or HOST:PORT such as 0.0.0.0:8080 or [::]:8080")
        dashboard = {"host": found[1].strip("[]")} | ({"port": int(found[2])} if found[2] else {})
        _must_be_own(listen, str(dashboard["host"]), int(dashboard.get("port", 0)))
    sections = {
        "site": {"name": "site"},
        "storage": {"dir": str(path.parent / "vedette-data")},
        **({"dashboard": dashboard} if dashboard else {}),
        "cameras": {},
    }
    head = "# Written at the first run. The dashboard changes it, and you may: `vedette check` says what is wrong.\n"
    replace_text(path, head + yaml.safe_dump(sections, sort_keys=False, allow_unicode=True))
    return path


def _must_be_own(listen: str, host: str, port: int) -> None:
    """Check the address before it stands in a file that stops every later start. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--listen {listen} is no address of this machine ({reason}): nothing was written") from None
    if port > 65535:
        raise UsageError(f"--listen {listen}: a port is from 1 to 65535; nothing was written")


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, with owner and rights of the file before; a new one is its owner's alone.

    Raises DiskWriteError with the remedy.
    """
    temporary = temporary_path(path)
    try:
        before = path.stat() if path.exists() else None
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        if before is not None:
            with suppress(PermissionError):  # root may give it back to the service's user, others need not
                os.chown(temporary, before.st_uid, before.st_gid)
        temporary.chmod(before.st_mode & 0o777 if before else 0o600)
    except OSError as error:
        discard_temporary(temporary)
        raise DiskWriteError(
            f"{path} cannot be written: {error.strerror}; let the user that runs vedette write to {path.parent}"
        ) from None
    finish_file(path)


def digest_of(text: str) -> str:
    """sha256 of `text`, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def difference(before: str, after: str, other: str = "") -> str:
    """Return the unified difference of two texts with secrets as `***`. A line whose secret changed counts as changed.

    other: a further text whose secrets are hidden; the secrets of a text that is not valid YAML cannot be found in it.
    """

    def lines(text: str) -> list[str]:
        # Compare with the secret, show without it: the written line follows \0 and is cut off below.
        shown = site_text_without_secrets(text).split("\n")  # other ends of lines may stand in what is hidden
        return [f"{each}\0{written}" for each, written in zip(shown, text.split("\n"), strict=True)]

    scrubber = SecretScrubber(each for text in (before, after, other) for each in secrets_of_text(text))
    changed = difflib.unified_diff(lines(before), lines(after), "before", "after", lineterm="")
    return "\n".join(scrubber.scrub(line.partition("\0")[0]) for line in changed)


def checked_text(text: str, site_file: Path, secrets: Mapping[str, str] | None = None) -> SiteText:
    """Return `text` parsed as that site file, beside which `secrets` are to be kept.

    Raises ConfigError with every fault.
    """
    known = variables(site_file, secrets)
    return SiteText(text, digest_of(text), yamlfile.loads(text, SiteConfig, str(site_file), known))


def write_secret(site_file: Path, name: str, value: str) -> None:
    """Keep a secret beside the site file, readable by its owner alone; the lines of others stay as they are.

    Raises ConfigError: the name or the value cannot stand in the file; DiskWriteError.
    """
    if not SECRET_NAME.fullmatch(name) or not value.isprintable() or value != value.strip():
        raise ConfigError(name, ["a secret has a name of letters and digits, and one line of printable characters"])
    path = secrets_path(site_file)
    read_secrets(site_file)  # refuses a file that is none
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if line.partition("=")[0].strip() != name]
    if path.exists():
        path.chmod(0o600)
    replace_text(path, "\n".join([*kept, f"{name}={value}", ""]))


def file_keys(config: SiteConfig) -> dict[str, tuple[str, Any]]:
    """Return the keys of FILE_KEYS that the settings have: by dotted key, what it names and its value (None: unset)."""
    found = dict(leaves(config.model_dump(exclude={"cameras"})))
    found.pop(SERVED_MODEL, None)
    found |= {f"cameras.{name}.model": camera.model for name, camera in config.cameras.items() if camera.model}
    return {
        key: (names, found[key]) for pattern, names in FILE_KEYS.items() for key in found if fnmatchcase(key, pattern)
    }


def check_variables(before: str, after: str, kept: Collection[str] = ()) -> None:
    """Raise ConfigError if a text of the site file names a `${NAME}` that its key did not name before.

    The values of variables reach cameras and answers of the API. kept: names that this change brings with it.
    """
    known = _variables_by_key(before)
    problems = [
        f"{key}: ${{{name}}} is not taken from here, as it would send the value of that name to others: "
        "write it into the site file by hand"
        for key, names in _variables_by_key(after).items()
        for name in sorted(names - known.get(key, set()) - set(kept))
    ]
    if problems:
        raise ConfigError("site file", problems)


def check_file_keys(before: SiteConfig, after: SiteConfig) -> None:
    """Raise ConfigError if `after` changes a key of FILE_KEYS, unless to something that is installed here."""
    held = file_keys(before)
    problems = [
        f"{key}: {_absent(key, value)}it names {names}: change it in the site file by hand, and take the edit on the "
        "page Settings"
        for key, (names, value) in file_keys(after).items()
        if value != held.get(key, ("", None))[1] and not _is_installed(key, value)
    ]
    if problems:
        raise ConfigError("site file", problems)


def _absent(key: str, value: Any) -> str:
    """Return the start of an error about an unknown network; '' for a path, which is no typing error."""
    is_name = key.endswith(".model") and isinstance(value, str) and "/" not in value and not value.endswith(".onnx")
    return f"there is no model `{value}`; " if is_name else ""


def _is_installed(key: str, value: Any) -> bool:
    """Return True for a network, or a set of class names, that can be chosen by its name."""
    if key == "detector.labels":
        return value is None or value == Path(COCO_NAME)
    if not key.endswith(".model") or value in (None, AUTO_MODEL, HOG_MODEL):
        return key.endswith(".model")
    return value in present_models() or value in map(str, bundle_store().installed())


def _variables_by_key(text: str) -> dict[str, set[str]]:
    """Names of variables by dotted key; items of a list count under the key of the list."""
    found: dict[str, set[str]] = {}
    for path, value in texts_in(yaml.safe_load(text)):
        key = ".".join(str(part) for part in path[1:] if not isinstance(part, int))
        found.setdefault(key, set()).update(_VARIABLE.findall(value))
    return found


def leaves(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested sections with its dotted key."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
