"""The grammar and the help texts of the `vedette` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.cli import commands
from appliance.cli import notify_egress_options as egress_arguments
from appliance.cli import notify_egress_options as notify_arguments
from appliance.lab import lab_arguments
from appliance.lab import lab_arguments as export_arguments
from appliance.lab import lab_arguments as replay_arguments
from appliance.lab.scenario import scenario_options
from appliance.lab.scenario import scenario_options as curve_arguments
from appliance.lab.scenario import scenario_options as scenario_arguments
from appliance.lab.scenario import scenario_options as tune_arguments
from appliance.router import calibrate_arguments
from appliance.version import version

SUMMARY = {
    "check": "check a site file, its cameras and its broker before it goes live",
    "run": "run the appliance",
    "replay": "send a recorded clip through the pipeline and print what it would have raised",
    "scenario": "prove on recorded footage what must and must not be reported",
    "scenario run": "run scenario files, or all in a folder",
    "scenario curve": "hold the router against choosing by motion, score or chance",
    "scenario keep": "keep a reviewed alert as a scenario",
    "scenario list": "list the kept ones",
    "scenario delete": "delete a kept one",
    "tune": "find the threshold that is best on recorded footage, and say why",
    "cassette": "keep the cloud's answers in a file, for replays without a cloud",
    "cassette from-store": "copy the verdicts this box really got",
    "cassette check": "read one and say what is on it",
    "calibrate": "show what the router has learnt from reviews and verdicts, and the recall that it claims",
    "export": "export reviewed alerts as data to train a detector on",
    "egress": "print what left the site: when, why, how many bytes",
    "notify": "who is told of alerts",
    "notify test": "send each target a test message and say what came back",
    "demo": "see the whole thing work on this machine, with footage that comes along",
}

CHECK = """\
Check a site file before it goes live: every key, every zone and rule, the model, the storage folder, the uplink,
and each camera, which is opened for a moment.

  vedette check /etc/vedette/site.yaml
  vedette check site.yaml --no-probe          # the file only, nothing is contacted
  vedette check site.yaml --json | jq .problems

Exit code 0: ready to run. 1: a camera or the broker did not answer. 2: the file is wrong (each fault with its line).
"""
RUN = """\
Run the appliance: read the cameras, detect, alert, keep evidence, ask the cloud, serve the dashboard.

  vedette run --config /etc/vedette/site.yaml

Ctrl-C (or SIGTERM) stops cleanly. All state is in the storage folder; starting again goes on where it stopped.
"""
DEMO = """\
See the whole thing work on this machine, without an account, a camera or a GPU: two cameras over RTSP playing footage
that comes with Vedette, the appliance, a NATS server, a cloud worker, and the dashboard.

  vedette demo
  vedette demo --clip ~/Videos/driveway.mp4
  vedette demo --camera rtsp://viewer:secret@192.168.1.20/sub

Ctrl-C stops everything.
"""


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
    grammar.command("check", CHECK, _add_check, commands.check_site)
    grammar.command("run", RUN, _add_run, commands.run_site)
    grammar.command("replay", replay_arguments.REPLAY_HELP, replay_arguments.add_replay, commands.replay)
    grammar.hidden(
        "replay diff", replay_arguments.REPLAY_DIFF_HELP, replay_arguments.add_replay_diff, commands.replay_diff
    )
    scenario = grammar.family("scenario", scenario_arguments.SCENARIO_HELP)
    scenario.verb("run", scenario_arguments.RUN_HELP, scenario_arguments.add_run, commands.scenario_run)
    scenario.verb("curve", curve_arguments.CURVE_HELP, curve_arguments.add_curve, commands.scenario_curve)
    scenario.verb("keep", scenario_options.KEEP_HELP, scenario_options.add_keep, commands.scenario_keep)
    scenario.verb("list", scenario_options.LIST_HELP, scenario_options.add_list, commands.scenario_list)
    scenario.verb("delete", scenario_options.DELETE_HELP, scenario_options.add_delete, commands.scenario_delete)
    grammar.command("tune", tune_arguments.TUNE_HELP, tune_arguments.add_tune, commands.tune)
    cassette = grammar.family("cassette", lab_arguments.CASSETTE_HELP)
    cassette.verb(
        "from-store", lab_arguments.FROM_STORE_HELP, lab_arguments.add_cassette_from_store, commands.cassette_from_store
    )
    cassette.verb("check", lab_arguments.CASSETTE_CHECK_HELP, lab_arguments.add_cassette_check, commands.cassette_check)
    grammar.command("calibrate", calibrate_arguments.CALIBRATE, calibrate_arguments.add_calibrate, commands.calibrate)
    grammar.command("export", export_arguments.EXPORT_HELP, export_arguments.add_export, commands.export_alerts)
    grammar.command("egress", egress_arguments.EGRESS, egress_arguments.add_egress, commands.egress)
    notify = grammar.family("notify", notify_arguments.NOTIFY)
    notify.verb("test", notify_arguments.TEST, notify_arguments.add_test, commands.notify_test)
    grammar.command("demo", DEMO, _add_demo, commands.run_demo)
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
        parser = self._parser(name, text, help=SUMMARY[f"{self._family} {name}".strip()])
        add(parser)
        parser.set_defaults(command=command)

    verb = command

    def hidden(self, name: str, text: str, add: _Add, command: _Command) -> None:
        """A command of two words that argparse cannot know (see main); without a summary it is not listed."""
        parser = self._parser(name.replace(" ", "-"), text, prog=f"vedette {name}")
        add(parser)
        parser.set_defaults(command=command)

    def family(self, name: str, text: str) -> _Grammar:
        parser = self._parser(name, text, help=SUMMARY[name])
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
