"""`--with` and `--seed`: weather and faults made of the footage, for the commands that replay it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from appliance.base.errors import UsageError
from appliance.cli.command_table import Option, option


def condition_options(help: str) -> tuple[Option, ...]:
    return (
        option("--with", dest="conditions", action=_ConditionsAction, default=[], metavar="W[,W…]|help", help=help),
        option("--seed", type=_seed, default=0, metavar="N", help="seed of the randomness in --with (default: 0)"),
    )


class _ConditionsAction(argparse.Action):
    """`--with help` explains the conditions and ends, whatever else is missing; a wrong one is refused at once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from appliance.replay.conditions.condition_spec import conditions_help, parse_conditions

        text = str(values)
        if text.strip() == "help":
            print(conditions_help())
            parser.exit()
        try:
            parse_conditions([text])
        except UsageError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), text])


def _seed(text: str) -> int:
    from appliance.replay.conditions.condition_spec import parse_seed

    return parse_seed(text)
