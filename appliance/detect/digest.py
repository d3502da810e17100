"""What a model file is called by: the hash of what is in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from appliance.errors import ModelError


def sha256_of(path: Path) -> str:
    """sha256 of the file in hex. Raises ModelError."""
    sha = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                sha.update(block)
    except OSError as error:
        raise ModelError(f"{path}: the model file cannot be read: {error.strerror}") from None
    return sha.hexdigest()
