"""The `vedette` command: check a site file, run the appliance, replay footage, show the demo.

Exit codes: 0 done, 1 something is wrong with the footage or a camera, 2 wrong use or configuration.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ConfigError, SourceError, UsageError, VedetteError
from appliance.escalate import calibrate_arguments
from appliance.export import arguments as export_arguments
from appliance.replay import arguments as replay_arguments
from appliance.replay import cassette_arguments
from appliance.scenario import arguments as scenario_arguments
from appliance.scenario import keep_arguments
from appliance.scenario.curve import arguments as curve_arguments
from appliance.scenario.tune import arguments as tune_arguments
from appliance.telemetry import configure_logging

if TYPE_CHECKING:
    from appliance.config import SiteConfig
    from appliance.replay.answers import Answers

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_SUMMARY = {
    "check": "check a site file, its cameras and its broker before it goes live",
    "run": "run the appliance",
    "replay": "send a recorded clip through the pipeline and print what it would have raised",
    "scenario": "prove on recorded footage what must and must not be reported",
    "tune": "find the threshold that is best on recorded footage, and say why",
    "cassette": "keep the cloud's answers in a file, for replays without a cloud",
    "calibrate": "show what the router has learnt from reviews and verdicts, and the recall that it claims",
    "export": "export reviewed alerts as data to train a detector on",
    "demo": "see the whole thing work on this machine, with footage that comes along",
}

_CHECK = """\
Check a site file before it goes live: every key, every zone and rule, the model, the storage folder, the uplink,
and each camera, which is opened for a moment.

  vedette check /etc/vedette/site.yaml
  vedette check site.yaml --no-probe          # the file only, nothing is contacted
  vedette check site.yaml --json | jq .problems

Exit code 0: ready to run. 1: a camera or the broker did not answer. 2: the file is wrong (each fault with its line).
"""
_RUN = """\
Run the appliance: read the cameras, detect, alert, keep evidence, ask the cloud, serve the dashboard.

  vedette run --config /etc/vedette/site.yaml

Ctrl-C (or SIGTERM) stops cleanly. All state is in the storage folder; starting again goes on where it stopped.
"""
_DEMO = """\
See the whole thing work on this machine, without an account, a camera or a GPU: two cameras over RTSP playing footage
that comes with Vedette, the appliance, a NATS server, a cloud worker, and the dashboard.

  vedette demo
  vedette demo --clip ~/Videos/driveway.mp4
  vedette demo --camera rtsp://viewer:secret@192.168.1.20/sub

Ctrl-C stops everything.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if replay_arguments.is_diff(typed):
        typed[:2] = ["replay-diff"]
    options = _parser().parse_args(typed)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    try:
        code: int = options.command(options)
        return code
    except ConfigError as error:
        return _wrong_file(error, as_json=getattr(options, "json", False))
    except UsageError as error:
        return _say(str(error), 2)
    except (SourceError, VedetteError) as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vedette",
        description="Watches cameras on the spot, sends boxes instead of video, asks a large model when it pays.",
        epilog="Begin with: vedette demo. Then: vedette check site.yaml. `vedette COMMAND --help` shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"vedette {_version()}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-v", "--verbose", action="store_true", help="log more")
    common.add_argument("--log-json", action="store_true", help="log as JSON lines")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _check_parser(commands, common)
    _run_parser(commands, common)
    _replay_parser(commands, common)
    _scenario_parser(commands, common)
    tune = _add(commands, common, "tune", tune_arguments.TUNE)
    tune_arguments.add_tune(tune)
    tune.set_defaults(command=_tune)
    _cassette_parser(commands, common)
    calibrate = _add(commands, common, "calibrate", calibrate_arguments.CALIBRATE)
    calibrate_arguments.add_calibrate(calibrate)
    calibrate.set_defaults(command=_calibrate)
    _export_parser(commands, common)
    _demo_parser(commands, common)
    return parser


