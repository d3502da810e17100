"""Limits of a change through the dashboard: it may not name variables, programs, folders, keys or files.

Whoever takes over an admin's browser must not get the service's environment, nor run a program on the appliance with
it. What is refused here is changed in the site file, by a person who may write to the appliance.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from appliance.base.errors import ConfigError
from appliance.config.site_file import SiteConfig
from appliance.detect.class_labels import COCO_NAME
from appliance.detect.model_files import AUTO_MODEL, HOG_MODEL, present_models
from appliance.settings.secret_scrubber import texts_in

FILE_KEYS = {
    **dict.fromkeys(("decode.ffmpeg", "detector.hailo.python"), "a program that the appliance runs"),
    **dict.fromkeys(("storage.dir", "storage.preroll_dir", "sensors.root"), "a folder of the appliance"),
    **dict.fromkeys(  # *.tls_*: of uplink, mqtt and targets of notify
        ("dashboard.certificate", "dashboard.certificate_key", "uplink.credentials", "uplink.nkey", "*.tls_*"),
        "a file with a key or a certificate",
    ),
    **dict.fromkeys(  # *.model: of detector and second_look
        ("detector.labels", "*.model"), "a file of the appliance; what is installed can be chosen by its name"
    ),
}
"""Keys that only the site file changes, `*` for any section, and what each names."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")


def file_keys(config: SiteConfig) -> dict[str, tuple[str, Any]]:
    """Return what each of FILE_KEYS names and its value (None: nothing), by its dotted key, if the settings have it."""
    found = dict(leaves(config.model_dump(exclude={"cameras"})))
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
    """Raise ConfigError if `after` differs in a key that stays in the site file."""
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
    """Return the start of an error for a plain name that is no network here, so that a typing error is shown as one."""
    is_name = key.endswith(".model") and isinstance(value, str) and "/" not in value and not value.endswith(".onnx")
    return f"there is no model `{value}`; " if is_name else ""


def _is_installed(key: str, value: Any) -> bool:
    """Return True for a network, or a set of class names, that can be chosen by its name."""
    if key == "detector.labels":
        return value is None or value == Path(COCO_NAME)
    return key.endswith(".model") and (value in (None, AUTO_MODEL, HOG_MODEL) or value in present_models())


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
