"""Makes a secret of this appliance at first use, and keeps it in a file that nobody else may read."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from appliance.base.errors import MissingDependency

KEY_BYTES_MAX = 4096  # a PEM key of any kind that we make has under 1 kB


def own_key(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the key at `path`, which is made the first time.

    Raise MissingDependency with the remedy.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")  # of this call alone
            if not path.exists():
                opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(opened, "wb") as file:
                    file.write(make())
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(temporary, path)  # the first one counts, also for two at once
                finally:
                    temporary.unlink()
        with path.open("rb") as file:
            return file.read(KEY_BYTES_MAX)
    except OSError as error:
        raise MissingDependency(f"{path}, a key of this appliance: {error.strerror}; check storage.dir") from None
