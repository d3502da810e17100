"""Prints the tables and the progress of commands: as wide as the terminal, and in full width into a pipe."""

from __future__ import annotations

import sys
import threading

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

PIPE_WIDTH = 10_000  # columns: what reads a pipe wants whole names, one row a line
COUNTED = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
DOWNLOADED = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
"""Columns of a `CommandProgress`."""
LINE_EVERY_S = 10.0  # a CI sees that it goes on, and its log stays short


def text_console(*, soft_wrap: bool = False) -> Console:
    """Return a console on standard output. soft_wrap: long lines are left to the terminal."""
    console = Console(highlight=False, soft_wrap=soft_wrap)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=soft_wrap, width=PIPE_WIDTH)


class CommandProgress(Progress):
    """A bar on standard error; where that is no terminal, as in the log of a CI, a line every LINE_EVERY_S instead.

    Owner: one command, which enters it. Its thread (`progress lines`) only reads the tasks.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool = False) -> None:
        console = Console(stderr=True)
        super().__init__(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._lines = not (quiet or console.is_terminal)
        self._over = threading.Event()

    def start(self) -> None:
        super().start()
        if self._lines:
            threading.Thread(target=self._say_lines, name="progress lines", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        super().stop()

    def _say_lines(self) -> None:
        while not self._over.wait(LINE_EVERY_S):
            for task in self.tasks:
                share = f": {task.percentage:.0f} %" if task.total else ""
                print(f"vedette: {Text.from_markup(task.description)}{share}", file=sys.stderr, flush=True)
