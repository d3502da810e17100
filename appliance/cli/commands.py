"""Each command of `vedette`: the options it was given, handed to the room that does the work.

Rooms are imported when their command runs, so that `vedette --help` does not wait for a video library.
"""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from appliance.lab import lab_arguments

if TYPE_CHECKING:
    from appliance.config import SiteConfig
    from appliance.lab.cassette.verdict_source import VerdictSource


def check_site(options: argparse.Namespace) -> int:
    from appliance.site_check import check

    return check(options.config, probe=options.probe, as_json=options.json)


def run_site(options: argparse.Namespace) -> int:
    from appliance import config
    from appliance.app import run

    return run(config.load(options.config))


def replay(options: argparse.Namespace) -> int:
    from appliance.lab.conditions.condition_spec import ConditionSet
    from appliance.lab.replay.replay_command import ReplayCommandOptions, ReplaySelection, replay_command

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return replay_command(
        ReplaySelection(tuple(options.clips), tuple(options.camera), options.t_from, options.t_to),
        options.config,
        ReplayCommandOptions(
            options.model,
            options.speed,
            options.log,
            options.resume,
            options.json,
            lab_arguments.verdict_options(options),
            _stand_in,
            ConditionSet.parse(options.weather, options.seed),
        ),
    )


def _stand_in(wish: lab_arguments.OracleOptions, site: SiteConfig) -> VerdictSource:
    from appliance.lab.scenario.scenario_verdicts import oracle_for_replay

    return oracle_for_replay(wish, site)


def cassette_from_store(options: argparse.Namespace) -> int:
    from appliance.lab.cassette.cassette_command import from_store_command

    return from_store_command(options.config, options.cassette, options.t_from, options.t_to, as_json=options.json)


def cassette_check(options: argparse.Namespace) -> int:
    from appliance.lab.cassette.cassette_command import check_command

    return check_command(options.cassette, as_json=options.json)


def replay_diff(options: argparse.Namespace) -> int:
    from appliance.lab.replay.replay_diff_command import diff_command

    return diff_command(options.before, options.after, as_json=options.json)


def scenario_run(options: argparse.Namespace) -> int:
    from appliance.lab.scenario.scenario_command import ReportTargets, scenario_command
    from appliance.lab.scenario.scenario_loader import read_condition_sets
    from appliance.lab.scenario.scenario_runner import DetectorCache

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return scenario_command(
        options.paths,
        options.pattern,
        DetectorCache(options.model),
        ReportTargets(junit=options.junit, html=options.html, as_json=options.json),
        condition_sets=read_condition_sets(options.weather, options.seed),
    )


def scenario_curve(options: argparse.Namespace) -> int:
    from appliance.lab.curve.curve_command import CurveOptions, curve_command
    from appliance.lab.scenario.scenario_runner import DetectorCache

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = CurveOptions(
        seeds=options.seeds, stand_in_error=options.stand_in_error, html=options.html, as_json=options.json
    )
    return curve_command(options.paths, options.pattern, DetectorCache(options.model), wishes)


def tune(options: argparse.Namespace) -> int:
    from appliance.lab.tune.tune_command import TuneOptions, tune_command

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = TuneOptions(
        sweeps=options.sweep, aim=options.aim, model=options.model, html=options.html, as_json=options.json
    )
    return tune_command(options.paths, options.pattern, wishes)


def scenario_keep(options: argparse.Namespace) -> int:
    from appliance.keep.scenario_exporter import KeepOptions
    from appliance.lab.keep.keep_command import keep_command

    wish = KeepOptions(name=options.name, note=options.note, truth=options.truth, complete=options.complete)
    return keep_command(options.alert, options.config, wish, to=options.to, run=options.run, as_json=options.json)


def scenario_list(options: argparse.Namespace) -> int:
    from appliance.lab.keep.keep_command import list_command

    return list_command(options.config, to=options.to, as_json=options.json)


def scenario_delete(options: argparse.Namespace) -> int:
    from appliance.lab.keep.keep_command import delete_command

    return delete_command(options.name, options.config, to=options.to)


def calibrate(options: argparse.Namespace) -> int:
    from appliance.router.calibrate_command import calibrate_command

    return calibrate_command(options.config, options.recall, options.out, as_json=options.json)


def export_alerts(options: argparse.Namespace) -> int:
    from appliance.lab.export.export_command import ExportOptions, export_command

    asked = ExportOptions(
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


def egress(options: argparse.Namespace) -> int:
    from appliance.egress_audit import AuditFilter, egress_command

    asked = AuditFilter(t_from=options.t_from, t_to=options.t_to, camera=options.camera, pictures=options.pictures)
    return egress_command(options.config, asked, as_json=options.json)


def notify_test(options: argparse.Namespace) -> int:
    from appliance.notify.target_check import test_command

    return test_command(options.config, options.target, as_json=options.json)


def run_demo(options: argparse.Namespace) -> int:
    from appliance.demo.demo_run import DemoOptions, demo

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
