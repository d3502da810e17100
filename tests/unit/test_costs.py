"""What asking took and cost, per day and camera."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock, day_bounds, local_day
from appliance.config import CloudCostConfig, CostsConfig, EdgeCostConfig, JudgeCostConfig, PricesConfig
from appliance.dashboard.app import create_app
from appliance.store.costs import (
    MONTH_H,
    Bill,
    amortised_hour,
    has_prices,
    power_hour,
    price_all_to_cloud,
    price_each,
    price_edge,
    price_idle,
    price_offers,
    price_work,
    uplink_gb_of_site,
    uplink_gb_to_cloud,
)
from appliance.store.meter import Metric, MetricName
from appliance.store.verdict_stats import DailyJudgeWork, judge_work_since
from appliance.web.templating import money
from appliance.wire import Verdict
from tests.support.dashboard_site import Site, config_of
from tests.support.prometheus_text import samples

NOON = 1_700_000_000.0
DAY_S = 86400.0
PRICES = PricesConfig(uplink_gb=2.0, gpu_hour=3.6, tokens_in_million=1.0, tokens_out_million=10.0)


def work(judge_s: float = 0.0, *, tokens_in: int = 0, tokens_out: int = 0, size: int = 0) -> DailyJudgeWork:
    return DailyJudgeWork(
        day="2023-11-14", camera="gate", verdicts=1, judge_s=judge_s, tokens_in=tokens_in, tokens_out=tokens_out,
        bytes=size,
    )  # fmt: skip


def test_a_bill_by_hand() -> None:
    found = price_work(work(1000, tokens_in=500_000, tokens_out=20_000, size=250_000_000), PRICES)
    assert (found.uplink, found.gpu, found.tokens) == pytest.approx((0.5, 1.0, 0.7))
    assert found.total == pytest.approx(2.2)


def test_a_rented_gpu_costs_what_was_not_used_of_it() -> None:
    prices = PricesConfig(gpu_hour=3.6, gpu_rented_hours_day=1)
    assert price_idle([work(1000), work(600)], prices) == Bill(idle=pytest.approx(2.0))
    used = sum((price_work(work(1600), prices), price_idle([work(1600)], prices)), Bill())
    assert used.total == pytest.approx(3.6), "the rent, whatever was judged"
    assert price_idle([work(9000)], prices).idle == 0, "two at once do not make money"


def test_without_prices_nothing_costs() -> None:
    assert not has_prices(PricesConfig())
    assert price_work(work(1e6, size=10**12), PricesConfig()).total == 0


def test_the_worked_examples_of_a_million_tokens() -> None:
    """A 2,000 device over three years at 500 W and 100 tokens a second; an H100 and a spot one at 3,000."""
    device, power = amortised_hour(2000, 3), power_hour(500, 0.10)
    assert (round(device, 3), power) == (0.076, pytest.approx(0.05))
    assert 1e6 * price_each(device + power, 100 * 3600) == pytest.approx(0.35, abs=0.005)
    assert 1e6 * price_each(2.01, 3000 * 3600) == pytest.approx(0.19, abs=0.005)
    assert 1e6 * price_each(0.80, 3000 * 3600) == pytest.approx(0.07, abs=0.005)
    assert abs(2.01 * MONTH_H - 1450) < 20, "an H100 that is on all month"
    assert price_each(2.01, 1000, use=0.1) == pytest.approx(10 * price_each(2.01, 1000)), "idle time is paid for"


def test_the_worked_example_of_a_pi_in_a_shop() -> None:
    """150 over three years and 5 a month for 10,000 inferences a day; power and operations as they are said to be."""
    node = EdgeCostConfig(
        device_price=150, device_years=3, connectivity_month=5, power_w=10, electricity_kwh=0.10, operations_million=4
    )
    bill = price_edge(node, hours=24, inferences=10_000)
    assert bill.device == pytest.approx(150 / (3 * 365.25))
    assert bill.connectivity == pytest.approx(5 * 12 / 365.25)
    assert (bill.power, bill.operations) == (pytest.approx(0.024), pytest.approx(0.04))
    each = (150 / (3 * 365.25) + 60 / 365.25 + 0.024) / 10_000 + 4e-6
    assert bill.total / 10_000 == pytest.approx(each) == pytest.approx(3.65e-5, rel=0.01)


def test_all_to_the_cloud_is_its_gpu_and_what_goes_up() -> None:
    prices = CloudCostConfig(gpu_hour=0.36, inferences_hour=360_000, gpu_use=0.5)
    bill = price_all_to_cloud(prices, 2.0, inferences=1_000_000, bytes_=500_000_000)
    assert (bill.gpu, bill.uplink) == (pytest.approx(2.0), pytest.approx(1.0))


def test_the_same_work_on_a_spot_gpu_and_on_a_reserved_one() -> None:
    """A month of 9,000 verdicts of 1.2 s, 3 h: kept warm for 8 h a day on spot, or reserved day and night."""
    spot, reserved = price_offers(3 * 3600.0, 9_000, 30.4375, JudgeCostConfig(warm_hours_day=8))
    assert (spot.hours, spot.idle_hours, spot.total) == (
        pytest.approx(243.5),
        pytest.approx(240.5),
        pytest.approx(194.8),
    )
    assert abs(reserved.total - 1450) < 20, "an H100 that is on all month"
    assert reserved.per_verdict == pytest.approx(reserved.total / 9_000)
    busy, _ = price_offers(100 * 3600.0, 1, 1.0, JudgeCostConfig())
    assert (busy.hours, busy.idle_hours) == (100, 0), "several at once: what was used is paid"


def test_a_gb_has_a_price_before_anybody_names_one_and_what_is_named_counts() -> None:
    named, own = PricesConfig(uplink_gb=4.0), CostsConfig(cloud=CloudCostConfig(uplink_gb=0.1))
    pairs = [(PricesConfig(), CostsConfig()), (named, CostsConfig()), (named, own), (PricesConfig(), own)]
    assert [uplink_gb_to_cloud(*each) for each in pairs] == [0.62, 4.0, 0.1, 0.1]
    assert [uplink_gb_of_site(*each) for each in pairs] == [0.62, 4.0, 4.0, 0.1]
    assert uplink_gb_to_cloud(named, CostsConfig(cloud=CloudCostConfig(uplink_gb=None))) == 4.0, "as it always was"


def test_every_default_price_says_where_it_is_from() -> None:
    for section in (EdgeCostConfig, CloudCostConfig, JudgeCostConfig):
        assert all(field.description for field in section.model_fields.values())


def test_money_has_the_digits_that_matter() -> None:
    assert [money(each) for each in (0, 0.00001, 0.00123, 0.5, 12.345)] == ["0", "< 0.0001", "0.0012", "0.5", "12.35"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    config = config_of()
    prices = PRICES.model_copy(update={"gpu_rented_hours_day": 1.0})
    escalation = config.escalation.model_copy(update={"prices": prices})
    made = Site(tmp_path, ManualClock(NOON), config.model_copy(update={"escalation": escalation}))
    yield made
    made.close()


def judged(site: Site, name: str, t: float, camera: str = "gate", seconds: float = 2.0, engine: str = "openai") -> None:
    """An alert, its question of 10 kB, and the last word on it."""
    site.raise_alert(name, t, camera=camera)
    asked = site.alerts.get(name)
    assert asked is not None
    assert asked.escalation is not None
    with site.db.transaction() as connection:
        connection.execute("UPDATE escalation SET bytes_sent = 10000, state = 'sent' WHERE alert = ?", (name,))
    body = Verdict(
        escalation=asked.escalation.id, site=asked.escalation.body.site, alert=name, decision="confirmed", reason="r",
        engine=engine, model="m", seconds=seconds, tokens_in=1000, judged_t=t,
        tokens_out=50 if engine == "openai" else 0,
    )  # fmt: skip
    assert site.alerts.apply_verdict(body, t)


def test_days_and_cameras_are_told_apart_and_old_ones_left_out(site: Site) -> None:
    for n, (t, camera) in enumerate(
        ((NOON - 40 * DAY_S, "gate"), (NOON - DAY_S, "gate"), (NOON, "gate"), (NOON, "dock"))
    ):
        judged(site, f"a{n}", t, camera)
    judged(site, "a9", NOON, seconds=3.0)
    rows = judge_work_since(site.db, NOON - 30 * DAY_S)
    today, yesterday = local_day(NOON), local_day(NOON - DAY_S)
    assert [(row.day, row.camera, row.verdicts) for row in rows] == [
        (today, "dock", 1),
        (today, "gate", 2),
        (yesterday, "gate", 1),
    ]
    assert (rows[1].judge_s, rows[1].tokens_in, rows[1].bytes) == (5.0, 2000, 20000)


def test_a_request_for_more_costs_too(site: Site) -> None:
    judged(site, "a1", NOON)
    escalation = site.alerts.get("a1").escalation.id  # type: ignore[union-attr]
    with site.db.transaction() as connection:
        connection.execute(
            """INSERT OR REPLACE INTO step (escalation, n, answer)
               VALUES (?, 0, json_object('judged_t', ?, 'seconds', ?))""",
            (escalation, NOON, 1.5),
        )
    [row] = judge_work_since(site.db, 0)
    assert (row.verdicts, row.judge_s, row.bytes) == (1, 3.5, 10000)


def test_today_costs_the_rent_of_the_hours_that_are_over(site: Site) -> None:
    judged(site, "a1", NOON)
    judged(site, "a2", NOON - DAY_S)
    begin, end = day_bounds(local_day(NOON))
    with TestClient(create_app(site.stored, site.config.for_dashboard()), base_url="http://127.0.0.1") as client:
        today, yesterday = client.get("/api/v1/costs?days=2").json()["days"]
        assert [each["day"] for each in client.get("/api/v1/costs?days=1").json()["days"]] == [today["day"]]
    assert yesterday["money"]["idle"] == pytest.approx(3.598)
    assert today["money"]["idle"] == pytest.approx(3.6 * (NOON - begin) / (end - begin) - 0.002)


def test_the_page_and_the_api_say_what_a_verdict_costs(site: Site) -> None:
    judged(site, "a1", NOON - DAY_S)
    app = create_app(site.stored, site.config.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        found = client.get("/api/v1/costs").json()
        assert found["verdicts"] == 1
        assert found["per_verdict"] == pytest.approx(found["money"]["total"])
        assert found["money"]["idle"] == pytest.approx(3.6 * (3598 / 3600))
        assert found["days"][0]["cameras"][0]["tokens_in"] == 1000
        page = client.get("/savings").text
        assert "paid for a GPU that had nothing to do" in page
        assert "3.60 for 1 verdict: 3.60 each" in page
        assert client.get("/api/v1/costs?days=0").status_code == 422


def test_the_site_beside_all_to_the_cloud(site: Site) -> None:
    judged(site, "a1", NOON)
    judged(site, "a2", NOON, seconds=30.0, engine="redetect")
    assert isinstance(site.clock, ManualClock)
    site.meter.add("", Metric(MetricName.UPTIME_S), 36_000)
    site.meter.add("gate", Metric(MetricName.EXAMINED), 500_000)
    site.meter.add("gate", Metric(MetricName.CAMERA_BYTES), 60_000_000_000)
    site.meter.add("gate", Metric(MetricName.DETECT_BYTES), 10_000_000_000)
    site.meter.add("gate", Metric(MetricName.UPLINK_BYTES), 100_000_000)
    site.meter.flush(local_day(NOON))
    site.meter.add("gate", Metric(MetricName.EXAMINED), 7)
    site.meter.flush(local_day(NOON - DAY_S))  # by an older version, which did not count its hours
    costs = CostsConfig(currency="EUR", edge=EdgeCostConfig(power_w=100, electricity_kwh=0.3))
    config = site.config.model_copy(update={"costs": costs})
    app = create_app(site.stored, config.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        everything = client.get("/api/v1/costs").json()
        found = everything["comparison"]
        days = client.get("/api/v1/costs/history").json()["days"]
        page = client.get("/savings").text
    assert (found["hours"], found["inferences"], found["received_main"]) == (10, 500_000, 50_000_000_000)
    assert found["edge"]["power"] == pytest.approx(0.3)
    assert found["all_to_cloud"]["uplink"] == pytest.approx(50 * 2.0), "only the main stream, at prices.uplink_gb"
    assert found["all_to_cloud"]["gpu"] == pytest.approx(500_000 / 360_000 * 0.44)
    assert (found["cloud"]["uplink"], found["cloud"]["gpu"]) == (pytest.approx(0.2), pytest.approx(32 / 1000))
    spent = found["edge"]["total"] + found["cloud"]["total"]
    assert found["saved"] == pytest.approx(found["all_to_cloud"]["total"] - spent)
    assert [each["site_so_far"] for each in days] == [pytest.approx(spent)], "the idle GPU included"
    assert found["per_inference"] == pytest.approx(spent / 500_000)
    assert found["tokens_million"] == pytest.approx(3.6 / (25 * 3600) * 1e6), "25 tokens a second of who writes them"
    prices = {each["key"]: each for each in found["prices"]}
    assert prices["costs.edge.power_w"]["default"] is False
    assert prices["costs.edge.device_price"] | {"source": ""} == {
        "key": "costs.edge.device_price", "value": 150, "default": True, "source": ""
    }  # fmt: skip
    assert prices["costs.cloud.uplink_gb"]["value"] == 2.0
    other, engine = everything["engines"]
    assert (other["engine"], other["gpu_s"]) == ("redetect", 30.0)
    assert (engine["engine"], engine["model"], engine["gpu_s_each"]) == ("openai", "m", 2.0)
    assert engine["money_each"] == pytest.approx(2 / 1000 + 2.0 * 1e-5 + 1000e-6 + 50e-5)
    spot, reserved = everything["offers"]
    assert (spot["total"], reserved["total"]) == (pytest.approx(10 * 0.80), pytest.approx(10 * 2.01))
    assert spot["idle_hours"] == pytest.approx(10 - 32 / 3600)
    for words in (
        "All to the cloud",
        "12 of 14 prices are defaults",
        "By engine",
        "spot beside reserved",
        "Second stream",
        "nobody would send",
        "EUR",
    ):
        assert words in page, words


def test_what_was_asked_on_the_first_day_counts_as_its_hours_do(site: Site) -> None:
    first = local_day(NOON - 29 * DAY_S)
    judged(site, "a0", day_bounds(first)[0] - 60.0)
    judged(site, "a1", day_bounds(first)[0] + 60.0, seconds=1000.0)
    site.meter.add("", Metric(MetricName.UPTIME_S), 36_000)
    site.meter.flush(first)
    with TestClient(create_app(site.stored, site.config.for_dashboard()), base_url="http://127.0.0.1") as client:
        found = client.get("/api/v1/costs").json()
        (day,) = client.get("/api/v1/costs/history").json()["days"]
    assert (found["verdicts"], found["comparison"]["hours"]) == (1, 10)
    assert found["comparison"]["cloud"]["gpu"] == pytest.approx(1.0)
    assert day["asking"] == pytest.approx(found["comparison"]["cloud"]["total"])


def test_without_hours_there_is_nothing_to_compare(site: Site) -> None:
    app = create_app(site.stored, site.config.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/api/v1/costs").json()["comparison"] is None
        assert "All to the cloud" not in client.get("/savings").text


def test_a_new_site_whose_bytes_are_free_is_not_called_a_loss(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(NOON))
    site.meter.add("", Metric(MetricName.UPTIME_S), 3600)
    site.meter.add("gate", Metric(MetricName.EXAMINED), 10)
    site.meter.add("gate", Metric(MetricName.CAMERA_BYTES), 1_000_000_000)
    site.meter.flush(local_day(NOON))
    free = site.config.model_copy(update={"costs": CostsConfig(cloud=CloudCostConfig(uplink_gb=0))})
    with TestClient(create_app(site.stored, free.for_dashboard()), base_url="http://127.0.0.1") as client:
        assert client.get("/api/v1/costs").json()["comparison"]["saved"] < 0
        page = client.get("/savings").text
    assert "would have been cheaper" not in page
    assert "The price of a GB on the uplink is 0" in page
    with TestClient(create_app(site.stored, site.config.for_dashboard()), base_url="http://127.0.0.1") as client:
        found = client.get("/api/v1/costs").json()["comparison"]
    assert found["all_to_cloud"]["uplink"] == pytest.approx(0.62), "a GB costs what it does by mobile network"
    assert found["saved"] > 0
    site.close()


def test_without_prices_the_page_asks_for_them(tmp_path: Path) -> None:
    site = Site(tmp_path, ManualClock(NOON))
    judged(site, "a1", NOON)
    app = create_app(site.stored, site.config.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert "Set your prices above" in client.get("/savings").text
    site.close()


def test_the_metrics_tell_by_version_how_often_the_cloud_disagrees(site: Site) -> None:
    judged(site, "a1", NOON)
    judged(site, "a2", NOON)
    with site.db.transaction() as connection:
        connection.execute(
            "UPDATE escalation SET body = json_set(body, '$.model', 'n@1', '$.box_version', '0.5') WHERE alert = 'a2'"
        )
        connection.execute("UPDATE verdict SET decision = 'rejected' WHERE alert = 'a2'")
    app = create_app(site.stored, site.config.for_dashboard())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        found = {each for each in samples(client.get("/metrics").text) if each[0] == "vedette_opinions"}
    assert len(found) == 2
    assert {each for each in found if ("decision", "rejected") in each[1]} == samples(
        'vedette_opinions{box_version="0.5",detector="n@1",engine="openai",model="m",prompt="",decision="rejected"} 1'
    )