def _add(commands: _Commands, common: argparse.ArgumentParser, name: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        parents=[common],
        help=_SUMMARY[name],
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _check_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = _add(commands, common, "check", _CHECK)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the site file (YAML)")
    parser.add_argument("--no-probe", dest="probe", action="store_false", help="do not contact cameras or the broker")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    parser.set_defaults(command=_check)


def _run_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = _add(commands, common, "run", _RUN)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the site file (YAML)")
    parser.set_defaults(command=_run)


def _replay_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    replay = _add(commands, common, "replay", replay_arguments.REPLAY)
    replay_arguments.add_replay(replay)
    replay.set_defaults(command=_replay)
    # Reached by `vedette replay diff`, see main; without a summary it is not listed.
    diff = commands.add_parser(
        "replay-diff",
        prog="vedette replay diff",
        parents=[common],
        description=replay_arguments.DIFF,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay_arguments.add_diff(diff)
    diff.set_defaults(command=_replay_diff)


def _scenario_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    scenario = _add(commands, common, "scenario", scenario_arguments.SCENARIO)
    verbs = scenario.add_subparsers(metavar="VERB", required=True)
    for name, words, text, add, command in (
        (
            "run",
            "run scenario files, or all in a folder",
            scenario_arguments.RUN,
            scenario_arguments.add_run,
            _scenario_run,
        ),
        (
            "curve",
            "hold the router against choosing by motion, score or chance",
            curve_arguments.CURVE,
            curve_arguments.add_curve,
            _scenario_curve,
        ),
        ("keep", "keep a reviewed alert as a scenario", keep_arguments.KEEP, keep_arguments.add_keep, _scenario_keep),
        ("list", "list the kept ones", keep_arguments.LIST, keep_arguments.add_list, _scenario_list),
        ("delete", "delete a kept one", keep_arguments.DELETE, keep_arguments.add_delete, _scenario_delete),
    ):
        verb = verbs.add_parser(
            name,
            parents=[common],
            help=words,
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(verb)
        verb.set_defaults(command=command)


def _cassette_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    cassette = _add(commands, common, "cassette", cassette_arguments.CASSETTE)
    verbs = cassette.add_subparsers(metavar="VERB", required=True)
    for name, words, text, add, command in (
        (
            "from-store",
            "copy the verdicts this box really got",
            cassette_arguments.FROM_STORE,
            cassette_arguments.add_from_store,
            _cassette_from_store,
        ),
        ("check", "read one and say what is on it", cassette_arguments.CHECK, cassette_arguments.add_check, _cassette),
    ):
        form = argparse.RawDescriptionHelpFormatter
        verb = verbs.add_parser(name, parents=[common], help=words, description=text, formatter_class=form)
        add(verb)
        verb.set_defaults(command=command)


def _export_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = _add(commands, common, "export", export_arguments.EXPORT)
    export_arguments.add_export(parser)
    parser.set_defaults(command=_export)


def _demo_parser(commands: _Commands, common: argparse.ArgumentParser) -> None:
    parser = _add(commands, common, "demo", _DEMO)
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
    parser.set_defaults(command=_demo)


def _check(options: argparse.Namespace) -> int:
    from appliance.check import check

    return check(options.config, probe=options.probe, as_json=options.json)


def _run(options: argparse.Namespace) -> int:
    from appliance import config
    from appliance.app import run

    return run(config.load(options.config))


def _replay(options: argparse.Namespace) -> int:
    from appliance.replay.command import Wishes, replay_command
    from appliance.replay.programme import Asked
    from appliance.weather.weather import Weather

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return replay_command(
        Asked(tuple(options.clips), tuple(options.camera), options.t_from, options.t_to),
        options.config,
        Wishes(
            options.model,
            options.speed,
            options.log,
            options.resume,
            options.json,
            cassette_arguments.wishes(options),
            _stand_in,
            Weather.read(options.weather, options.seed),
        ),
    )


def _stand_in(wish: cassette_arguments.StandInWish, site: SiteConfig) -> Answers:
    from appliance.scenario.stand_in import stand_in

    return stand_in(wish, site)


def _cassette_from_store(options: argparse.Namespace) -> int:
    from appliance.replay.cassette_command import from_store_command

    return from_store_command(options.config, options.cassette, options.t_from, options.t_to, as_json=options.json)


def _cassette(options: argparse.Namespace) -> int:
    from appliance.replay.cassette_command import check_command

    return check_command(options.cassette, as_json=options.json)


def _replay_diff(options: argparse.Namespace) -> int:
    from appliance.replay.diff_command import diff_command

    return diff_command(options.before, options.after, as_json=options.json)


def _scenario_run(options: argparse.Namespace) -> int:
    from appliance.scenario.command import Reports, scenario_command
    from appliance.scenario.matrix import weathers
    from appliance.scenario.run import Models

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return scenario_command(
        options.paths,
        options.pattern,
        Models(options.model),
        Reports(junit=options.junit, html=options.html, as_json=options.json),
        weathers=weathers(options.weather, options.seed),
    )


def _scenario_curve(options: argparse.Namespace) -> int:
    from appliance.scenario.curve.command import Wishes, curve_command
    from appliance.scenario.run import Models

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = Wishes(seeds=options.seeds, stand_in_error=options.stand_in_error, html=options.html, as_json=options.json)
    return curve_command(options.paths, options.pattern, Models(options.model), wishes)


def _tune(options: argparse.Namespace) -> int:
    from appliance.scenario.tune.command import Wishes, tune_command

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = Wishes(sweeps=options.sweep, aim=options.aim, model=options.model, html=options.html, as_json=options.json)
    return tune_command(options.paths, options.pattern, wishes)


def _scenario_keep(options: argparse.Namespace) -> int:
    from appliance.keep.keeper import Wish
    from appliance.scenario.keep_command import keep_command

    wish = Wish(name=options.name, note=options.note, truth=options.truth, complete=options.complete)
    return keep_command(options.alert, options.config, wish, to=options.to, run=options.run, as_json=options.json)


def _scenario_list(options: argparse.Namespace) -> int:
    from appliance.scenario.keep_command import list_command

    return list_command(options.config, to=options.to, as_json=options.json)


def _scenario_delete(options: argparse.Namespace) -> int:
    from appliance.scenario.keep_command import delete_command

    return delete_command(options.name, options.config, to=options.to)


def _calibrate(options: argparse.Namespace) -> int:
    from appliance.escalate.calibrate_command import calibrate_command

    return calibrate_command(options.config, options.recall, options.out, as_json=options.json)


def _export(options: argparse.Namespace) -> int:
    from appliance.export.command import Asked, export_command

    asked = Asked(
        format=options.format,
        to=options.to,
        t_from=options.t_from,
        t_to=options.t_to,
        labels=options.labels,
        cameras=options.cameras,
        split=options.split,
        per_alert=options.per_alert,
        zip=options.zip,
        as_json=options.json,
    )
    return export_command(asked, options.config)


def _demo(options: argparse.Namespace) -> int:
    from appliance.demo.run import DemoOptions, demo

    return demo(
        DemoOptions(
            clip=options.clip,
            cameras=tuple(options.camera),
            port=options.port,
            data=options.data,
            open_browser=options.browser,
            seconds=options.seconds,
            model=options.model,
            json=options.json,
        )
    )


def _wrong_file(error: ConfigError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"ok": False, "file": error.source, "problems": error.problems}))
        return 2
    print(f"{error.source}: {len(error.problems)} problem{'s' if len(error.problems) != 1 else ''}", file=sys.stderr)
    for problem in error.problems:
        print(f"  {problem}", file=sys.stderr)
    return 2


def _say(sentence: str, code: int) -> int:
    print(f"vedette: {sentence}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return version("vedette")
    except PackageNotFoundError:
        return "unknown (not installed)"
