"""A site file's text with *** where its secrets stood, and the same text with the secrets of another file put there."""

from __future__ import annotations

from typing import Any

import yaml

from appliance.base.errors import PreconditionError
from appliance.settings.secret_scrubber import HIDDEN, SecretScrubber, is_secret, texts_in
from appliance.settings.yaml_edit import KeyPath, SiteChange, edit


def hide_secrets(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text without secrets, comments included, and the keys that were hidden.

    A text that only names a variable (`${NAME}`) stays. Raise ConfigError if an alias makes one text stand for two
    places.
    """
    paths = [path[1:] for path, value in texts_in(_data(text)) if is_secret(path, value)]
    hidden = edit(text, [SiteChange(path, HIDDEN) for path in paths])
    scrubber = SecretScrubber(())
    lines = [
        scrubber.scrub_site(line) if line.lstrip().startswith("#") else line
        for line in hidden.splitlines(keepends=True)
    ]
    return "".join(lines), tuple(_dotted(path) for path in paths)


def fill_secrets(text: str, present: str) -> str:
    """Return `text` with each hidden value taken from the same key of `present`.

    Raises PreconditionError with the keys that are not there.
    """
    paths = [path[1:] for path, value in texts_in(_data(text)) if value == HIDDEN]
    known = {path[1:]: value for path, value in texts_in(_data(present)) if value != HIDDEN}
    if missing := [_dotted(path) for path in paths if path not in known]:
        raise PreconditionError(
            f"it was made without secrets, and the site file of now has none for {', '.join(missing)}: restore one "
            "that was made with a passphrase, or write these keys into the site file first"
        )
    return edit(text, [SiteChange(path, known[path]) for path in paths])


def _data(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise PreconditionError("the site file is not YAML") from None


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
