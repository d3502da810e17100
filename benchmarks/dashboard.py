"""The dashboard's bars, measured here: `python -m benchmarks.dashboard [--only weight,mosaic] [--json]`.

Each row has the bar, what this machine measured, and whether that meets it. Rows that a test decides run that test and
say `passed` or `failed`; what this machine cannot measure says why. Take the load average into account: it is printed.

keys: keys of the site file that no form has, beside those that stay in it on purpose. start: from `vedette run` in an
empty folder to the first true alert on the screen, in Chromium: clicks and waiting. faults: 20 kinds of faults on an
open first page, and real ones that a person ends. firefox: what is tried in it. windows: 12 windows live in one
browser. behind: live video's age on the screen. h265: its first picture where the browser cannot play it. viewer: CPU
of a viewer. weight: the heaviest page and the latest first paint at 50 kB/s and 400 ms. axe: findings. mosaic: an
export's pixels outside the object's box, and its speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from playwright import sync_api as playwright

from benchmarks.dashboard_load import chromium
from tests.support.dashboard_site import PASSWORD, furnished

ROOT = Path(__file__).parents[1]
PAGES = (
    "/", "/live", "/timeline", "/cameras", "/cameras/gate", "/cameras/gate/edit", "/cameras/gate/settings",
    "/alerts/open-gate", "/savings", "/scenarios", "/storage", "/models", "/settings", "/access", "/system",
)  # fmt: skip
SLOW_BYTES_S, SLOW_MS = 50_000, 400  # "slow 3G" of the browsers' tools
WEIGHT_MAX, PAINT_MAX_S = 100_000, 3.0
FIRST_S = 2.0
LIMIT_S = 1200  # of one measurement on a busy machine
SLOW = ("-n", "0", "-q", "-s", "-m", "slow or not slow", "-o", f"timeout={LIMIT_S}")  # of pytest


@dataclass(frozen=True, slots=True)
class Row:
    """A bar and what was measured. met None: not measured here, and `value` says why."""

    what: str
    bar: str
    value: str
    met: bool | None


def output(*command: str) -> tuple[int, str]:
    """Run a Python module; return its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def decided_by(what: str, bar: str, node: str, shown: str = "") -> Row:
    """Return the row that a test decides. shown: a pattern of what it prints, instead of `passed`."""
    status, text = output("pytest", *SLOW, node)
    if "no tests ran" in text or " skipped" in text.splitlines()[-1]:
        return Row(what, bar, "not measured: the test is skipped here", None)
    found = re.search(shown, text) if shown else None
    return Row(what, bar, found[0] if found else "failed" if status else "passed", status == 0)


def keys() -> Iterator[Row]:
    node = "tests/unit/test_settings_forms.py::test_every_key_of_the_example_has_a_form_but_for_twelve"
    yield decided_by("keys that only the file offers, beside 12", "0", node)


def start() -> Iterator[Row]:
    node = "tests/browser/test_first_run.py::test_the_five_minute_path"
    status, text = output("pytest", *SLOW, node)
    found = re.search(r"first true alert: (\d+) clicks, (\d+) s", text)
    if status or found is None:
        yield Row("empty folder to the first true alert", "9 clicks, 60 s", "failed", False)
        return
    clicks, seconds = int(found[1]), int(found[2])
    yield Row("empty folder to the first true alert: clicks", "9", str(clicks), clicks <= 9)
    yield Row("empty folder to the first true alert: waiting", "60 s", f"{seconds} s", seconds <= 60)


def faults() -> Iterator[Row]:
    node = "tests/browser/test_faults_told.py"
    row = decided_by(
        "faults told on the first page", "20 in 10 s", node, r"(\d+) of \d+ faults told.*?(\d+) buttons[^\n]*"
    )
    yield dataclasses.replace(row, value=row.value.partition(";")[0])
    helped = re.search(r"(\d+) buttons", row.value)
    what = "their buttons do the act, or lead to the field or the part of a page that helps"
    yield Row(what, "20", helped[1] if helped else row.value, helped is not None and int(helped[1]) >= 20)
    status, text = output("pytest", *SLOW, "tests/browser/test_faults_end.py")
    ended = [
        kind for line in re.findall(r"real faults ended: ([^\n]*)", text) for kind in re.findall(r"[a-z]+ \d+ s", line)
    ]
    what = "real faults, of those 20 and `fallback`, that a person ends where the button leads"
    yield Row(what, "20", f"{len(ended)} ({', '.join(ended)})", status == 0 and len(ended) >= 20)


def firefox() -> Iterator[Row]:
    node = "tests/browser/test_second_engine.py"
    yield decided_by(
        "Firefox: every page opens, live video or stills, a clip, the timeline", "all", node, r"\d+ passed"
    )


def windows() -> Iterator[Row]:
    yield decided_by("windows live in one browser", "12", "tests/browser/test_windows.py")


def behind() -> Iterator[Row]:
    node = "tests/browser/test_live_page.py::test_a_camera_plays_close_to_now_with_its_boxes"
    yield decided_by("live video behind the camera", "1.5 s", node, r"[\d.]+ to [\d.]+ s behind")


