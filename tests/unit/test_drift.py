"""Drift: a fall of the share of right alerts is told in time, quiet sites are left alone, and the run length holds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.health.drift import (
    FALL,
    QUARTER_DAYS,
    DriftMonitor,
    DriftWatch,
    drift_of,
    rates,
    run_length,
    threshold_of,
)
from appliance.store.reviews import ReviewStore
from appliance.store.verdict_stats import DAY_S, AnsweredAlert
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
LABELS = ("person", "vehicle")


def alerts(
    rng: random.Random, right: Mapping[str, float], n: int, a_day: float, *, first: int = 0, judged: float = 1.0
) -> Iterator[AnsweredAlert]:
    """Alerts of a site whose cameras are right as often as `right` says; wrong ones score lower."""
    for i in range(first, first + n):
        camera = rng.choice(list(right))
        real = rng.random() < right[camera]
        yield AnsweredAlert(
            id=str(i), camera=camera, label=rng.choice(LABELS), t=T0 + i * DAY_S / a_day, hour=rng.randrange(24),
            model="nano 2" if first else "nano 1", score=rng.gauss(0.75 if real else 0.5, 0.12),
            person=real if rng.random() < judged else None,
        )  # fmt: skip


def cameras(rng: random.Random, n: int, low: float) -> dict[str, float]:
    return {f"cam{i}": rng.uniform(low, 0.97) for i in range(n)}


def fallen(right: Mapping[str, float]) -> dict[str, float]:
    return {camera: share * (1 - FALL) for camera, share in right.items()}


@pytest.mark.parametrize("usual", [0.6, 0.8, 0.95])
def test_the_stated_run_length_is_what_a_simulation_has(usual: float) -> None:
    rng, threshold, found, total, answers = random.Random(3), threshold_of(usual, 1500), 0, 0.0, 0
    wrong, right = math.log((1 - usual * 0.7) / (1 - usual)), math.log(0.7)
    while found < 150:
        answers += 1
        total = max(0.0, total + (right if rng.random() < usual else wrong))
        if total >= threshold:
            found, total = found + 1, 0.0
    assert run_length(usual, threshold) == pytest.approx(1500, rel=0.01)
    assert answers / found >= 1500 * 0.9, "false alarms come more often than is stated"
    assert answers / found <= 1500 * 1.9, "the threshold is far higher than it need be"


def test_of_thirty_falls_by_a_third_27_are_told_within_60_answers() -> None:
    rng, noticed = random.Random(26), 0
    for _ in range(30):
        right = cameras(rng, 3, 0.8)
        known = rng.randrange(150, 900)
        watch = DriftWatch(rates(20, 20))
        for each in alerts(rng, right, known, 20):
            watch.add(each)
        before = watch.noticed
        for each in alerts(rng, fallen(right), 60, 20, first=known):
            watch.add(each)
        noticed += watch.noticed > before
    print(f"{noticed} of 30 falls were told within 60 answers")
    assert noticed >= 27


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("quarters", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_quiet_quarters_have_at_most_one_false_alarm_each(quarters: int) -> None:
    rng, noticed = random.Random(27), 0
    for _ in range(quarters):
        a_day = rng.choice((5, 10, 20, 40))
        watch = DriftWatch(rates(a_day, a_day))
        for each in alerts(rng, cameras(rng, rng.choice((1, 3, 6)), 0.5), int(a_day * QUARTER_DAYS), a_day):
            watch.add(each)
        noticed += watch.noticed
    print(f"{noticed} false alarms in {quarters} quiet quarters")
    assert noticed <= quarters


def test_a_fall_names_what_fell_its_network_and_its_alerts_and_ends_when_it_is_over() -> None:
    rng, right = random.Random(5), {"gate": 0.9, "yard": 0.9}
    usual = list(alerts(rng, right, 400, 20))
    worse = list(alerts(rng, {"gate": 0.4, "yard": 0.9}, 100, 20, first=400))
    report = drift_of([*usual, *worse], worse[-1].t)
    fall = next(each for each in report.falls if each.scope == "camera")
    assert (fall.name, fall.now < fall.usual * 0.8) == ("gate", True)
    assert "gate" in str(fall)
    assert "nano 2" in fall.models
    wrong = {each.id: each for each in worse if each.camera == "gate" and not each.real}
    assert len(wrong.keys() & set(fall.alerts)) > 10
    assert fall.began_t <= fall.noticed_t <= worse[-1].t
    again = list(alerts(rng, right, 300, 20, first=500))
    assert not [each for each in drift_of([*usual, *worse, *again], again[-1].t).falls if each.scope == "camera"]


def test_scores_that_fall_are_told_although_nobody_judges() -> None:
    rng = random.Random(6)
    before = list(alerts(rng, {"gate": 0.95}, 300, 20, judged=0))
    after = list(alerts(rng, {"gate": 0.3}, 60, 20, first=300, judged=0))
    report = drift_of([*before, *after], after[-1].t)
    assert [(fall.scope, fall.name) for fall in report.falls] == [("scores", "gate")]
    assert report.days_to_tell is None


def test_where_half_is_judged_it_takes_twice_the_days() -> None:
    whole = list(alerts(random.Random(7), {"gate": 0.85}, 1200, 20))
    half = list(alerts(random.Random(7), {"gate": 0.85}, 1200, 20, judged=0.5))
    days, more = (drift_of(each, each[-1].t).days_to_tell for each in (whole, half))
    assert days is not None
    assert more is not None
    assert 1.6 < more / days < 2.2
    assert days * 20 < 60


def test_what_the_store_holds_becomes_a_fault_and_a_page(tmp_path: Path) -> None:
    """Alerts, reviews and the camera's network as the core and a person write them."""
    clock = ManualClock(T0)
    site = Site(tmp_path, clock)
    site.live("gate", T0)
    rng = random.Random(8)
    for i in range(160):
        clock.advance(600)
        site.raise_alert(f"a{i}", clock.now(), ask=False)
        is_right = rng.random() < (0.95 if i < 110 else 0.3)
        ReviewStore(site.db).review([f"a{i}"], "reviewed" if is_right else "false_alarm", clock.now())
    monitor = DriftMonitor(site.db)
    monitor.report()
    assert "alerts on this site are right less often" in monitor.fault
    assert "network vedette-nano" in monitor.fault
    held = monitor.report().alerts
    assert (len({id(each.camera) for each in held}), len({id(each.model) for each in held})) == (1, 1), (
        "held for months"
    )
    with site.client() as client:
        report = client.get("/api/v1/agreement").json()
        page = client.get("/agreement").text
    assert [each["judged"] for each in report["groups"] if each["by"] == "network"] == [160]
    falls = {fall["scope"]: fall for fall in report["falls"]}
    assert falls["site"]["alerts"]
    newest = falls["site"]["alerts"][0]["id"]
    assert f'id="a-{newest}"' in page
    ReviewStore(site.db).delete([newest], "", clock.now())
    with site.client() as client:
        assert f'id="a-{newest}"' not in client.get("/agreement").text, "a deleted alert is in no list"
    site.close()
