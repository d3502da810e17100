"""The arithmetic of savings: exact where the kernel counted, honest where nothing was saved."""

from __future__ import annotations

import pytest

from appliance.store.meter import MeterTotal, Metric
from appliance.store.savings import COUNTERFACTUAL, account_for


def row(camera: str, kind: str, amount: int) -> MeterTotal:
    metric = Metric.parse(kind)
    assert metric is not None
    return MeterTotal(camera, metric, amount)


ROWS = [
    row("gate", "camera_bytes", 1_000_000),
    row("gate", "uplink_bytes", 30_000),
    row("gate", "uplink_bytes_facts", 2_000),
    row("gate", "uplink_bytes_frame", 28_000),
    row("yard", "camera_bytes", 500_000),
    row("yard", "camera_bytes_estimated", 500_000),
    row("yard", "packets", 7),
    row("", "uplink_bytes", 10_000),
]


def test_what_came_in_against_what_went_up() -> None:
    result = account_for(ROWS)
    total = result.total
    assert (total.camera_bytes, total.uplink_bytes, total.saved_bytes) == (2_000_000, 40_000, 1_960_000)
    assert total.share_sent == pytest.approx(0.02)
    assert result.overhead_bytes == 10_000
    assert result.counterfactual == COUNTERFACTUAL == "the main stream of every camera sent to the cloud"


def test_each_camera_has_its_account() -> None:
    gate, yard = account_for(ROWS).cameras
    assert (gate.camera, gate.account.exact, gate.account.uplink_bytes) == ("gate", True, 30_000)
    assert (yard.camera, yard.account.exact, yard.account.camera_bytes) == ("yard", False, 1_000_000)
    assert yard.account.share_sent == 0


def test_bytes_by_purpose_add_up_to_what_was_sent() -> None:
    total = account_for(ROWS).total
    kinds = {each.what: each.bytes for each in total.uplink_kinds}
    assert kinds == {"facts": 2_000, "frame": 28_000, "other": 10_000}
    assert sum(kinds.values()) == total.uplink_bytes


def test_a_second_stream_is_received_and_would_not_have_been_sent() -> None:
    result = account_for([*ROWS, row("gate", "detect_bytes", 200_000)])
    gate = result.cameras[0].account
    assert (gate.camera_bytes, gate.detect_bytes, gate.main_bytes) == (1_000_000, 200_000, 800_000)
    assert (gate.saved_bytes, gate.share_sent) == (770_000, pytest.approx(30_000 / 800_000))
    assert (result.total.camera_bytes, result.total.main_bytes) == (2_000_000, 1_800_000)


def test_one_estimated_camera_makes_the_total_an_estimate() -> None:
    assert not account_for(ROWS).total.exact
    assert account_for(ROWS[:4]).total.exact


def test_a_loss_is_shown_as_a_loss() -> None:
    total = account_for([row("gate", "camera_bytes", 10), row("gate", "uplink_bytes", 25)]).total
    assert total.saved_bytes == -15
    assert total.share_sent == 2.5


def test_nothing_received_is_no_division_by_zero() -> None:
    result = account_for([], cameras=["gate"])
    assert result.total.share_sent is None
    assert [each.camera for each in result.cameras] == ["gate"]
    assert result.total.exact
