"""Python sources, each parsed once in a process: to parse all of them takes some four seconds.

The files whose tests read them run in one process (tests/support/browser_beside.py).
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
