"""The list of planted faults that is kept in git: one JSON object a line, what was planted and what came of it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

LIST = Path(__file__).parent / "faults.jsonl"
State = Literal["killed", "survived", "equivalent"]
STATES: tuple[State, ...] = ("killed", "survived", "equivalent")


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes of a file from `start` to `end` replaced by `text`; line: of the first, from 1."""

    start: int
    end: int
    text: str
    operator: str
    line: int

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Lines of a file and what they are replaced by; joined by newlines, `after` may be empty.

    line: of the first one when it was drawn, from 1. killed_by: the first test that failed, "timeout", or "start" where
    nothing could be imported. reason: why no test can tell an equivalent one.
    """

    area: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    state: State = "survived"
    killed_by: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a fault, wherever its lines have moved to."""
        return self.file, self.before, self.after

    def planted(self, text: str) -> str | None:
        """Return the file's text with the fault in it; None if its lines are there no more."""
        lines, before = text.split("\n"), self.before.split("\n")
        found = [at for at in range(len(lines)) if lines[at : at + len(before)] == before]
        if not found:
            return None
        at = min(found, key=lambda each: abs(each + 1 - self.line))
        return "\n".join([*lines[:at], *([self.after] if self.after else []), *lines[at + len(before) :]])


def fault_of(area: str, file: str, operator: str, text: str, mutated: str) -> Fault | None:
    """Return the fault that makes `mutated` of a file's text; None if they are the same."""
    lines, others = text.split("\n"), mutated.split("\n")
    changes = [each for each in difflib.SequenceMatcher(None, lines, others, False).get_opcodes() if each[0] != "equal"]
    if not changes:
        return None
    (_, first, _, other_first, _), (_, _, last, _, other_last) = changes[0], changes[-1]
    before, after = "\n".join(lines[first:last]), "\n".join(others[other_first:other_last])
    made = Fault(area=area, file=file, line=first + 1, operator=operator, before=before, after=after)
    return made if made.before and made.planted(text) == mutated else None


def read(path: Path = LIST) -> list[Fault]:
    """Read the faults of the list. Raise ValueError or TypeError if a line is no fault."""
    if not path.exists():
        return []
    return [Fault(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def write(faults: Iterable[Fault], path: Path = LIST) -> None:
    """Write the list in the order of areas, files and lines."""
    ordered = sorted(faults, key=lambda each: (each.area, each.file, each.line, each.before, each.after))
    text = "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in ordered)
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def killed_share(faults: Sequence[Fault]) -> float:
    """Return the killed share of those that are not equivalent; 0 when there are none."""
    told = [each for each in faults if each.state != "equivalent"]
    return sum(each.state == "killed" for each in told) / len(told) if told else 0.0


def table(faults: Sequence[Fault]) -> str:
    """Write a Markdown table: a row for each area and one for all."""
    rows = ["| area | planted | killed | equivalent | survived | share |", "|---|---|---|---|---|---|"]
    for area in [*dict.fromkeys(each.area for each in faults), ""]:
        mine = [each for each in faults if area in (each.area, "")]
        counts = [sum(each.state == state for each in mine) for state in ("killed", "equivalent", "survived")]
        rows.append(f"| {area or 'all'} | {len(mine)} | {' | '.join(map(str, counts))} | {killed_share(mine):.0%} |")
    return "\n".join(rows)
