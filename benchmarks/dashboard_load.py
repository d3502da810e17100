"""Cost of the dashboard's pages: `python -m benchmarks.dashboard_load pages|filters|rows|idle|timeline`.

pages: server time of every page with 100,000 alerts of 30 days on 16 cameras, 20 times each after one that warms up.

filters: the same of the list of alerts under each filter, and of its JSON.

rows: from an event in the store until its row is on screen, in Chromium, 40 times.

idle: CPU seconds of the server while 20 browsers have the list open (their stream and their polls) and nothing happens.

timeline: how soon a day of a camera is on the screen. The site also has 30 days of recording (a segment a minute, and
every 4 s on the day that is looked at; looks for each minute), and is asked for that day of each camera: wall time of
the API's report, and time of this process's processor. With `--browser` from the request to the strips being drawn, and
from a seek or *Play* to its first frame, of 40 s of 1280x720 that are really there.

`--alerts 100000` sets how many there are.

Absolute figures are for a quiet machine; beside other work compare two runs of the same minute.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright import sync_api as playwright

from appliance import wire
from appliance.base.clock import Clock, ManualClock, SystemClock
from appliance.base.process_memory import spare_what_stays
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.store.alerts import AlertStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.segments import SegmentStore
from appliance.types import Alert, AlertChange, BestView, Event
from appliance.web.server import WebServer
from tests.support import numbered_footage
from tests.support.dashboard_site import running

CAMERAS, DAYS, TIMES = 16, 30, 20
NOW = 1_700_000_000.0
URL = "http://127.0.0.1:8080"
WORDS = """a person walks through the yard past parked cars towards gate with box at night rain only shadow
tree""".split()  # noqa: SIM905
FILTERS = {
    "newest": "", "to review": "review=open", "camera": "camera=cam3", "a rare verdict": "verdict=unsure",
    "a day": "from=2023-11-01&to=2023-11-01", "zone": "zone=zone2", "common label": "label=person",
    "rare label": "label=dog",
    "rule on a camera": "rule=rule1&camera=cam5", "common word": "text=person", "rare word": "text=zebra",
    "two rare": "label=dog&text=zebra", "two common": "label=person&zone=zone1&text=night",
    "nothing fits": "label=person&zone=zone2&rule=rule2&text=night&verdict=unsure&camera=cam9&review=reviewed",
    "common and never together": "label=person&zone=zone3&rule=rule1", "an old page": "before=1698000000.0~x",
}  # fmt: skip
PAGES = (
    "/", "/?review=open", "/live", "/timeline", "/cameras", "/cameras/cam3", "/cameras/cam3/timeline", "/savings",
    "/scenarios", "/storage", "/users", "/system", "/alerts/alert0000000000000050000",
)  # fmt: skip
BROWSERS, IDLE_S, ROWS = 20, 30.0, 40
DAY_TIMES, SEEKS = 10, 21
FILM_S, FILM_SIZE = 8, (1280, 720)


def fill(db: Database, alerts: int) -> None:
    """Write the alerts, two events each, and a verdict for half of them."""
    pick = random.Random(7)
    box = "[0.4,0.4,0.5,0.8]"
    asked = wire.Escalation(
        id="e", site="s", camera="cam0", alert="a", rule="rule0", kind="enter", label="person", severity="alert", t=NOW,
        created_t=NOW,
    ).model_dump_json()  # fmt: skip
    answered = wire.Verdict(
        escalation="e", site="s", alert="a", decision="confirmed", reason="-", confidence=0.9, support=(),
        engine="openai", model="m", prompt_version="p", seconds=1.0, judged_t=NOW,
    ).model_dump(mode="json")  # fmt: skip
    with db.transaction() as connection:
        for n in range(alerts):
            name, camera, zone = f"alert{n:019d}", f"cam{pick.randrange(CAMERAS)}", pick.randrange(4)
            label = pick.choices(("person", "car", "dog"), (80, 19.9, 0.1))[0]
            t = NOW - DAYS * 86400 * (1 - n / alerts)
            verdict = pick.choices((None, "confirmed", "rejected", "unsure"), (50, 30, 19, 1))[0]
            connection.execute(
                """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, t_end, best,
                   verdict, review, review_t, created_t, rev, judge, verdict_confidence)
                   VALUES (?, ?, 'r', ?, ?, ?, '[1]', 0.8, ?, ?, ?, ?, ?, ?, ?, ?, 'vlm', 0.9)""",
                (
                    name, camera, pick.choice(("alert", "warning", "info")), f'["rule{zone}"]', f'["{label}"]', t,
                    t + 9,
                    json.dumps({"track": 1, "label": label, "t": t, "score": 0.8, "box": [0.4, 0.4, 0.5, 0.8]}),
                    verdict, *((None, None) if pick.random() < 0.5 else ("reviewed", t + 60)), t, n + 1,
                ),
            )  # fmt: skip
            for track in (1, 2):
                connection.execute(
                    "INSERT INTO event VALUES (?, ?, ?, ?, 'enter', ?, ?, 0.8, ?, ?, '', 'alert', ?)",
                    (f"{name}-{track}", name, camera, f"rule{zone}", track, label, t, f"zone{zone}", box),
                )
            connection.execute("INSERT INTO evidence (alert, kind, state) VALUES (?, 'still', 'ready')", (name,))
            if verdict is not None:
                reason = " ".join(pick.choices(WORDS, k=12)) + (" zebra" if n % 5000 == 0 else "")
                connection.execute(
                    "INSERT INTO escalation (id, alert, site, camera, priority, state, body, created_t) "
                    "VALUES (?, ?, 's', ?, 'high', 'settled', ?, ?)",
                    (f"e-{name}", name, camera, asked, t),
                )
                connection.execute(
                    "INSERT INTO verdict (escalation, alert, decision, body, applied_t) VALUES (?, ?, ?, ?, ?)",
                    (
                        f"e-{name}",
                        name,
                        verdict,
                        json.dumps({**answered, "decision": verdict, "reason": reason}),
                        t + 3,
                    ),
                )
        connection.execute("UPDATE counter SET value = ? WHERE name = 'rev'", (alerts,))


@contextlib.contextmanager
def filled(alerts: int, clock: Clock) -> Iterator[tuple[Database, Path, Callable[[], FastAPI]]]:
    """Yield a site of 16 cameras with so many alerts, its folder, and what makes a dashboard: one each event loop."""
    with tempfile.TemporaryDirectory() as folder:
        db = Database(Path(folder) / "vedette.db", clock)
        cameras = {f"cam{n}": {"url": f"rtsp://10.0.0.{n}/main"} for n in range(CAMERAS)}
        config = SiteConfig.model_validate({"site": {"name": "bench"}, "cameras": cameras, "dashboard": {"port": 0}})
        CameraStore(db).ensure({name: camera.url for name, camera in config.cameras.items()})
        fill(db, alerts)
        stored = StoredSite(db, Meter(db, "core"), Path(folder), clock)
        yield db, Path(folder), lambda: create_app(stored, config.for_dashboard())
        db.close()


def pages(alerts: int) -> None:
    with asked(alerts) as client:
        for path in PAGES:
            took = ask(client, path)
            print(f"{path:34} {in_ms(took)}  {len(client.get(path).content):7} B")


def filters(alerts: int) -> None:
    every: list[float] = []
    with asked(alerts) as client:
        for name, query in FILTERS.items():
            for which, path in (("API", f"/api/v1/alerts?limit=50&{query}"), ("page", f"/?{query}")):
                took = ask(client, path)
                every += took
                print(f"{which:4} {name:28} {in_ms(took)}")
    print(f"all {len(every)} requests: {in_ms(every)}")


@contextlib.contextmanager
def asked(alerts: int) -> Iterator[TestClient]:
    """Yield a client of such a site, in this process."""
    with filled(alerts, ManualClock(NOW)) as (*_, app), TestClient(app(), base_url=URL) as client:
        gc.collect()
        gc.freeze()  # what this benchmark alone has loaded (Playwright) is no part of the core's collections
        yield client


def ask(client: TestClient, path: str) -> list[float]:
    """Return how long each of 20 answers took, in ms, after one that warms the caches."""
    took = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        answer = client.get(path, headers={"Accept": "text/html"})
        took.append(1000 * (time.perf_counter() - began))
        assert answer.status_code == 200, answer.text
    return took[1:]


def in_ms(took: list[float]) -> str:
    return f"median {statistics.median(took):6.1f} ms  p95 {statistics.quantiles(took, n=20)[-1]:6.1f} ms"


def rows(alerts: int) -> None:
    clock = SystemClock()
    with filled(alerts, clock) as (db, _, app), served(app()) as url, playwright.sync_playwright() as driver:
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
        filled(alerts, SystemClock()) as (*_, app),
        served(app()) as url,
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


def timeline(alerts: int, *, with_browser: bool) -> None:
    clock: Clock = SystemClock() if with_browser else ManualClock(NOW)
    began = time.perf_counter()
    with filled(alerts, clock) as (db, root, app):
        with db.transaction() as connection:  # `fill` ends at its own NOW
            connection.execute("UPDATE alert SET t_start = t_start + ?, t_end = t_end + ?", (clock.now() - NOW,) * 2)
        _fill_recording(db, clock.now())
        print(f"{alerts} alerts and {CAMERAS * DAYS} days written in {time.perf_counter() - began:.0f} s")
        _measure_report(app(), clock.now())
        if with_browser:
            t0 = _film(db, root, clock.now())
            server = WebServer(app(), "127.0.0.1", 0)
            with running(server) as url:
                server.warm_up()  # as `vedette run` does
                spare_what_stays()
                _measure_browser(url, t0)
    print(f"load of this machine: {os.getloadavg()[0]:.1f}")


def _fill_recording(db: Database, now: float) -> None:
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


def _measure_report(app: FastAPI, now: float) -> None:
    wall: list[float] = []
    spent: list[float] = []
    with TestClient(app, base_url=URL) as client:
        for _ in range(DAY_TIMES):
            for n in range(CAMERAS):
                began, cpu = time.perf_counter(), time.process_time()
                answer = client.get(f"/api/v1/cameras/cam{n}/timeline?from={now - 86400}&to={now}")
                wall.append(1000 * (time.perf_counter() - began))
                spent.append(1000 * (time.process_time() - cpu))
                assert len(answer.json()["alerts"]) > 100, answer.text[:200]
    print(f"report of a day, {len(answer.content) / 1000:.0f} kB: {_figures(wall)}; processor {_figures(spent)}")


def _film(db: Database, root: Path, now: float) -> float:
    """Five files of camera cam3, over which the seeks go; returns when they begin."""
    t0 = now - 3600
    with db.transaction() as connection:
        connection.execute("DELETE FROM segment WHERE camera = 'cam3' AND t_end > ? AND t_start < ?", (t0, t0 + 40))
    made = numbered_footage.encoded_footage(0, FILM_S * 10, size=FILM_SIZE)
    for n in range(5):
        SegmentStore(db).put(numbered_footage.record(root, made, t0 + FILM_S * n, camera="cam3", name=f"film{n}"))
    return t0


def _measure_browser(url: str, t0: float) -> None:
    with playwright.sync_playwright() as driver:
        browser = chromium(driver, "--autoplay-policy=no-user-gesture-required")
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


def _until(page: playwright.Page, condition: str, act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    page.wait_for_function(condition, polling=10)
    return 1000 * (time.perf_counter() - began)


def _figures(values: list[float]) -> str:
    p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
    return f"median {statistics.median(values):.0f} ms, p95 {p95:.0f} ms"


def served(app: FastAPI) -> AbstractContextManager[str]:
    """Serve the dashboard on a free port of the loopback, and yield its URL."""
    return running(WebServer(app, "127.0.0.1", 0))


def chromium(driver: playwright.Playwright, *more: str) -> playwright.Browser:
    program = os.environ.get("VEDETTE_CHROMIUM") or shutil.which("chromium")
    return driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", *more])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pages", "filters", "rows", "idle", "timeline"))
    parser.add_argument("--alerts", type=int, default=100_000)
    parser.add_argument("--browser", action="store_true", help="of the timeline")
    wanted = parser.parse_args()
    if wanted.what == "timeline":
        timeline(wanted.alerts, with_browser=wanted.browser)
        return
    {"pages": pages, "filters": filters, "rows": rows, "idle": idle}[wanted.what](wanted.alerts)


if __name__ == "__main__":
    main()
