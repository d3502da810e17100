"""What the page Savings and `/api/v1/cascade` show of what stays at the edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, StoredSite
from appliance.router.calibration import Calibration, GroupFit, RecallClaim, SureClaim
from appliance.store.decisions import TierCounts
from appliance.types import SystemLoad
from appliance.uplink.worker_announcements import PoolState
from tests.support.core_harness import CoreHarness
from tests.support.core_harness import site as core_site
from tests.support.sample_rows import sample_verdict

START = 1_760_000_000.0 // 60 * 60
KNOWN = GroupFit(
    n=120, real=110, sure=SureClaim(chance_max=0.9, error_high=0.042, n=100, needed=97),
    claim=RecallClaim(chance_min=0.12, recall=1.0, recall_low=0.981, real=110),
)  # fmt: skip
LEARNT = Calibration(everything=KNOWN, labels={}, cameras={"gate/person": replace(KNOWN, n=60, sure=SureClaim())})


@pytest.fixture
def box(tmp_path: Path) -> CoreHarness:
    """Every minute a frame is audited; of likely sure alerts none is asked about."""
    return CoreHarness(tmp_path, core_site(router={"silent_frames_day": 1440, "cold_share": 0.0}), ManualClock(START))


@pytest.fixture
def client(box: CoreHarness, tmp_path: Path) -> Iterator[TestClient]:
    probes = CoreProbes(
        calibration=lambda: LEARNT, pool=lambda: PoolState(workers=3, ready=2, wait_s=4.0, gpu_hour=0.8)
    )
    app = create_app(StoredSite(box.db, box.meter, tmp_path, box.clock), core_site().for_dashboard(), probes=probes)
    with TestClient(app, base_url="http://127.0.0.1:8080") as made:
        yield made


def keep_the_sure(box: CoreHarness) -> None:
    """As if it had been learnt that of chances of a half and more none is wrong."""
    for camera in box.core._settings.cameras.values():
        context = camera.planner._context
        sure = SureClaim(chance_max=0.5, error_high=0.04, n=100, needed=97)
        context.calibration = replace(context.calibration, everything=GroupFit(n=100, sure=sure))


def silent_alerts(box: CoreHarness) -> list[str]:
    with box.db.read() as connection:
        return [row["id"] for row in connection.execute("SELECT id FROM alert WHERE audit = 1 ORDER BY t_start")]


def test_what_stayed_and_what_was_asked_about_is_counted_by_the_last_decision(box: CoreHarness) -> None:
    asked = box.walk()
    keep_the_sure(box)
    box.walk()
    box.walk()
    box.judge(asked, "confirmed")
    assert box.decisions.tiers(0.0) == TierCounts(kept=2, sure=2, asked=1, labels={"vlm": 1})
    assert box.decisions.tiers(box.clock.now() + 1).kept == 0


def test_the_api_says_share_claims_misses_and_workers(box: CoreHarness, client: TestClient) -> None:
    for _ in range(3):
        box.examine(())
        box.clock.advance(60.0)
    keep_the_sure(box)
    box.walk()
    for alert, decision in zip(silent_alerts(box)[:2], ("confirmed", "rejected"), strict=True):
        row = box.escalated(alert)
        assert row is not None
        verdict = sample_verdict(decision=decision).model_copy(
            update={"escalation": row.id, "site": row.site, "alert": alert}
        )
        assert box.alerts.apply_verdict(verdict, box.clock.now())
    found = client.get("/api/v1/cascade").json()
    assert (found["alerts"], found["kept"], found["kept_share"], found["sure"], found["asked"]) == (1, 1, 1.0, 1, 0)
    assert found["claims"][0] == {
        "camera": "", "label": "", "known": 120, "right": 110, "sure_from": 0.9, "error_high": 0.042, "needed": 97,
        "doubtful_below": 0.12, "recall_low": 0.981,
    }  # fmt: skip
    assert (found["claims"][1]["camera"], found["claims"][1]["label"], found["claims"][1]["sure_from"]) == (
        "gate", "person", None,
    )  # fmt: skip
    silent = found["silent"]
    assert (silent["known"], silent["by"], silent["missed"]) == (2, {"vlm": 2}, 1)
    assert silent["missed_high"] == pytest.approx(0.9747, abs=1e-3)  # one of two: nearly nothing is known
    assert silent["missed_alerts"] == silent_alerts(box)[:1]
    assert found["pool"] == {"workers": 3, "ready": 2, "wait_s": 4.0, "gpu_hour": 0.8}
    page = client.get("/savings").text
    assert "100 % of 1 alert stayed here" in page
    assert "Wrong at most" in page
    assert "4.2 %" in page
    assert "2 of them were answered (people 0, language models 2), and 1 did show something" in page
    assert "2 of 3 workers are ready" in page
    assert client.get(f"/alerts/{silent['missed_alerts'][0]}").status_code == 200


def test_an_alert_says_who_answered_how_sure_and_by_which_claim(box: CoreHarness, client: TestClient) -> None:
    keep_the_sure(box)
    alert = box.walk()
    decision = client.get(f"/api/v1/alerts/{alert}").json()["decision"]
    assert (decision["tier"], decision["edge"], decision["when"], decision["error_high"]) == (
        "edge",
        "sure",
        "never",
        0.04,
    )
    assert decision["certainty"] > 0.5
    page = client.get(f"/alerts/{alert}").text
    assert "The appliance is sure: such alerts are hardly ever wrong (" in page
    assert f"({100 * decision['certainty']:.0f} % sure)" in page
    assert "Of such alerts at most 4.0 % are wrong, with 95 % confidence." in page


def test_where_the_cloud_is_gone_the_boxs_own_answer_stands_is_flagged_and_asked_later(
    box: CoreHarness, client: TestClient
) -> None:
    box.system_load = SystemLoad(link_up=False)
    box.second()
    alert = box.walk()
    decision = client.get(f"/api/v1/alerts/{alert}").json()["decision"]
    assert (decision["tier"], decision["flagged"]) == (
        "cloud", "the cloud cannot be reached: the appliance's own answer stands until it can",
    )  # fmt: skip
    assert "Until then this stands" in client.get(f"/alerts/{alert}").text
    row = box.escalated(alert)
    assert row is not None
    assert row.state == "waiting"  # kept, and asked when it can be


def test_a_new_site_claims_nothing_and_says_so(box: CoreHarness, tmp_path: Path) -> None:
    box.walk()
    app = create_app(StoredSite(box.db, box.meter, tmp_path, box.clock), core_site().for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1:8080") as plain:
        found = plain.get("/api/v1/cascade").json()
        assert (found["claims"], found["pool"]["wait_s"], found["silent"]["missed_high"]) == ([], None, None)
        assert "Nothing is claimed yet" in plain.get("/savings").text
