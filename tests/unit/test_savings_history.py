"""Savings by hour and day: kept as they are counted, drawn by the server, downloaded; prices edited in place."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock, local_day
from appliance.config import SiteConfig, load
from appliance.dashboard.savings_page import ChartBar, bar_chart, round_up
from appliance.settings.settings_service import SettingsService
from appliance.store import verdict_stats
from appliance.store.database import Database
from appliance.store.meter import HOUR_S, HOURS_KEPT, Metric, MetricName
from appliance.store.verdict_stats import DailyJudgeWork, judge_work_since
from tests.support.dashboard_site import Site

NOON = 1_700_000_000 // 86400 * 86400 + 43200.0
DAY_S = 86400.0


def count(site: Site, camera: str, received: int, sent: int) -> None:
    site.meter.add(camera, Metric(MetricName.CAMERA_BYTES), received)
    site.meter.add(camera, Metric(MetricName.UPLINK_BYTES), sent)
    site.meter.add(camera, Metric(MetricName.UPLINK_BYTES, "crop"), sent)
    site.meter.add(camera, Metric(MetricName.EXAMINED), 1000)
    site.meter.add("", Metric(MetricName.UPTIME_S), 3600)
    site.meter.flush(local_day(site.clock.now()))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, ManualClock(NOON))
    yield site
    site.close()


def client(site: Site) -> TestClient:
    return TestClient(site.app(), base_url="http://127.0.0.1:8080")


def test_what_was_judged_before_today_is_summed_once_before_anybody_looks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 alerts it takes a second. New settings change nothing about it."""
    spans: list[bool] = []

    def summed(db: Database, t: float, until_t: float = inf) -> list[DailyJudgeWork]:
        spans.append(until_t < inf)
        return judge_work_since(db, t, until_t)

    monkeypatch.setattr(verdict_stats, "judge_work_since", summed)
    app = site.app()
    app.state.warm_up()
    assert spans.count(True) == 1
    app.state.configure(site.config.for_dashboard(), site.probes())
    with TestClient(app, base_url="http://127.0.0.1:8080") as http:
        assert http.get("/savings").status_code == 200
    assert spans.count(True) == 1


def test_each_hour_has_what_was_counted_in_it(site: Site) -> None:
    count(site, "gate", 1000, 10)
    site.clock.advance(HOUR_S)  # type: ignore[attr-defined]
    count(site, "gate", 500, 600)
    count(site, "dock", 70, 0)
    with client(site) as http:
        found = http.get("/api/v1/savings/history?by=hour&count=3").json()["periods"]
        gate = http.get("/api/v1/savings/history?by=hour&count=3&camera=gate").json()["periods"]
    assert [(each["received"], each["sent"], each["saved"]) for each in found] == [
        (0, 0, 0),
        (1000, 10, 990),
        (570, 600, -30),
    ]
    assert [each["t"] for each in found] == [NOON - HOUR_S, NOON, NOON + HOUR_S]
    assert [each["received"] for each in gate] == [0, 1000, 500]
    assert [each["inferences"] for each in found] == [0, 1000, 2000]


def test_hours_are_kept_for_some_weeks_and_days_for_ever(site: Site) -> None:
    count(site, "gate", 1000, 10)
    site.clock.advance(HOURS_KEPT * HOUR_S)  # type: ignore[attr-defined]
    count(site, "gate", 5, 0)
    assert [each.t for each in site.meter.by_hour(0)] == [NOON + HOURS_KEPT * HOUR_S]
    assert len(site.meter.by_day("2000-01-01")) == 2


def test_days_have_no_holes_and_the_money_adds_up_to_the_comparison(site: Site) -> None:
    count(site, "gate", 60_000_000_000, 100_000_000)
    site.clock.advance(2 * DAY_S)  # type: ignore[attr-defined]
    count(site, "dock", 30_000_000_000, 0)
    with client(site) as http:
        days = http.get("/api/v1/savings/history?count=3").json()["periods"]
        spent = http.get("/api/v1/costs/history").json()["days"]
        compared = http.get("/api/v1/costs").json()["comparison"]
    assert [each["received"] for each in days] == [60_000_000_000, 0, 30_000_000_000]
    assert [each["begin"] for each in days] == [local_day(NOON + n * DAY_S) for n in range(3)]
    assert [each["day"] for each in spent] == [days[0]["begin"], days[2]["begin"]]
    assert spent[-1]["site_so_far"] == pytest.approx(compared["edge"]["total"] + compared["cloud"]["total"])
    assert spent[-1]["all_to_cloud_so_far"] == pytest.approx(compared["all_to_cloud"]["total"])
    assert sum(each["saved"] for each in spent) == pytest.approx(compared["saved"])


