"""`--with` and `--seed`, as every command that replays footage has them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from appliance.errors import UsageError
from appliance.weather.help import weather_help
from appliance.weather.spec import conditions

SEED_MAX = 2**32 - 1


def add_weather(parser: argparse.ArgumentParser, words: str) -> None:
    """Adds `weather` (a list of what was written, each checked) and `seed` to what is parsed. words: for --help."""
    parser.add_argument("--with", dest="weather", action=_With, default=[], metavar="W[,W…]|help", help=words)
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the chance in --with (default: 0)")


def seed(text: str) -> int:
    """A whole number that numpy's generators take."""
    if not text.isascii() or not text.isdigit() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"`{text}` is no seed: write a whole number from 0 to {SEED_MAX}")
    return int(text)


class _With(argparse.Action):
    """`help` explains and is done, whatever else is missing on the line; a slip is told before anything is run."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        text = str(values)
        if text.strip() == "help":
            print(weather_help())
            parser.exit()
        try:
            conditions([text])
        except UsageError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), text])
