"""The grammar of the `vedette` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.alerts.notify import arguments as notify_arguments
from appliance.cli import commands, texts
from appliance.egress import arguments as egress_arguments
from appliance.escalate import calibrate_arguments
from appliance.export import arguments as export_arguments
from appliance.replay import arguments as replay_arguments
from appliance.replay import cassette_arguments
from appliance.scenario import arguments as scenario_arguments
from appliance.scenario import keep_arguments
from appliance.scenario.curve import arguments as curve_arguments
from appliance.scenario.tune import arguments as tune_arguments
from appliance.version import version

if TYPE_CHECKING:
    _Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

_Add = Callable[[argparse.ArgumentParser], None]
_Command = Callable[[argparse.Namespace], int]


def build() -> argparse.ArgumentParser:
    """The parser; what it parses has a `command` that takes the options and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="vedette",
        description="Watches cameras on the spot, sends boxes instead of video, asks a large model when it pays.",
        epilog="Begin with: vedette demo. Then: vedette check site.yaml. `vedette COMMAND --help` shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"vedette {version() or 'unknown (not installed)'}")
    grammar = _Grammar(parser.add_subparsers(metavar="COMMAND", required=True))
    grammar.command("check", texts.CHECK, _add_check, commands.check_site)
    grammar.command("run", texts.RUN, _add_run, commands.run_site)
    grammar.command("replay", replay_arguments.REPLAY, replay_arguments.add_replay, commands.replay)
    grammar.hidden("replay diff", replay_arguments.DIFF, replay_arguments.add_diff, commands.replay_diff)
    scenario = grammar.family("scenario", scenario_arguments.SCENARIO)
    scenario.verb("run", scenario_arguments.RUN, scenario_arguments.add_run, commands.scenario_run)
    scenario.verb("curve", curve_arguments.CURVE, curve_arguments.add_curve, commands.scenario_curve)
    scenario.verb("keep", keep_arguments.KEEP, keep_arguments.add_keep, commands.scenario_keep)
    scenario.verb("list", keep_arguments.LIST, keep_arguments.add_list, commands.scenario_list)
    scenario.verb("delete", keep_arguments.DELETE, keep_arguments.add_delete, commands.scenario_delete)
    grammar.command("tune", tune_arguments.TUNE, tune_arguments.add_tune, commands.tune)
    cassette = grammar.family("cassette", cassette_arguments.CASSETTE)
    cassette.verb(
        "from-store", cassette_arguments.FROM_STORE, cassette_arguments.add_from_store, commands.cassette_from_store
    )
    cassette.verb("check", cassette_arguments.CHECK, cassette_arguments.add_check, commands.cassette_check)
    grammar.command("calibrate", calibrate_arguments.CALIBRATE, calibrate_arguments.add_calibrate, commands.calibrate)
    grammar.command("export", export_arguments.EXPORT, export_arguments.add_export, commands.export_alerts)
    grammar.command("egress", egress_arguments.EGRESS, egress_arguments.add_egress, commands.egress)
    notify = grammar.family("notify", notify_arguments.NOTIFY)
    notify.verb("test", notify_arguments.TEST, notify_arguments.add_test, commands.notify_test)
    grammar.command("demo", texts.DEMO, _add_demo, commands.run_demo)
    return parser


class _Grammar:
    """The commands of one level; each has an entry in `texts.SUMMARY`, under its whole name."""

    def __init__(self, verbs: _Verbs, family: str = "") -> None:
        self._verbs = verbs
        self._family = family
        self._common = argparse.ArgumentParser(add_help=False)
        self._common.add_argument("-v", "--verbose", action="store_true", help="log more")
        self._common.add_argument("--log-json", action="store_true", help="log as JSON lines")

    def command(self, name: str, text: str, add: _Add, command: _Command) -> None:
        parser = self._parser(name, text, help=texts.SUMMARY[f"{self._family} {name}".strip()])
        add(parser)
        parser.set_defaults(command=command)

    verb = command

    def hidden(self, name: str, text: str, add: _Add, command: _Command) -> None:
        """A command of two words that argparse cannot know (see main); without a summary it is not listed."""
        parser = self._parser(name.replace(" ", "-"), text, prog=f"vedette {name}")
        add(parser)
        parser.set_defaults(command=command)

    def family(self, name: str, text: str) -> _Grammar:
        parser = self._parser(name, text, help=texts.SUMMARY[name])
        return _Grammar(parser.add_subparsers(metavar="VERB", required=True), name)

    def _parser(self, name: str, text: str, **known: Any) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        return self._verbs.add_parser(name, parents=[self._common], description=text, formatter_class=form, **known)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the site file (YAML)")
    parser.add_argument("--no-probe", dest="probe", action="store_false", help="do not contact cameras or the broker")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clip", type=Path, metavar="FILE", help="play this video as the camera")
    parser.add_argument(
        "--camera", action="append", default=[], metavar="URL", help="use this rtsp:// camera (repeatable)"
    )
    parser.add_argument("--model", metavar="M", help="detector model: auto, a name, a path to an .onnx, or builtin:hog")
    parser.add_argument("--port", type=int, metavar="N", help="dashboard port (default 8080, or the next free one)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where recordings and the database go")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="do not open a browser")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop by itself after S seconds")
    parser.add_argument("--json", action="store_true", help="print what happens as JSON lines")
