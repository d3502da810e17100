"""What a network has learnt from, picture by picture: python -m models.train.provenance --index SET --out NAME.csv.gz

The list lies beside the network. The pictures cannot be shipped, but whoever has them can tell by the hashes whether
they were used, and a test tells that no evaluation picture was.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from appliance.errors import UsageError
from models.train import index

COLUMNS = ("source", "split", "licence", "sha256", "phash")


def write(entries: Sequence[index.Entry], path: Path) -> None:
    """Equal entries make equal bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted((each.source, each.split, each.licence, each.sha256, each.phash) for each in entries))
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read(path: Path) -> Iterator[dict[str, str]]:
    """One row a picture, by COLUMNS."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.provenance", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the assembled set that the network was trained on")
    parser.add_argument("--out", type=Path, required=True, help="the .csv.gz to write")
    options = parser.parse_args(arguments)
    try:
        entries = index.read(options.index)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    write(entries, options.out)
    print(f"{options.out}: {len(entries)} pictures")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
