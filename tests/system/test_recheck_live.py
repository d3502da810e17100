"""A box without a cloud, as a person runs it: its alert is looked at once more, by the ingest process, by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.appliance_process import ApplianceProcess
from tests.support.waiting import until

YARD = Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4"
SITE = f"""
cameras:
  yard:
    url: file:{YARD}
    loop: false
    zones: {{all: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: somebody, kind: enter, zone: all, labels: [person]}}]
alerts: {{length_max_s: 10}}
escalation: {{router: {{load_max: 1000}}}}
second_look: {{detector_load_max: 1.0}}
"""


@pytest.mark.slow
@pytest.mark.timeout(500)  # until() waits for 360 s on a busy machine: its words are to be heard
def test_an_appliance_without_a_cloud_rechecks(tmp_path: Path) -> None:
    with ApplianceProcess(tmp_path, SITE) as box:
        until(lambda: any(each["edge"] for each in box.get("/alerts")["alerts"]), 90)
        (alert,) = [each for each in box.get("/alerts")["alerts"] if each["edge"]][-1:]
        assert (alert["edge"], alert["standing"], alert["verdict"]) == ("rechecked", "edge", None)
        found = box.get(f"/alerts/{alert['id']}")["second_look"]
        assert (found["state"], found["why"]) == ("judged", "this site asks no cloud")
        assert "found the person again" in found["verdict"]["reason"]
        page = box.page(f"/alerts/{alert['id']}")
        assert found["verdict"]["reason"] in page
        assert 'vedette_second_looks_total{camera="yard",outcome="rechecked"}' in box.page("/metrics")