def test_the_page_draws_the_site_and_each_camera_with_a_table_behind(site: Site) -> None:
    count(site, "gate", 4_000_000, 1_000_000)
    count(site, "dock", 1_000_000, 0)
    with client(site) as http:
        page = http.get("/savings?by=hour").text
        dock = http.get("/savings?by=hour&camera=dock").text
        strange = http.get("/savings?camera=<script>x").text
    assert 'aria-label="Bytes from the cameras and sent up, each hour, the site"' in page
    received, sent, *_ = re.findall(r'<svg class="chart".*?</svg>(?=\s*<)', page, re.DOTALL)
    heights = {kind: float(h) for kind, h in re.findall(r'class="(of|part)"[^>]*height="([\d.]+)"', received)}
    assert heights["part"] == pytest.approx(heights["of"] / 5, abs=0.1), "1 of 5 MB"
    assert "5.00 MB in, 1.00 MB up" in received
    assert 'class="part"' in sent
    assert "each hour, dock" in dock
    assert "1.00 MB in, 0 B up" in dock
    assert re.search(r'data-label="Kept off">4\.00 MB', page), "the table"
    assert "<script>x" not in strange


def test_an_axis_ends_at_a_round_number_and_what_is_there_is_seen() -> None:
    assert [round_up(each) for each in (0, 0.3, 1, 1.01, 2.1, 2.6, 7e9)] == [1, 0.5, 1, 2, 2.5, 5, 1e10]
    drawn = bar_chart([ChartBar("a", 1e12, 1.0, "<b>"), ChartBar("b", 0, 0, "none")], "name", str)
    assert drawn.count("<rect") == 2, "nothing is drawn for nothing"
    assert 'height="1.5"' in drawn
    assert "&lt;b&gt;" in drawn


def test_a_csv_has_a_row_for_each_period_and_camera(site: Site) -> None:
    count(site, "gate", 1000, 10)
    count(site, "=cmd|calc", 7, 0)
    count(site, "-1+2", 7, 9)
    with client(site) as http:
        answer = http.get("/api/v1/savings.csv?by=day&of=cameras&count=5")
        whole = http.get("/api/v1/savings.csv?by=hour&count=2").text
        money = http.get("/api/v1/costs.csv").text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "savings-cameras-days.csv" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["camera"] for row in rows] == ["'-1+2", "'=cmd|calc", "gate"], "a spreadsheet must not run them"
    assert rows[0]["saved"] == "-2", "a number stays one"
    assert [row["received"] for row in csv.DictReader(io.StringIO(whole))] == ["0", "1014"]
    [day] = csv.DictReader(io.StringIO(money))
    assert (day["day"], day["hours"], day["currency"]) == (local_day(NOON), "3.0", "USD")


def test_prices_are_edited_in_place_by_admins_and_count_at_once(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("cameras: {gate: {url: 'rtsp://h/1'}}\ncosts:\n  edge: {power_w: 12}  # the meter on the wall\n")
    (tmp_path / "data").mkdir()
    site = Site(tmp_path / "data", ManualClock(NOON), load(path))
    count(site, "gate", 1_000_000_000, 10)
    apps: list[FastAPI] = []

    def take(config: SiteConfig) -> tuple[str, ...]:
        apps[0].state.configure(config.for_dashboard(), site.probes())
        return ()

    apps.append(site.app(SettingsService(path, site.root, site.clock, take)))
    with TestClient(apps[0], base_url="http://127.0.0.1") as http:
        page = http.get("/savings").text
        [base] = re.findall(r'id="prices" data-base="(\w+)"', page)
        assert 'name="costs.edge.power_w" value="12"' in page
        assert 'name="costs.edge.device_price" value="" placeholder="150"' in page
        before = http.get("/api/v1/costs").json()["comparison"]["edge"]["power"]
        changes = [
            {"path": ["costs", "edge", "power_w"], "value": 24},
            {"path": ["escalation", "prices", "uplink_gb"], "value": 4},
        ]
        assert http.post("/api/v1/settings", json={"base": base, "changes": changes}).status_code == 200
        found = http.get("/api/v1/costs").json()["comparison"]
        assert found["edge"]["power"] == pytest.approx(2 * before)
        assert found["all_to_cloud"]["uplink"] == pytest.approx(4.0)
        assert {each["key"]: each["value"] for each in found["asking_prices"]}["escalation.prices.uplink_gb"] == 4
        assert "power_w: 24}  # the meter on the wall" in path.read_text()
        negative = [{"path": ["costs", "edge", "power_w"], "value": -1}]
        base = http.get("/api/v1/settings").json()["digest"]
        refused = http.post("/api/v1/settings", json={"base": base, "changes": negative})
        assert (refused.status_code, "costs.edge.power_w" in refused.json()["detail"]) == (422, True)
    with client(site) as http:
        assert 'data-base=""' in http.get("/savings").text, "without a site file nothing can be edited"
        assert 'name="costs.edge.power_w"' not in http.get("/savings").text
    site.close()
