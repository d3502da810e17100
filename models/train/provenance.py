"""Lists all pictures that a network has learnt from.

The command is python -m models.train.provenance --index SET --out NAME.csv.gz. The list lies beside the network. The
pictures cannot be shipped, but everyone who has them can tell by the hashes whether they were used, and a test tells
that no evaluation picture was.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from appliance.base.errors import UsageError
from models.train import dataset

COLUMNS = ("source", "split", "licence", "sha256", "phash")


Row = tuple[str, str, str, str, str]


def rows_of(entries: Iterable[dataset.Entry]) -> Iterator[Row]:
    """Yield the row of each picture of a set."""
    for each in entries:
        yield each.source, each.split, each.licence, each.sha256, each.phash


def write(rows: Iterable[Row], path: Path) -> int:
    """Write one row a picture, `train` where any list says so, and return how many.

    Equal pictures make equal bytes.
    """
    once: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row[1], row)):  # `train` comes before `val`
        once.setdefault(row[3], row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted(once.values()))
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    return len(once)


def read(path: Path) -> Iterator[dict[str, str]]:
    """Yield one row a picture, by COLUMNS."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _row(each: Mapping[str, str]) -> Row:
    return each["source"], each["split"], each["licence"], each["sha256"], each["phash"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.provenance", description=__doc__)
    parser.add_argument(
        "--index", type=Path, action="append", required=True, help="an assembled set that it was trained on; repeatable"
    )
    parser.add_argument("--also", type=Path, action="append", default=[], help="the list of the network it began from")
    parser.add_argument("--out", type=Path, required=True, help="the .csv.gz to write")
    options = parser.parse_args(arguments)
    try:
        rows = [row for folder in options.index for row in rows_of(dataset.read(folder))]
        rows += [_row(each) for path in options.also for each in read(path)]
    except (UsageError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.out}: {write(rows, options.out)} pictures")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
