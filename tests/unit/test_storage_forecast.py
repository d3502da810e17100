"""How many days are left: measured rates, limits that share the room, and no number before there is one."""

from __future__ import annotations

import pytest

from appliance.store.quotas import WrittenHour, trimmed_rate
from appliance.store.storage_report import (
    DAY_S,
    Growth,
    RecordingPlan,
    fills_in_s,
    forecast_camera,
    forecast_site,
    reach_s,
)

GB = 1e9
INF = float("inf")


def plan(
    gb_a_day: float | None, *, taken_gb: float = 0, keep_days: float = 1000, quota_gb: float = INF
) -> RecordingPlan:
    rate = None if gb_a_day is None else gb_a_day * GB / DAY_S
    return RecordingPlan(rate=rate, bytes=taken_gb * GB, keep_s=keep_days * DAY_S, quota=quota_gb * GB)


def test_a_rate_is_not_known_before_an_hour_of_video() -> None:
    assert trimmed_rate(()) is None
    assert trimmed_rate((WrittenHour(1, 10**9, 1799), WrittenHour(2, 10**9, 1800))) is None
    assert trimmed_rate((WrittenHour(1, 10**9, 1800), WrittenHour(2, 10**9, 1800))) == pytest.approx(2e9 / 3600)


def test_a_camera_that_was_away_does_not_look_cheap_and_one_wild_hour_is_not_the_day() -> None:
    day = [WrittenHour(n, 3_600_000, 3600) for n in range(24)]
    day[3:9] = [WrittenHour(n, 360_000, 360) for n in range(3, 9)]  # away for nine tenths of six hours
    assert trimmed_rate(tuple(day)) == pytest.approx(1000)
    day[12] = WrittenHour(12, 360_000_000, 3600)  # snow, a hundred times as much
    day[2] = WrittenHour(2, 3600, 3600)  # a covered lens
    assert trimmed_rate(tuple(day)) == pytest.approx(1000)


def test_everything_grows_until_it_levels_off() -> None:
    ten_a_day = Growth(rate=10 * GB / DAY_S, bytes=0, level=INF)
    till_twenty = Growth(rate=10 * GB / DAY_S, bytes=10 * GB, level=20 * GB)
    assert fills_in_s([ten_a_day], 50 * GB) == pytest.approx(5 * DAY_S)
    assert fills_in_s([ten_a_day, till_twenty], 50 * GB) == pytest.approx(4 * DAY_S)
    assert fills_in_s([till_twenty], 50 * GB) is None
    assert fills_in_s([till_twenty], 10 * GB) == pytest.approx(DAY_S)
    assert fills_in_s([till_twenty], -1) == 0
    assert fills_in_s([Growth(rate=None, bytes=0, level=INF)], 1) is None


def test_days_left_of_the_site_and_which_limit_it_is() -> None:
    plans = {"gate": plan(30), "yard": plan(10)}
    evidence = [Growth(rate=10 * GB / DAY_S, bytes=0, level=INF)]
    found = forecast_site(plans, evidence, {"size": 500 * GB, "disk": 900 * GB})
    assert (found.outlook, found.limit, found.days_left) == ("fills", "size", pytest.approx(10))
    found = forecast_site(plans, evidence, {"size": 500 * GB, "disk": 900 * GB, "quota": 80 * GB})
    assert (found.limit, found.days_left) == ("quota", pytest.approx(2)), "of it evidence takes nothing"
    assert forecast_site({"gate": plan(10, keep_days=2)}, [], {"size": 50 * GB}).outlook == "age"
    assert forecast_site({"gate": plan(None)}, [], {"size": 50 * GB}).outlook == "unknown"
    assert forecast_site({}, [], {"size": 50 * GB}).outlook == "off"
    assert forecast_site(plans, [], {"size": -1}).days_left == 0


def test_a_full_disk_is_shared_by_age_so_all_recordings_reach_equally_far_back() -> None:
    plans = {"gate": plan(30), "yard": plan(10)}
    assert reach_s(plans, 80 * GB) == pytest.approx(2 * DAY_S)
    assert reach_s(plans | {"short": plan(10, keep_days=1)}, 90 * GB) == pytest.approx(2 * DAY_S)
    assert reach_s({"gate": plan(30, keep_days=1)}, 80 * GB) is None


def test_of_a_camera_its_own_quota_or_what_comes_first() -> None:
    site = forecast_site({"gate": plan(30)}, [], {"size": 300 * GB})
    own = forecast_camera(plan(30, taken_gb=30, quota_gb=90), site, None)
    assert (own.limit, own.days_left, own.keeps_s) == ("camera_quota", pytest.approx(2), pytest.approx(3 * DAY_S))
    shared = forecast_camera(plan(30, quota_gb=3000), site, 10 * DAY_S)
    assert (shared.limit, shared.days_left, shared.keeps_s) == ("size", pytest.approx(10), pytest.approx(10 * DAY_S))
    by_age = forecast_camera(plan(30, keep_days=2), site, 10 * DAY_S)
    assert (by_age.outlook, by_age.days_left, by_age.keeps_s) == ("age", None, pytest.approx(2 * DAY_S))
    assert forecast_camera(plan(None), site, None).outlook == "unknown"