def h265() -> Iterator[Row]:
    live, timeline = "tests/browser/test_live_page.py", "tests/browser/test_timeline_page.py"
    for where, node in (
        ("on a camera's page", f"{live}::test_h265_is_converted_where_the_browser_cannot_play_it"),
        ("on the wall", f"{live}::test_the_wall_shows_h265_soon_too"),
        ("on the timeline", f"{timeline}::test_the_first_picture_of_h265_comes_soon"),
    ):
        row = decided_by(f"H.265 without a decoder for it: first picture {where}", "2 s", node, r"picture.*? [\d.]+ s")
        seconds = re.search(r"([\d.]+) s", row.value)
        yield row if seconds is None else dataclasses.replace(row, value=seconds[0], met=float(seconds[1]) <= FIRST_S)


def viewer() -> Iterator[Row]:
    _, text = output("benchmarks.live_view", "--viewers", "0", "12", "--seconds", "10")
    found = re.search(r"([\d.]+) % a viewer", text)
    value = float(found[1]) if found else float("inf")
    yield Row("CPU of a live viewer, core and media, of a core", "2.2 %", f"{value:.2f} %", value <= 2.2)


def weight() -> Iterator[Row]:
    """Measure every page on a slow line with an empty cache."""
    with (
        tempfile.TemporaryDirectory() as folder,
        furnished(Path(folder) / "site", {"anna": ("admin", None)}) as url,
        playwright.sync_playwright() as driver,
    ):
        browser = chromium(driver)
        found = {path: _opened(browser, url, path) for path in PAGES}
    heaviest, latest = max(found, key=lambda path: found[path][0]), max(found, key=lambda path: found[path][1])
    size, paint = found[heaviest][0], found[latest][1]
    yield Row("heaviest page", f"{WEIGHT_MAX // 1000} kB", f"{size / 1000:.0f} kB ({heaviest})", size <= WEIGHT_MAX)
    yield Row("latest first paint on slow 3G", f"{PAINT_MAX_S} s", f"{paint:.1f} s ({latest})", paint <= PAINT_MAX_S)


def _opened(browser: playwright.Browser, url: str, path: str) -> tuple[int, float]:
    """Return the bytes of a page without its pictures and video, and the seconds to its first paint."""
    context = browser.new_context()
    context.request.post(f"{url}/login", data={"name": "anna", "password": PASSWORD}, headers={"Origin": url})
    page = context.new_page()
    line = context.new_cdp_session(page)
    line.send("Network.enable")
    limits = {"latency": SLOW_MS, "downloadThroughput": SLOW_BYTES_S, "uploadThroughput": SLOW_BYTES_S}
    line.send("Network.emulateNetworkConditions", {"offline": False, **limits})
    kinds: dict[str, str] = {}
    size = 0

    def ended(event: dict[str, float | str]) -> None:
        nonlocal size
        if kinds.get(str(event["requestId"])) in {"Document", "Script", "Stylesheet"}:
            size += int(event["encodedDataLength"])

    line.on("Network.responseReceived", lambda event: kinds.update({event["requestId"]: event["type"]}))
    line.on("Network.loadingFinished", ended)
    page.goto(url + path, wait_until="load", timeout=120_000)
    painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    paint = float(page.wait_for_function(painted).json_value())
    context.close()
    return size, paint / 1000


def axe() -> Iterator[Row]:
    node = "tests/browser/test_accessibility.py::test_axe_finds_nothing[all]"
    yield decided_by("findings of axe, all pages, four variants", "0", node)


def mosaic() -> Iterator[Row]:
    node = "tests/unit/test_redacted_clip.py::test_no_pixel_outside_the_objects_box_is_anything_but_mosaic"
    yield decided_by("mosaic: pixels outside the box that are none", "0", node)
    _, text = output("benchmarks.transcoding", "redaction", "--rounds", "1", "--seconds", "10")
    found = re.search(r"([\d.]+) x real time on one core", text)
    speed = 2 * float(found[1]) if found else 0.0
    yield Row("mosaic at 720p, times real time on two cores", "4", f"{speed:.1f}", speed >= 4)


MEASURES: dict[str, Callable[[], Iterator[Row]]] = {
    each.__name__: each for each in (keys, start, faults, firefox, windows, behind, h265, viewer, weight, axe, mosaic)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASURES), help="rows, with commas")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    if unknown := set(wanted.only.split(",")) - set(MEASURES):
        parser.error(f"--only {min(unknown)}: one of {', '.join(MEASURES)}")
    rows: list[Row] = []
    for name in wanted.only.split(","):
        before = len(rows)
        try:
            rows += MEASURES[name]()
        except (subprocess.TimeoutExpired, playwright.Error) as error:
            rows.append(Row(name, "", f"not measured: {str(error).splitlines()[0]}", None))
        if not wanted.json:
            for row in rows[before:]:
                met = {True: "met", False: "missed", None: "–"}[row.met]
                print(f"| {row.what} | {row.bar} | {row.value} | {met} |", flush=True)
    load = os.getloadavg()
    if wanted.json:
        print(json.dumps({"load": load, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(f"load average {load[0]:.1f}, {load[2]:.1f} over 15 minutes, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
