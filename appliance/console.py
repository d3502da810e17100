"""The console that commands print their tables to: as wide as the terminal, and in a pipe as wide as the text."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 10_000  # columns: what reads a pipe wants whole names, one row a line


def text_console(*, soft_wrap: bool = False) -> Console:
    """A console on standard output. soft_wrap: long lines are left to the terminal."""
    console = Console(highlight=False, soft_wrap=soft_wrap)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=soft_wrap, width=PIPE_WIDTH)
