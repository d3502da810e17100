"""Reads `<site file>.secrets`: passwords that the site file names as `${NAME}`, for those who set no environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import ConfigError
from appliance.base.local_files import is_special

SECRETS_BYTES_MAX = 256 * 1024  # far above what secrets take: a larger file is another one by mistake
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def secrets_path(site_file: Path) -> Path:
    """Beside the site file, under its name: `site.yaml` has `site.secrets`. Raises ConfigError: `.` has none."""
    if not site_file.name:
        raise ConfigError(str(site_file), ["a folder: name the file in it"])
    return site_file.with_suffix(".secrets")


def read_secrets(site_file: Path) -> dict[str, str]:
    """Read `NAME=value` lines; empty ones and those that begin with # do not count. {}: there is no such file.

    Raises ConfigError with the line, never with a value.
    """
    path = secrets_path(site_file)
    try:
        if is_special(path):
            raise ConfigError(str(path), ["a pipe or a device: give a file"])
        if path.stat().st_size > SECRETS_BYTES_MAX:
            raise ConfigError(str(path), [f"the file is over {SECRETS_BYTES_MAX} bytes; secrets are not that long"])
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"]) from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not NAME.fullmatch(name.strip()):
            raise ConfigError(str(path), [f"line {number}: not NAME=value"])
        found[name.strip()] = value.strip()
    return found


def variables(site_file: Path, coming: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the values of `${NAME}` in a site file: its secrets, and above them the environment.

    coming: secrets that are about to be kept beside it.
    """
    given = {name: value for name, value in os.environ.items() if value}
    return {**read_secrets(site_file), **(coming or {}), **given}


def secrets_exposed(site_file: Path) -> bool:
    """Return True if others than the owner may read the secrets."""
    path = secrets_path(site_file)
    return path.exists() and bool(path.stat().st_mode & 0o077)
