"""Changes the site file key by key: comments, order and layout of everything else stay as the person wrote them.

The file is the one truth. A change is made in its text, checked as a whole file, shown as a difference, and only then
written, atomically.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from appliance.base import yamlfile
from appliance.base.errors import ConfigError, PreconditionError
from appliance.config.secrets_file import NAME, read_secrets, secrets_path, variables
from appliance.config.site_file import SiteConfig
from appliance.media.atomic_file import DiskWriteError, discard_temporary, finish_file, temporary_path
from appliance.settings.change_limits import check_file_keys, check_variables
from appliance.settings.secret_scrubber import SecretScrubber, secrets_of_text, site_text_without_secrets
from appliance.settings.yaml_edit import SiteChange, edit


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
    """Reads, proposes and writes the site file at `path`. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> SiteText:
        """Return the file as it is now. Raises ConfigError with every fault."""
        return checked_text(yamlfile.read_text(self.path), self.path)

    def propose(
        self, changes: Sequence[SiteChange], base: str, secrets: Mapping[str, str] | None = None
    ) -> SiteProposal:
        """Return what the file would be after `changes`, one after the other. base: the digest that they were made for.

        secrets: that are to be kept beside the file with them. Raises SiteFileChanged, and ConfigError for a text that
        is no valid site file, or for a key that is not changed from here.
        """
        before = self._read_unchecked(base)
        text = edit(before, changes)
        check_variables(before, text, secrets or ())  # before anything is expanded, and so may stand in an error
        return self.propose_text(text, base, secrets)

    def propose_text(self, text: str, base: str, secrets: Mapping[str, str] | None = None) -> SiteProposal:
        """Return the proposal to replace the whole text: an edit in the browser or an older version.

        Raises as `propose`.
        """
        before = self._read_unchecked(base)
        old, after = checked_text(before, self.path), checked_text(text, self.path, secrets)
        check_file_keys(old.config, after.config)
        return SiteProposal(old, after, difference(before, text))

    def write(self, proposal: SiteProposal) -> None:
        """Put it in place, whole or not at all. Raises SiteFileChanged, DiskWriteError."""
        self._read_unchecked(proposal.before.digest)
        replace_text(self.path, proposal.after.text)

    def _read_unchecked(self, base: str) -> str:
        text = yamlfile.read_text(self.path)
        if digest_of(text) != base:
            raise SiteFileChanged
        return text


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, with the rights of the file before; a new one is its owner's alone.

    Raises DiskWriteError with the remedy.
    """
    temporary = temporary_path(path)
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(mode)
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
    """Return the unified difference of two texts with secrets as `***`; a secret that changed is a line that did.

    other: a text whose secrets may stand in them, too: one of them that is no YAML does not show its own.
    """

    def lines(text: str) -> list[str]:
        shown = site_text_without_secrets(text).splitlines()
        return [f"{each}\0{written}" for each, written in zip(shown, text.splitlines(), strict=True)]

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
    if not NAME.fullmatch(name) or not value.isprintable() or value != value.strip():
        raise ConfigError(name, ["a secret has a name of letters and digits, and one line of printable characters"])
    path = secrets_path(site_file)
    read_secrets(site_file)  # refuses a file that is none
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if line.partition("=")[0].strip() != name]
    if path.exists():
        path.chmod(0o600)
    replace_text(path, "\n".join([*kept, f"{name}={value}", ""]))
