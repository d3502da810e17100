"""The grammar of the `vedette` command line as a table: each row is a command with its texts, options and function."""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from appliance import program_version
from appliance.base.command_exit import CommandParser, named_path, whole_number_between

if TYPE_CHECKING:
    _Verbs = argparse._SubParsersAction[CommandParser]

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Option:
    """One argument of a command: `settings` as `ArgumentParser.add_argument` takes them; `group`: its heading."""

    flags: tuple[str, ...]
    settings: dict[str, Any]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table.

    name: one word, or a family and a verb. summary: its line in the list of commands; None: it is not listed.
    run: `module:function`, imported when the command runs, so that `--help` loads neither the lab nor a video library;
    the function returns the exit code. '': a family, whose verbs follow in the table.
    """

    name: str
    summary: str | None
    text: str
    options: tuple[Option, ...] = ()
    run: str = ""

    def function(self) -> Callable[..., int]:
        """Import what runs it, without looking for garbage meanwhile: modules stay, and it is a tenth of a start."""
        module, _, name = self.run.partition(":")
        gc.disable()
        try:
            found: Callable[..., int] = getattr(importlib.import_module(module), name)
        finally:
            gc.enable()
        return found

    def __call__(self, options: argparse.Namespace) -> int:
        """Run it; each parameter of its function is the option of that name, or a dataclass made of several."""
        if self.run.startswith("appliance.lab."):
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing is left half written
        function = self.function()
        kinds = get_type_hints(function)
        given = {}
        for name in inspect.signature(function).parameters:
            if hasattr(options, name):
                given[name] = getattr(options, name)
            elif is_dataclass(kind := kinds[name]) and isinstance(kind, type):
                given[name] = options_of(kind, options)
        return function(**given)


class CommandTable:
    """The commands of one group, in the order in which they are written down."""

    def __init__(self) -> None:
        self.rows: list[Command] = []

    def command(self, name: str, summary: str | None, text: str, *options: Option, run: str = "") -> None:
        self.rows.append(Command(name, summary, text, options, run))


def option(*flags: str, group: str = "", **settings: Any) -> Option:
    return Option(flags, settings, group)


def switch(*flags: str, **settings: Any) -> Option:
    """Return an option without a value, off until it is given."""
    return Option(flags, {"action": "store_true", **settings})


def json_switch(output: str = "a JSON object instead of text") -> Option:
    return switch("--json", dest="as_json", help=f"print {output}")


def options_of(kind: type[Options], options: argparse.Namespace) -> Options:
    """Return a dataclass of options, each field filled from the parsed option of its name."""
    names = [each.name for each in fields(kind) if hasattr(options, each.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names})


def number_between(low: float, high: float, what: str) -> Callable[[str], float]:
    """Return the `type` of an option that is a number from `low` to `high`. what: its name in the error."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"`{text}` is no {what}: write a number from {low:g} to {high:g}")
        return value

    return read


share = number_between(0, 1, "share")
count = whole_number_between(1, 10_000, "count")
seconds = number_between(0.1, 86_400, "length in seconds")


CONFIG = option("--config", dest="site_file", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
JSON = json_switch()
JSON_TABLE = json_switch("a JSON object instead of a table")
_EVERYWHERE = (switch("-v", "--verbose", help="log more"), switch("--log-json", help="log as JSON lines"))


def build_parser(commands: Iterable[Command]) -> argparse.ArgumentParser:
    """Return the parser; what it parses has a `command`, the function to run."""
    root = CommandParser(
        prog="vedette",
        description="Watches cameras on site, sends boxes instead of video, asks a large model when it pays.",
        epilog="Begin with: vedette demo. Then: vedette check site.yaml. `vedette COMMAND --help` shows examples.",
    )
    root.add_argument("--version", action="version", version=program_version("vedette"))
    families: dict[str, _Verbs] = {"": root.add_subparsers(metavar="COMMAND", required=True)}
    for command in commands:
        parser = _add_parser(families, command)
        if not command.run:
            families[command.name] = parser.add_subparsers(metavar="VERB", required=True)
        else:
            parser.set_defaults(command=command)
    return root


def _add_parser(families: dict[str, _Verbs], command: Command) -> CommandParser:
    family, _, verb = command.name.rpartition(" ")
    known: dict[str, Any] = {"help": command.summary}
    if command.summary is None:  # argparse would list it if it had a help at all
        family, verb, known = "", command.name.replace(" ", "-"), {"prog": f"vedette {command.name}"}
    form = argparse.RawDescriptionHelpFormatter
    parser = families[family].add_parser(verb, description=command.text, formatter_class=form, **known)
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for each in (*_EVERYWHERE, *command.options):
        if each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        checked = {"type": named_path} if each.settings.get("type") is Path else {}
        groups[each.group].add_argument(*each.flags, **{**each.settings, **checked})
    return parser
