"""A site in a process of its own: asks questions, waits until all are settled, and says what it counted.

python -m tests.servers.site_process FOLDER URL COUNT [KEY=VALUE of `uplink` ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.servers.site import evidence_image, site
from tests.support.waiting import until


def main() -> None:
    folder, url, count, *limits = sys.argv[1:]
    settings = dict(each.split("=", 1) for each in limits)
    with site(Path(folder), url, **settings) as here:
        numbers = range(int(count))
        for n in numbers:
            here.ask(n, (evidence_image(n, (160, 120), noise=True), evidence_image(n + 10**6, (160, 120), noise=True)))
        until(lambda: here.settled(*numbers), 100)
        print("settled", flush=True)
        sys.stdin.readline()  # until told that the link was cut and mended, say
        for n in range(int(count), int(count) + 3):
            here.ask(n)
        until(lambda: here.settled(*range(int(count), int(count) + 3)), 100)
        here.cut()  # the last of the connection is counted then
        amounts: dict[str, int] = {}
        for each in here.meter.totals("all"):
            amounts[each.kind] = amounts.get(each.kind, 0) + each.amount
        print(json.dumps(amounts), flush=True)


if __name__ == "__main__":
    main()
