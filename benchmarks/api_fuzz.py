"""Requests made up from the OpenAPI against a served dashboard: `python -m benchmarks.api_fuzz [--examples 150]`.

Serves a site with footage, alerts, faults and a site file, and lets schemathesis (the extra `fuzz`) ask every
operation with valid and invalid data. Found are answers of 500 and more, and whatever the OpenAPI does not say: status
codes, content types, bodies, headers, methods, and data that should have been refused. Exit code 1: something was; 3:
nothing was, but the tool itself failed at some operations, which are not measured.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

from appliance.types.accounts import Role
from tests.support.dashboard_site import config_of, furnished

TOKEN = "correct horse battery staple"
PEOPLE: dict[str, tuple[Role, None]] = {"anna": ("admin", None), "rita": ("reviewer", None)}
NOT_MEASURED = 3  # exit code, beside those of schemathesis: 0 to 2
ENDLESS = ("/api/v1/stream", "/api/v1/live")  # answer as long as one listens: tests of their own
LEAVES_THE_BOX = tuple(f"/api/v1/setup/{each}" for each in ("probe", "onvif", "discover"))  # each address made up


def served(folder: Path, *, people: bool = False) -> AbstractContextManager[str]:
    """Serve a dashboard with something behind each route, and yield its address. `people`: it has users, too."""
    return furnished(folder, PEOPLE if people else {}, config=config_of(token=TOKEN))


def fuzz(url: str, folder: Path, examples: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis in `folder` with `examples` an operation."""
    excluded = [word for path in (*ENDLESS, *LEAVES_THE_BOX) for word in ("--exclude-path", path)]
    program = Path(sys.executable).with_name("st")
    asked = urllib.request.Request(f"{url}/api/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked, timeout=120) as answer:  # schemathesis itself waits ten seconds for it
        (folder / "openapi.json").write_bytes(answer.read())
    return subprocess.run(
        [
            str(program), "--config-file", str(Path(__file__).with_name("api_fuzz.toml")),
            "run", "openapi.json", "--url", url, "--header", f"Authorization: Bearer {TOKEN}",
            "--request-timeout", "60", "--workers", "1",  # hypothesis fails by itself when threads share it
            "--max-examples", str(examples), "--continue-on-failure", "--no-color", "--no-shrink",
            "--warnings", "off", *excluded, *more,
            "--exclude-checks", "ignored_auth",  # after some wrong tokens each try is a 429, as it should be
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def cases_of(report: str) -> int:
    """Return how many requests schemathesis says that it made."""
    found = re.search(r"([\d,]+) generated", report)
    return int(found.group(1).replace(",", "")) if found else 0


def failed_by_itself(report: str) -> int:
    """Return at how many operations the tool failed by itself; 0: also where it found anything.

    A time-out or a cut connection counts among its errors, too, but is the dashboard's: that is a finding.
    """
    last = re.search(r"=+ (?:(\d+) failures?)?(?:, )?(?:(\d+) errors?)?.* in [\d.]+s =+\s*$", report)
    if last is None or last[1] or not last[2] or "Network Error" in report:
        return 0
    return int(last[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=150, help="for each operation and phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("more", nargs="*", help="for schemathesis, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
        began = time.monotonic()
        done = fuzz(url, Path(folder), given.examples, "--seed", str(given.seed), *given.more)
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
    print(f"{cases_of(done.stdout)} cases in {time.monotonic() - began:.0f} s, exit {done.returncode}")
    if failed := failed_by_itself(done.stdout):
        print(f"not measured: schemathesis itself failed {failed} times (ERRORS, above); nothing was found elsewhere")
        return NOT_MEASURED
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
