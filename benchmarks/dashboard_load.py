"""Cost of the dashboard's pages: `python -m benchmarks.dashboard_load pages|rows|idle [--alerts 100000]`.

pages: server time of every page with 100,000 alerts of 30 days on 16 cameras, 20 times each after one that warms up.

rows: from an event in the store until its row is on screen, in Chromium, 40 times.

idle: CPU seconds of the server while 20 browsers have the list open (their stream and their polls) and nothing happens.

Absolute figures are for a quiet machine; beside other work compare two runs of the same minute.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright import sync_api as playwright

from appliance.base.clock import ManualClock, SystemClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.store.alerts import AlertStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.types import Alert, AlertChange, BestView, Event
from appliance.web.server import WebServer
from benchmarks.review_search import CAMERAS, NOW, TIMES, fill
from tests.support.dashboard_site import running

PAGES = (
    "/", "/?review=open", "/live", "/timeline", "/cameras", "/cameras/cam3", "/cameras/cam3/timeline", "/savings",
    "/scenarios", "/storage", "/users", "/system", "/alerts/alert0000000000000050000",
)  # fmt: skip
BROWSERS, IDLE_S, ROWS = 20, 30.0, 40


@contextlib.contextmanager
def filled(alerts: int, clock: ManualClock | SystemClock) -> Iterator[tuple[Database, FastAPI]]:
    """Yield a site of 16 cameras with so many alerts, and its dashboard."""
    with tempfile.TemporaryDirectory() as folder:
        db = Database(Path(folder) / "vedette.db", clock)
        cameras = {f"cam{n}": {"url": f"rtsp://10.0.0.{n}/main"} for n in range(CAMERAS)}
        config = SiteConfig.model_validate({"site": {"name": "bench"}, "cameras": cameras, "dashboard": {"port": 0}})
        CameraStore(db).ensure({name: camera.url for name, camera in config.cameras.items()})
        fill(db, alerts)
        yield (
            db,
            create_app(StoredSite(db, Meter(db, "core"), Path(folder), clock), config.for_dashboard()),
        )
        db.close()


def pages(alerts: int) -> None:
    with filled(alerts, ManualClock(NOW)) as (_, app), TestClient(app, base_url="http://127.0.0.1:8080") as client:
        gc.collect()
        gc.freeze()  # what this benchmark alone has loaded (Playwright) is no part of the core's collections
        for path in PAGES:
            took = []
            for _ in range(TIMES + 1):
                began = time.perf_counter()
                answer = client.get(path, headers={"Accept": "text/html"})
                took.append(1000 * (time.perf_counter() - began))
                assert answer.status_code == 200, path
            p95 = statistics.quantiles(took[1:], n=20)[-1]
            print(
                f"{path:34} median {statistics.median(took[1:]):6.1f} ms  p95 {p95:6.1f} ms  {len(answer.content):7} B"
            )


def rows(alerts: int) -> None:
    clock = SystemClock()
    with filled(alerts, clock) as (db, app), served(app) as url, playwright.sync_playwright() as driver:
        page = chromium(driver).new_page()
        page.goto(url)
        page.locator("#pulse[data-state=live]").wait_for()
        took = []
        for n in range(ROWS):
            t = clock.now()
            name = f"row{n:04d}"
            seen = BestView(track=1, label="person", t=t, score=0.9, box=(0.4, 0.4, 0.5, 0.8))
            alert = Alert(
                camera="cam1", id=name, rules=("rule1",), severity="alert", t_start=t, t_end=None, tracks=(1,),
                labels=("person",), score=0.9, run="r", best=seen,
            )  # fmt: skip
            event = Event(
                camera="cam1", rule="rule1", kind="enter", track=1, label="person", t=t, score=0.9,
                box=(0.4, 0.4, 0.5, 0.8), zone="zone1", severity="alert",
            )  # fmt: skip
            AlertStore(db).apply(AlertChange("opened", alert, event), escalation=None, priority="high")
            began = time.perf_counter()
            page.locator(f"#a-{name}").wait_for(state="attached")
            took.append(time.perf_counter() - began)
            page.wait_for_timeout(200)
        print(f"event stored to row on screen: median {statistics.median(took):.3f} s, ", end="")
        print(f"p95 {statistics.quantiles(took, n=20)[-1]:.3f} s, of {ROWS}")


def idle(alerts: int) -> None:
    with (
        filled(alerts, SystemClock()) as (_, app),
        served(app) as url,
        playwright.sync_playwright() as driver,
    ):
        browser = chromium(driver)
        for _ in range(BROWSERS):
            page = browser.new_context().new_page()
            page.goto(url)
            page.locator("#pulse[data-state=live]").wait_for()
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        page.wait_for_timeout(IDLE_S * 1000)
        after, took = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - began
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{BROWSERS} browsers, nothing happening: {used:.2f} CPU-s in {took:.0f} s, {used / took:.1%} of a core")


def served(app: FastAPI) -> AbstractContextManager[str]:
    """Serve the dashboard on a free port of the loopback, and yield its URL."""
    return running(WebServer(app, "127.0.0.1", 0))


def chromium(driver: playwright.Playwright) -> playwright.Browser:
    program = os.environ.get("VEDETTE_CHROMIUM") or shutil.which("chromium")
    return driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pages", "rows", "idle"))
    parser.add_argument("--alerts", type=int, default=100_000)
    wanted = parser.parse_args()
    {"pages": pages, "rows": rows, "idle": idle}[wanted.what](wanted.alerts)


if __name__ == "__main__":
    main()
