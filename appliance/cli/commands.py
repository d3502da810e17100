"""Each command of `vedette`: the options it was given, handed to the room that does the work.

Rooms are imported when their command runs, so that `vedette --help` does not wait for a video library.
"""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from appliance.replay import cassette_arguments

if TYPE_CHECKING:
    from appliance.config import SiteConfig
    from appliance.replay.answers import Answers


def check_site(options: argparse.Namespace) -> int:
    from appliance.check import check

    return check(options.config, probe=options.probe, as_json=options.json)


def run_site(options: argparse.Namespace) -> int:
    from appliance import config
    from appliance.app import run

    return run(config.load(options.config))


def replay(options: argparse.Namespace) -> int:
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


def cassette_from_store(options: argparse.Namespace) -> int:
    from appliance.replay.cassette_command import from_store_command

    return from_store_command(options.config, options.cassette, options.t_from, options.t_to, as_json=options.json)


def cassette_check(options: argparse.Namespace) -> int:
    from appliance.replay.cassette_command import check_command

    return check_command(options.cassette, as_json=options.json)


def replay_diff(options: argparse.Namespace) -> int:
    from appliance.replay.diff_command import diff_command

    return diff_command(options.before, options.after, as_json=options.json)


def scenario_run(options: argparse.Namespace) -> int:
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


def scenario_curve(options: argparse.Namespace) -> int:
    from appliance.scenario.curve.command import Wishes, curve_command
    from appliance.scenario.run import Models

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = Wishes(seeds=options.seeds, stand_in_error=options.stand_in_error, html=options.html, as_json=options.json)
    return curve_command(options.paths, options.pattern, Models(options.model), wishes)


def tune(options: argparse.Namespace) -> int:
    from appliance.scenario.tune.command import Wishes, tune_command

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wishes = Wishes(sweeps=options.sweep, aim=options.aim, model=options.model, html=options.html, as_json=options.json)
    return tune_command(options.paths, options.pattern, wishes)


def scenario_keep(options: argparse.Namespace) -> int:
    from appliance.keep.keeper import Wish
    from appliance.scenario.keep_command import keep_command

    wish = Wish(name=options.name, note=options.note, truth=options.truth, complete=options.complete)
    return keep_command(options.alert, options.config, wish, to=options.to, run=options.run, as_json=options.json)


def scenario_list(options: argparse.Namespace) -> int:
    from appliance.scenario.keep_command import list_command

    return list_command(options.config, to=options.to, as_json=options.json)


def scenario_delete(options: argparse.Namespace) -> int:
    from appliance.scenario.keep_command import delete_command

    return delete_command(options.name, options.config, to=options.to)


def calibrate(options: argparse.Namespace) -> int:
    from appliance.escalate.calibrate_command import calibrate_command

    return calibrate_command(options.config, options.recall, options.out, as_json=options.json)


def export_alerts(options: argparse.Namespace) -> int:
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


def egress(options: argparse.Namespace) -> int:
    from appliance.egress.command import Asked, egress_command

    asked = Asked(t_from=options.t_from, t_to=options.t_to, camera=options.camera, pictures=options.pictures)
    return egress_command(options.config, asked, as_json=options.json)


def notify_test(options: argparse.Namespace) -> int:
    from appliance.alerts.notify.command import test_command

    return test_command(options.config, options.target, as_json=options.json)


def run_demo(options: argparse.Namespace) -> int:
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
