"""What a scenario's `verdicts:` says: a cassette beside it, or a stand-in made of its own truth."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.errors import UsageError
from appliance.replay.cassette_arguments import StandInWish, verdicts
from appliance.replay.cassette_file import CassetteReader


def wish_of(text: str | None, folder: Path) -> Path | StandInWish | None:
    """What `verdicts:` says: a cassette beside the scenario, or a stand-in. Raises UsageError."""
    if text is None:
        return None
    try:
        wish = verdicts(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None
    if isinstance(wish, Path):
        return folder / wish
    if wish.truth is not None:
        raise UsageError("the truth is this scenario itself: leave `truth=` away")
    return wish


def check(text: str | None, folder: Path) -> None:
    """Read a named cassette from end to end. Raises UsageError."""
    wish = wish_of(text, folder)
    if isinstance(wish, Path):
        for _ in CassetteReader(wish).lines():
            pass
