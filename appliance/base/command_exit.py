"""Ends the commands `vedette` and `vedette-worker`: reports wrong use and faults, and sets the exit code."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import getpass
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from appliance.base.errors import UsageError

CLOSED_PIPE = 141  # as a shell calls the end by SIGPIPE
INTERRUPTED = 130  # ... and by SIGINT
_DIGITS = 20  # no number that is asked for is so long


def named_path(text: str) -> Path:
    """Return the path of an option that is a file or a folder. Refuse '': Path would make the present folder of it."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("the name is empty (a variable that is not set?)")
    return Path(text)


def typed_secret(prompt: str, *, twice: bool = True) -> str:
    """Return a password from a prompt at a terminal; else from the first line of standard input.

    It is never an argument, since others can see those. Raise UsageError: the second time it was another.
    """
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(prompt)
    if twice and getpass.getpass("Once more: ") != first:
        raise UsageError("the two are not the same: nothing was changed")
    return first


def whole_number_between(low: int, high: int, what: str) -> Callable[[str], int]:
    """Return the `type` of an option that is a whole number from `low` (not negative) to `high`, in plain digits.

    what: its name in the error.
    """

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS else -1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"`{text}` is no {what}: write a whole number from {low} to {high}")
        return value

    return read


class CommandParser(argparse.ArgumentParser):
    """Says wrong use with the usage of the command and the nearest right word.

    Where --json was asked for, it says it as a JSON object on standard output, too.
    """

    _as_json = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = sys.argv[1:] if args is None else args
        self._as_json = "--json" in words
        found, unknown = super().parse_known_args(words, namespace)
        if unknown and self._subparsers is None:  # argparse would name them with the usage of the whole program
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        near = difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1)
        if near and near[0] != str(value):
            raise argparse.ArgumentError(action, f"invalid choice: '{value}'; did you mean `{near[0]}`?")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        if self._as_json:
            print(json.dumps({"ok": False, "problems": [f"{self.prog}: {message}"]}))
        super().error(message)


def run_to_end(run: Callable[[], int]) -> int:
    """Run a command and return its exit code, with what it printed on its way.

    Ctrl-C and a reader that closes early (`| head`) end it quietly; a full disk behind `>` is a fault. Characters that
    the terminal cannot show are escaped.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return CLOSED_PIPE
    except OSError as error:
        _drop_output()
        return report([f"the output cannot be written: {os_error_text(error)}"], code=1)
    except KeyboardInterrupt:
        return INTERRUPTED


def report(
    problems: Sequence[str], *, code: int, file: str = "", as_json: bool = False, speaker: str = "vedette: "
) -> int:
    """Say what is wrong on standard error, and return `code`; as_json: as one JSON object on standard output, too.

    file: the one that the problems are of; '': they say so themselves.
    """
    if as_json:
        named = {"file": file} if file else {}
        print(json.dumps({"ok": False, **named, "problems": list(problems)}))
    if file:
        print(f"{file}: {len(problems)} problem{'s' if len(problems) != 1 else ''}", file=sys.stderr)
    for problem in problems:
        print(f"  {problem}" if file else f"{speaker}{problem}", file=sys.stderr)
    return code


def os_error_text(error: OSError) -> str:
    """Return the file and the system's reason, without numbers and quotes."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


def _open_closed_streams() -> None:
    """Open the null device in place of a standard stream that was closed (`>&-`), which Python calls None.

    Else the next file that is opened, such as the database, gets its number, and a library that prints would write
    into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 - it stays open as long as the process lives
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _drop_output() -> None:
    """Drop what would still be printed, also when Python ends and would complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
