"""A running appliance keeps an alert over HTTP, and the command line proves changes on it while it goes on running."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.__main__ import main
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.red_camera import red_appliance, red_clip
from tests.servers.rtsp import FaultyRtspServer
from tests.support.waiting import until


@pytest.fixture
def box(tmp_path: Path) -> Iterator[ApplianceProcess]:
    film = red_clip(tmp_path / "film.mp4")
    with FaultyRtspServer.in_thread({"gate": film}) as cameras:
        running = red_appliance(tmp_path, cameras.url("gate"), "nats://127.0.0.1:9")
        config = running.config.read_text()
        running.config.write_text(config.replace("dir:", "disk_free_min_mb: 0, dir:"))
        with running:
            yield running


def ended(box: ApplianceProcess) -> list[dict[str, Any]]:
    return [each for each in box.get("/alerts")["alerts"] if each["t_end"] is not None and each["clip"]]


def post(box: ApplianceProcess, path: str, body: object) -> Any:
    request = urllib.request.Request(
        box.url + f"/api/v1{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_from_a_living_appliance_to_the_bench_and_back(box: ApplianceProcess, tmp_path: Path) -> None:
    until(lambda: ended(box), 60)
    alert = ended(box)[-1]["id"]
    with pytest.raises(urllib.error.HTTPError, match="409"):
        post(box, f"/alerts/{alert}/keep", {})
    post(box, f"/alerts/{alert}/review", {"review": "reviewed"})
    until(lambda: kept(box, alert), 20, every_s=0.5)
    folder = Path(box.get("/scenarios")["scenarios"][0]["folder"])
    assert folder == box.folder / "data" / "scenarios" / "visit"
    assert main(["scenario", "run", str(folder)]) == 0
    file = folder / "visit.scenario.yaml"
    file.write_text(file.read_text().replace("score_min: 0.5", "score_min: 0.95"))
    assert main(["scenario", "run", str(folder)]) == 1
    words = ["export", "--config", str(box.config), "--format", "yolo", "--to", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    assert list((tmp_path / "out" / "images").rglob("*.jpg"))
    assert main(["scenario", "keep", alert, "--config", str(box.config), "--name", "again", "--run"]) == 0
    assert main(["scenario", "delete", "visit", "--config", str(box.config)]) == 0
    assert [each["name"] for each in box.get("/scenarios")["scenarios"]] == ["again"]
    assert box.stop() == 0


def kept(box: ApplianceProcess, alert: str) -> bool:
    try:
        post(box, f"/alerts/{alert}/keep", {"name": "visit"})
    except urllib.error.HTTPError as error:
        told = error.read()
    else:
        return True
    assert b"still being recorded" in told
    return False
