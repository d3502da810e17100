"""The `vedette-worker` command. Exit codes: 0 done, 1 something needed does not answer, 2 wrong use or file."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from appliance import program_version
from appliance.base.clock import SystemClock
from appliance.base.command_exit import CommandParser, named_path, report, run_to_end, whole_number_between
from appliance.base.errors import ConfigError, UsageError, VedetteError
from appliance.base.telemetry import configure_logging
from cloud_worker import commands, config
from cloud_worker.commands import Findings
from cloud_worker.dead_letter_store import LIST_MAX, DeadLetter

_RUN = """\
Pull escalations from the broker, have them judged, publish the verdicts. Run as many of these as you like, on any
machines: each escalation goes to one of them, and to another when that one dies.

  vedette-worker run --config /etc/vedette/worker.yaml

The least that a worker file says is what judges: `engine: {kind: openai, url: ..., model: ...}` for a vision-language
model, which can confirm, or `engine: {kind: redetect}` for a detector that looks again, which cannot.
SIGTERM or Ctrl-C: judgements under way are finished, everything else is given back. With status.port set it answers
/metrics, /healthz and /readyz.
"""
_CHECK = """\
Try everything that `run` would need: the file, the broker, the streams (made if absent), and one trial question to
the model with as many pictures as the file allows.

  vedette-worker check --config worker.yaml
  vedette-worker check --config worker.yaml --json | jq .problems

Exit code 0: ready to run. 1: the broker or the model does not answer as it should. 2: the file is wrong.
"""


_LETTERS = """\
Questions that could not be judged are kept with the reason: list shows the newest, show one of them whole, requeue
asks them again and takes them out (after the fault was mended).

  vedette-worker dead-letters list --config worker.yaml
  vedette-worker dead-letters show 17 --config worker.yaml
  vedette-worker dead-letters requeue 17 18 --config worker.yaml

A site that was told `unsure` when its escalation was put here keeps that answer.
"""


_ERASE = """\
Delete from the archive what an appliance could not reach when a span of a camera was erased: the keys in its receipt,
which the page Who looked offers as JSON.

  vedette-worker erase erasures.json --config worker.yaml

Exit code 0: all are gone. 1: the store refused one. 2: the file is no receipt, or there is no archive.
"""


_JUDGE = """\
Judge escalations that come as JSON lines on standard input, without a broker: what `vedette run` starts where
`escalation.local_judge` of the site file names a model server. The first line is the section `engine` of a worker file,
each further one an escalation with the paths of its evidence; each verdict is a line on standard output.

  vedette-worker judge < lines
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_to_end(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    as_json = getattr(options, "json", False)
    try:
        if options.command == "judge":
            asyncio.run(commands.judge_lines(sys.stdin.buffer, sys.stdout.buffer, SystemClock()))
            return 0
        settings = config.load(options.config)
        return _do(options, settings)
    except ConfigError as error:
        return report(error.problems, code=2, file=error.source, as_json=as_json)
    except VedetteError as error:
        code = 2 if isinstance(error, UsageError) else 1
        return report([str(error)], code=code, as_json=as_json, speaker="")


def _do(options: argparse.Namespace, settings: config.WorkerConfig) -> int:
    clock = SystemClock()
    if options.command == "run":
        asyncio.run(commands.run(settings, clock))
        return 0
    if options.command == "check":
        return _report(asyncio.run(commands.check(settings, clock)), as_json=options.json)
    if options.command == "erase":
        return _report(commands.erase_archived(settings, options.receipt), as_json=False)
    if options.letters == "list":
        _list(asyncio.run(commands.list_dead_letters(settings, clock, options.count)), as_json=options.json)
    elif options.letters == "show":
        print(_whole(asyncio.run(commands.show_dead_letter(settings, clock, options.number))))
    else:
        asyncio.run(commands.requeue_dead_letters(settings, clock, options.number, _say_requeued))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vedette-worker",
        description="Answers the escalations that Vedette's sites send to the cloud.",
        epilog="Begin with: vedette-worker check --config worker.yaml",
    )
    parser.add_argument("--version", action="version", version=program_version("vedette-worker"))
    logs = CommandParser(add_help=False)
    logs.add_argument("-v", "--verbose", action="store_true", help="log more")
    logs.add_argument("--log-json", action="store_true", help="log as JSON lines")
    common = CommandParser(add_help=False, parents=[logs])
    common.add_argument("--config", type=named_path, required=True, metavar="FILE", help="the worker file (YAML)")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    form = argparse.RawDescriptionHelpFormatter
    commands.add_parser(
        "run", parents=[common], help="answer escalations until it is stopped", description=_RUN, formatter_class=form
    )
    check = commands.add_parser(
        "check", parents=[common], help="try file, broker and model", description=_CHECK, formatter_class=form
    )
    check.add_argument("--json", action="store_true", help="print a JSON object")
    commands.add_parser(
        "judge", parents=[logs], help="answer questions on standard input", description=_JUDGE, formatter_class=form
    )
    erase = commands.add_parser(
        "erase", parents=[common], help="delete archived copies", description=_ERASE, formatter_class=form
    )
    erase.add_argument("receipt", type=named_path, metavar="RECEIPT", help="the receipts of an appliance (JSON)")
    letters = commands.add_parser(
        "dead-letters", help="escalations that could not be judged", description=_LETTERS, formatter_class=form
    ).add_subparsers(metavar="WHAT", dest="letters", required=True)
    listing = letters.add_parser("list", parents=[common], help="the newest first", description="The newest first.")
    listing.add_argument(
        "--count",
        type=whole_number_between(1, LIST_MAX, "count"),
        default=50,
        metavar="N",
        help=f"at most so many, to {LIST_MAX} (50)",
    )
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    show = letters.add_parser("show", parents=[common], help="one of them whole", description="One of them, whole.")
    show.add_argument("number", type=whole_number_between(1, 2**63 - 1, "number"), metavar="NUMBER")
    requeue = letters.add_parser("requeue", parents=[common], help="ask again", description="Ask them again.")
    requeue.add_argument("number", type=whole_number_between(1, 2**63 - 1, "number"), nargs="+", metavar="NUMBER")
    return parser


def _say_requeued(letter: DeadLetter) -> None:
    print(f"{letter.seq}: asked again on {letter.subject}")


def _report(findings: Findings, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(asdict(findings), indent=2))
    else:
        for mark, sentences in (("ok", findings.good), ("differs", findings.differences), ("WRONG", findings.problems)):
            for sentence in sentences:
                print(f"{mark:>8}  {sentence}")
    return 1 if findings.problems else 0


def _list(letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_row(letter) for letter in letters], indent=2))
        return
    for letter in letters:
        print(f"{letter.seq:>8}  {letter.stored[:19]}  {letter.kind:<11}  {letter.subject}  {letter.reason[:100]}")
    if not letters:
        print("no dead letters")


def _whole(letter: DeadLetter) -> str:
    lines = [f"{name:>11}: {value}" for name, value in _row(letter).items()]
    return "\n".join([*lines, "", letter.data.decode(errors="replace")])


def _row(letter: DeadLetter) -> dict[str, object]:
    row = asdict(letter)
    del row["data"]
    return {"number": row.pop("seq"), **row, "bytes": len(letter.data)}


if __name__ == "__main__":
    sys.exit(main())
