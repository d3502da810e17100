"""Cost of the dashboard's pages: `python -m benchmarks.dashboard_load pages|filters|rows|idle [--alerts 100000]`.

pages: server time of every page with 100,000 alerts of 30 days on 16 cameras, 20 times each after one that warms up.

filters: the same of the list of alerts under each filter, and of its JSON.

rows: from an event in the store until its row is on screen, in Chromium, 40 times.

idle: CPU seconds of the server while 20 browsers have the list open (their stream and their polls) and nothing happens.

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
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from playwright import sync_api as playwright

from appliance import wire
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
from tests.support.dashboard_site import running

CAMERAS, DAYS, TIMES = 16, 30, 20
NOW = 1_700_000_000.0
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
    with filled(alerts, ManualClock(NOW)) as (_, app), TestClient(app, base_url="http://127.0.0.1:8080") as client:
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
    parser.add_argument("what", choices=("pages", "filters", "rows", "idle"))
    parser.add_argument("--alerts", type=int, default=100_000)
    wanted = parser.parse_args()
    {"pages": pages, "filters": filters, "rows": rows, "idle": idle}[wanted.what](wanted.alerts)


if __name__ == "__main__":
    main()
