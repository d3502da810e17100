"""How soon a day is on the screen: `python -m benchmarks.timeline [--alerts 100000] [--browser]`.

Fills a store as a site of 16 cameras and 30 days would (the alerts of `benchmarks.dashboard_load`; a segment a minute,
and every 4 s on the day that is looked at; looks for each minute), and asks for that day of each camera: the API's
report, in milliseconds of wall time and of this process's processor. With `--browser` it is opened in Debian's
Chromium, too: from the request to the strips being drawn, and from a seek or *Play* to its first frame, of 40 s of
1280x720 that are really there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.base.clock import Clock, ManualClock, SystemClock
from appliance.base.malloc import spare_what_stays
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.segments import SegmentStore
from appliance.web.server import WebServer
from benchmarks.dashboard_load import CAMERAS, DAYS, NOW, fill
from tests.support import numbered_footage
from tests.support.dashboard_site import running

TIMES = 10
FILM_S, FILM_SIZE = 8, (1280, 720)
SEEKS = 21


def fill_recording(db: Database, now: float) -> None:
    """Segments and looks of all cameras, up to a minute before `now`; nothing is on the disk."""
    with db.transaction() as connection:
        for n in range(CAMERAS):
            camera, day = f"cam{n}", now - 86400
            rows = [(now - 60 * k, 60.0) for k in range(2, DAYS * 1440) if now - 60 * k < day]
            rows += [(now - 60 - 4.0 * k, 4.0) for k in range(1, 21600 - 15)]
            connection.executemany(
                "INSERT INTO segment (path, camera, t_start, t_end, bytes, frames, codec, width, height, complete) "
                "VALUES (?, ?, ?, ?, 1000000, 100, 'h264', 1920, 1080, 1)",
                ((f"segments/{camera}/{t:.0f}.mp4", camera, t, t + length) for t, length in rows),
            )
            minutes = range(int((now - DAYS * 86400) // 60), int(now // 60))
            connection.executemany(
                "INSERT OR REPLACE INTO activity VALUES (?, ?, ?, ?)",
                ((camera, minute, 60 + minute % 200, minute % 7) for minute in minutes),
            )


def filled(folder: Path, clock: Clock, alerts: int) -> tuple[Database, SiteConfig]:
    db = Database(folder / "vedette.db", clock)
    cameras = {f"cam{n}": {"url": f"rtsp://10.0.0.{n}/main"} for n in range(CAMERAS)}
    config = SiteConfig.model_validate({"site": {"name": "bench"}, "cameras": cameras, "dashboard": {"port": 0}})
    CameraStore(db).ensure({name: camera.url for name, camera in config.cameras.items()})
    fill(db, alerts)
    with db.transaction() as connection:  # `fill` ends at its own NOW
        connection.execute("UPDATE alert SET t_start = t_start + ?, t_end = t_end + ?", (clock.now() - NOW,) * 2)
    fill_recording(db, clock.now())
    return db, config


def dashboard(db: Database, config: SiteConfig, root: Path, clock: Clock) -> FastAPI:
    """Return a dashboard: each event loop has one of its own."""
    return create_app(StoredSite(db, Meter(db, "core"), root, clock), config.for_dashboard())


def measure_api(app: FastAPI, now: float) -> None:
    wall: list[float] = []
    spent: list[float] = []
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        for _ in range(TIMES):
            for n in range(CAMERAS):
                began, cpu = time.perf_counter(), time.process_time()
                answer = client.get(f"/api/v1/cameras/cam{n}/timeline?from={now - 86400}&to={now}")
                wall.append(1000 * (time.perf_counter() - began))
                spent.append(1000 * (time.process_time() - cpu))
                assert len(answer.json()["alerts"]) > 100, answer.text[:200]
    print(f"report of a day, {len(answer.content) / 1000:.0f} kB: {_figures(wall)}; processor {_figures(spent)}")


def _figures(values: list[float]) -> str:
    p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
    return f"median {statistics.median(values):.0f} ms, p95 {p95:.0f} ms"


def film(db: Database, root: Path, now: float) -> float:
    """Five files of camera cam3, over which the seeks go; returns when they begin."""
    t0 = now - 3600
    with db.transaction() as connection:
        connection.execute("DELETE FROM segment WHERE camera = 'cam3' AND t_end > ? AND t_start < ?", (t0, t0 + 40))
    made = numbered_footage.encoded_footage(0, FILM_S * 10, size=FILM_SIZE)
    for n in range(5):
        SegmentStore(db).put(numbered_footage.record(root, made, t0 + FILM_S * n, camera="cam3", name=f"film{n}"))
    return t0


def measure_browser(url: str, t0: float) -> None:
    from playwright import sync_api

    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=os.environ.get("VEDETTE_CHROMIUM", "/usr/bin/chromium"),
            args=["--headless", "--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required"],
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        drawn: list[float] = []
        sought: list[float] = []
        played: list[float] = []
        for n in range(SEEKS):
            began = time.perf_counter()
            page.goto(f"{url}/cameras/cam3/timeline?t={t0 + 2 + 1.5 * n:.1f}", wait_until="commit")
            page.locator("#timeline[data-loaded]").wait_for(state="attached")
            drawn.append(1000 * (time.perf_counter() - began))
            sought.append(_until(page, "() => document.querySelector('.stage canvas').dataset.t", lambda: None))
            played.append(
                _until(
                    page,
                    "() => [...document.querySelectorAll('video')].some(v => v.currentTime > 0 && !v.paused)",
                    page.get_by_role("button", name="Play").click,
                )
            )
            page.get_by_role("button", name="Pause").click()
        browser.close()
    print(f"the first opening of a browser: {drawn.pop(0):.0f} ms")
    print(f"opened and drawn: {_figures(drawn)}; its picture after that: {_figures(sought)}")
    print(f"from Play to the first frame: {_figures(played)}")


def _until(page: object, condition: str, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    page.wait_for_function(condition, polling=10)  # type: ignore[attr-defined]
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alerts", type=int, default=100_000)
    parser.add_argument("--browser", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        clock: Clock = SystemClock() if wanted.browser else ManualClock(NOW)
        began = time.perf_counter()
        db, config = filled(root, clock, wanted.alerts)
        print(f"{wanted.alerts} alerts and {CAMERAS * DAYS} days written in {time.perf_counter() - began:.0f} s")
        measure_api(dashboard(db, config, root, clock), clock.now())
        if wanted.browser:
            t0 = film(db, root, clock.now())
            server = WebServer(dashboard(db, config, root, clock), "127.0.0.1", 0)
            with running(server) as url:
                server.warm_up()  # as `vedette run` does
                spare_what_stays()
                measure_browser(url, t0)
        db.close()
    print(f"load of this machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
