"""Tries the gate of candidate networks with 50 that are broken and 50 as good as equal: `python -m benchmarks.canary`.

Each candidate is tried on the same footage as in `tests/unit/test_canary.py`, and its outcome is a line of the file of
`--out` as soon as it is known. A run that was cut goes on after the last line; one whose lines are all there prints the
table. Exit code: 0 all bars are held, 1 one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.candidate_networks import Candidate, bad_candidates, equal_candidates
from tests.support.candidate_trials import SurveyChild, tried

EQUAL_STOPPED_MAX = 0.04  # share
Row = Mapping[str, Any]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canary", description=__doc__)
    parser.add_argument("--candidates", type=int, default=50, help="of each sort (50)")
    parser.add_argument("--out", type=Path, default=Path("canary.jsonl"), help="a line a candidate (canary.jsonl)")
    parser.add_argument("--only", choices=("broken", "equal"), help="one sort alone; both may write to one file")
    given = parser.parse_args(words)
    makers = {"broken": bad_candidates, "equal": equal_candidates}
    candidates = [each for sort in makers if given.only in (None, sort) for each in makers[sort](given.candidates)]
    done = _read(given.out)
    with tempfile.TemporaryDirectory() as folder, given.out.open("a", encoding="utf-8") as out:
        child = SurveyChild(Path(folder))
        for number, candidate in enumerate(candidates, 1):
            if candidate.name not in done:
                done[candidate.name] = _line_of(candidate, Path(folder), child)
                print(json.dumps(done[candidate.name]), file=out, flush=True)
                print(f"{number}/{len(candidates)} {json.dumps(done[candidate.name])}", file=sys.stderr, flush=True)
    rows = [done[each.name] for each in candidates]
    print("\n".join(_table(rows)))
    broken = [row for row in rows if row["kind"] != "equal"]
    equal = [row for row in rows if row["kind"] == "equal"]
    return int(
        not all(_is_stopped(row) for row in broken)
        or sum(_is_stopped(row) for row in equal) > EQUAL_STOPPED_MAX * len(equal)
    )


def _read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text("utf-8").splitlines())}


def _line_of(candidate: Candidate, folder: Path, child: SurveyChild) -> Row:
    began = time.monotonic()
    found = tried(candidate, folder, child)
    return {
        "kind": candidate.kind, "name": candidate.name, "outcome": found.outcome, "reasons": list(found.reasons),
        "objects": found.objects, "lost": found.lost, "gained": found.gained, "cpu_ratio": found.cpu_ratio,
        "kept": found.kept, "seconds": round(time.monotonic() - began, 1), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _is_stopped(row: Row) -> bool:
    return bool(row["outcome"] == "worse")


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| kind | tried | stopped | not enough | better |\n|---|---|---|---|---|"
    for kind in dict.fromkeys(row["kind"] for row in rows):
        outcomes = [row["outcome"] for row in rows if row["kind"] == kind]
        counts = (outcomes.count(outcome) for outcome in ("worse", "not enough", "better"))
        yield f"| {kind} | {len(outcomes)} | {' | '.join(map(str, counts))} |"
    for row in rows:
        if _is_stopped(row) is (row["kind"] == "equal"):
            yield f"not as it should be: {json.dumps(row)}"


if __name__ == "__main__":
    sys.exit(main())
