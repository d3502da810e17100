"""How long the list of alerts takes with 100 000 of them: `python -m benchmarks.review_search [--alerts 100000]`.

Fills a store as a site of 16 cameras and 30 days would, through the tables' own triggers, and asks the dashboard, in
this process, for pages under each filter, each 20 times after one that warms the cache. Server time in ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from fastapi.testclient import TestClient

from appliance import wire
from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import StoredSite
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter

CAMERAS, DAYS, TIMES = 16, 30, 20
NOW = 1_700_000_000.0
WORDS = """a person walks through the yard past parked cars towards gate with box at night rain only shadow
tree""".split()  # noqa: SIM905
PAGES = {
    "newest": "", "to review": "review=open", "camera": "camera=cam3", "a rare verdict": "verdict=unsure",
    "a day": "from=2023-11-01&to=2023-11-01", "zone": "zone=zone2", "common label": "label=person",
    "rare label": "label=dog",
    "rule on a camera": "rule=rule1&camera=cam5", "common word": "text=person", "rare word": "text=zebra",
    "two rare": "label=dog&text=zebra", "two common": "label=person&zone=zone1&text=night",
    "nothing fits": "label=person&zone=zone2&rule=rule2&text=night&verdict=unsure&camera=cam9&review=reviewed",
    "common and never together": "label=person&zone=zone3&rule=rule1", "an old page": "before=1698000000.0~x",
}  # fmt: skip


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alerts", type=int, default=100_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock(NOW)
        db = Database(Path(folder) / "vedette.db", clock)
        cameras = {f"cam{n}": {"url": f"rtsp://10.0.0.{n}/main"} for n in range(CAMERAS)}
        config = SiteConfig.model_validate({"site": {"name": "bench"}, "cameras": cameras})
        CameraStore(db).ensure({name: camera.url for name, camera in config.cameras.items()})
        began = time.perf_counter()
        fill(db, wanted.alerts)
        print(f"{wanted.alerts} alerts written in {time.perf_counter() - began:.0f} s")
        app = create_app(StoredSite(db, Meter(db, "core"), Path(folder), clock), config.for_dashboard())
        with TestClient(app, base_url="http://127.0.0.1:8080") as client:
            every: list[float] = []
            for name, query in PAGES.items():
                for path in (f"/api/v1/alerts?limit=50&{query}", f"/?{query}"):
                    took = [_ask(client, path) for _ in range(TIMES + 1)][1:]
                    every += took
                    p95 = statistics.quantiles(took, n=20)[-1]
                    which = "page" if path[1] == "?" else "API"
                    print(f"{which:4} {name:28} median {statistics.median(took):6.1f}  p95 {p95:6.1f}")
            print(f"all {len(every)} requests: p95 {statistics.quantiles(every, n=20)[-1]:.1f} ms")
        db.close()


def _ask(client: TestClient, path: str) -> float:
    began = time.perf_counter()
    answer = client.get(path)
    took = 1000 * (time.perf_counter() - began)
    assert answer.status_code == 200, answer.text
    return took


if __name__ == "__main__":
    main()
