"""benchmarks/ingest and the soak as they are run, briefly: the whole harness with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import soak, uplink_share
from benchmarks.ingest import __main__ as ingest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_busy_camera_is_measured_beside_the_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "figures.json"
    words = ["--scenes", "busy", "--lines", "360", "--cameras", "1", "--seconds", "6", "--settle", "10", "--together"]
    assert ingest.main([*words, "--footage", str(tmp_path / "footage"), "--json", str(to)]) == 0
    ours, floor = json.loads(to.read_text())["rows"]
    assert (ours["who"], floor["who"]) == (ingest.OURS, ingest.FLOOR)
    for row in (ours, floor):
        assert row["cpu_s"] > row["detector_s"] > 0
        assert row["looks"] > 0
        assert row["visits_found"] >= 1
        assert 20 < row["pss_mb"] < 1000
    assert "x (a) everything" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_minute_of_misbehaving_cameras_leaves_nothing_unnoticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "soak.json"
    words = ["--hours", str(60 / 3600), "--cameras", "2", "--lines", "360", "--scene", "quiet", "--seed", "5"]
    assert soak.main([*words, "--footage", str(tmp_path / "footage"), "--json", str(to)]) == 0, capsys.readouterr().out
    made = json.loads(to.read_text())
    assert {fault["kind"] for fault in made["faults"]} == {"stall", "hang"}
    assert len(made["verdict"]["noticed_s"]) == 2
    assert len(made["glances"]) > 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_site_with_a_visitor_stays_within_its_share_of_the_uplink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "share.json"
    words = ["--cases", "mixed", "--lines", "360", "--cameras", "1", "--seconds", "35"]
    uplink_share.main([*words, "--footage", str(tmp_path / "footage"), "--json", str(to)])
    (totals,) = json.loads(to.read_text())
    assert totals["incidents"] == 1, capsys.readouterr().out
    assert (totals["questions"], totals["settled"]) == (1, 1)
    assert 0 < totals["sent"] == sum(totals["by_kind"].values()) < totals["received"]
    assert totals["kernel"] is None or totals["kernel"] <= totals["sent"] <= 1.01 * totals["kernel"]
