"""The `vedette-worker` command. Exit codes: 0 done, 1 something needed does not answer, 2 wrong use or file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.broker import Link, end_tasks
from appliance.clock import Clock, SystemClock
from appliance.errors import ConfigError, EngineError, UplinkError, UsageError, VedetteError
from appliance.telemetry import configure_logging
from cloud_worker import config, streams
from cloud_worker.engines.build import build
from cloud_worker.judge import Judge
from cloud_worker.worker import Worker

CHECK_S_MAX = 15.0

_RUN = """\
Pull questions from the broker, have them judged, publish the verdicts. Run as many of these as you like, on any
machines: each question goes to one of them, and to another when that one dies.

  vedette-worker run --config /etc/vedette/worker.yaml

An empty worker file is a valid one: it takes nats://127.0.0.1:4222 and looks again with a built-in detector.
SIGTERM or Ctrl-C: judgements under way are finished, everything else is given back.
"""
_CHECK = """\
Try everything that `run` would need: the file, the broker, the streams (made if absent), and one trial question to
the model with as many pictures as the file allows.

  vedette-worker check --config worker.yaml
  vedette-worker check --config worker.yaml --json | jq .problems

Exit code 0: ready to run. 1: the broker or the model does not answer as it should. 2: the file is wrong.
"""


@dataclass(frozen=True, slots=True)
class Findings:
    """What `check` found: sentences on what works, what differs, and what does not work."""

    good: list[str]
    differences: list[str]
    problems: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    try:
        settings = config.load(options.config)
        if options.command == "run":
            asyncio.run(_run(settings, SystemClock()))
            return 0
        return _report(asyncio.run(_check(settings, SystemClock())), as_json=options.json)
    except ConfigError as error:
        print(f"{error.source}:\n" + "\n".join(f"  {problem}" for problem in error.problems), file=sys.stderr)
        return 2
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vedette-worker",
        description="Answers the questions that Vedette's sites send to the cloud.",
        epilog="Begin with: vedette-worker check --config worker.yaml",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, required=True, metavar="FILE", help="the worker file (YAML)")
    common.add_argument("-v", "--verbose", action="store_true", help="log more")
    common.add_argument("--log-json", action="store_true", help="log as JSON lines")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    form = argparse.RawDescriptionHelpFormatter
    commands.add_parser("run", parents=[common], help="work", description=_RUN, formatter_class=form)
    check = commands.add_parser(
        "check", parents=[common], help="try what is needed", description=_CHECK, formatter_class=form
    )
    check.add_argument("--json", action="store_true", help="print a JSON object")
    return parser


async def _run(settings: config.WorkerConfig, clock: Clock) -> None:
    engine = build(settings.engine, clock)
    name = settings.worker.name or _own_name()
    worker = Worker(settings, Judge(engine, name, clock), Link(settings.nats, f"vedette-worker {name}", clock), clock)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        await worker.run()
    finally:
        await engine.close()


async def _check(settings: config.WorkerConfig, clock: Clock) -> Findings:
    findings = Findings([], [], [])
    await _check_broker(settings, clock, findings)
    engine = build(settings.engine, clock)
    try:
        findings.good.append(await engine.check())
    except EngineError as error:
        findings.problems.append(str(error))
    finally:
        await engine.close()
    return findings


async def _check_broker(settings: config.WorkerConfig, clock: Clock, findings: Findings) -> None:
    link = Link(settings.nats, "vedette-worker check", clock)
    keeper = asyncio.create_task(link.run_once())
    waiting = asyncio.create_task(link.client())
    try:
        await asyncio.wait({keeper, waiting}, timeout=CHECK_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            keeper.result()
        jetstream = waiting.result().jetstream()
        findings.differences.extend(await streams.ensure(jetstream, settings.streams, settings.worker.ack_wait_s))
        for each in await streams.backlog(jetstream):
            findings.good.append(f"{each.stream}: {each.messages} messages, {each.bytes} of {each.bytes_max} bytes")
    except UplinkError as error:
        findings.problems.append(str(error))
    except asyncio.InvalidStateError:
        findings.problems.append(f"the broker at {settings.nats} does not answer")
    finally:
        await end_tasks(keeper, waiting)


def _report(findings: Findings, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(asdict(findings), indent=2))
    else:
        for mark, sentences in (("ok", findings.good), ("differs", findings.differences), ("WRONG", findings.problems)):
            for sentence in sentences:
                print(f"{mark:>8}  {sentence}")
    return 1 if findings.problems else 0


def _own_name() -> str:
    return f"{socket.gethostname()[:40]}-{os.getpid()}"


if __name__ == "__main__":
    sys.exit(main())
