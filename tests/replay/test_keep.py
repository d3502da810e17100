"""From life to bench: an alert of a box that lived through a film is kept, and its scenario proves changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.clock import local_weekday_minute
from appliance.base.errors import EvidenceError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError
from appliance.config import Schedule
from appliance.detect.detector import ObjectDetector
from appliance.media.decoder import DecodedFrame
from appliance.replay.footage import ClipSource
from appliance.scenario import scenario_loader
from appliance.scenario import scenario_runner as scenario_run
from appliance.scenario.scenario_exporter import KeepOptions, ScenarioExporter
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache
from appliance.store.retention import Retention
from tests.support import small_disk as mounted
from tests.support.gate_site import FIRST, GATE, SECOND, THIRD, config_of, live
from tests.support.recorded_site import LIFE_T0, Life
from tests.support.render_family import Once, our_eye

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def eye() -> Once:
    return our_eye()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, eye: Once) -> Path:
    return live(tmp_path_factory.mktemp("lived"), eye)


@pytest.fixture
def life(lived: Path, tmp_path: Path, eye: ObjectDetector) -> Iterator[Life]:
    root = tmp_path / "data"
    shutil.copytree(lived, root)
    life = Life(config_of(root), eye)
    life.clock.advance(200)
    yield life
    life.db.close()


def keeper_of(life: Life, **more: Any) -> ScenarioExporter:
    return ScenarioExporter(
        life.root, life.config.for_decisions(), life.config.storage.disk_free_min_mb, life.clock, **more
    )


def scenario_of(folder: Path) -> Path:
    (file,) = folder.glob("*.scenario.yaml")
    return file


def prove(folder: Path, eye: ObjectDetector, change: Callable[[dict[str, Any]], None] | None = None) -> ScenarioResult:
    """Run the scenario in `folder` as it was kept, or with its settings changed."""
    file = scenario_of(folder)
    if change is not None:
        data = yaml.safe_load(file.read_text())
        change(data)
        file = file.with_name("changed.scenario.yaml")
        file.write_text(yaml.safe_dump(data))
    verdict = scenario_run.run_scenario(scenario_loader.load_scenario(file), DetectorCache(load=lambda _: eye))
    if change is not None:
        file.unlink()
    return verdict


def raise_the_thresholds(data: dict[str, Any]) -> None:
    for rule in data["cameras"]["gate"]["rules"]:
        rule["score_min"] = 0.99


def move_the_yard_away(data: dict[str, Any]) -> None:
    data["cameras"]["gate"]["zones"]["yard"] = [[0, 0], [0.1, 0], [0.1, 0.1], [0, 0.1]]


@pytest.mark.parametrize("which", [FIRST, THIRD])
def test_a_right_alert_is_kept_and_comes_again(life: Life, eye: ObjectDetector, which: int) -> None:
    alert = life.all()[which]
    life.review(alert, "reviewed")
    verdict = prove(keeper_of(life).keep(alert.id, KeepOptions()).folder, eye)
    assert (verdict.status, verdict.text) == ("passed", "")
    assert len(verdict.judgement.hits) >= 2


def test_a_kept_alert_passes_as_it_is_and_fails_with_a_wrong_setting(life: Life, eye: ObjectDetector) -> None:
    alert = life.all()[SECOND]
    assert alert.rules == ("loiterer", "vehicle")
    life.review(alert, "reviewed")
    kept = keeper_of(life).keep(alert.id, KeepOptions())
    verdict = prove(kept.folder, eye)
    assert (verdict.status, verdict.text) == ("passed", "")
    for change, missed in ((raise_the_thresholds, {"loiterer", "vehicle"}), (move_the_yard_away, {"vehicle"})):
        failed = prove(kept.folder, eye, change)
        assert failed.status == "failed"
        assert {fault.kind for fault in failed.failures} == {"miss"}
        assert {rule for fault in failed.failures for rule in alert.rules if f"rule {rule}" in fault.title} == missed


def test_a_false_alarm_fails_until_the_threshold_is_raised(life: Life, eye: ObjectDetector) -> None:
    alert = life.all()[SECOND]
    life.review(alert, "false_alarm")
    kept = keeper_of(life).keep(alert.id, KeepOptions(name="shadows"))
    assert (kept.name, kept.card and kept.card.truth) == ("shadows", "false")
    today = prove(kept.folder, eye)
    assert {fault.kind for fault in today.failures} == {"false alarm"}
    assert prove(kept.folder, eye, raise_the_thresholds).status == "passed"


def test_times_count_from_the_first_frame_of_the_clip(life: Life) -> None:
    """The film began at LIFE_T0, so what happens at 9.4 s of it happens in the clip as much later as that begins."""
    alert = life.all()[SECOND]
    life.review(alert, "reviewed")
    kept = keeper_of(life).keep(alert.id, KeepOptions())
    assert kept.card is not None
    data = yaml.safe_load(scenario_of(kept.folder).read_text())
    detail = life.alerts.get(alert.id)
    assert detail is not None
    ats = [entry["at"] for entry in data["expect"] if entry["rule"] in alert.rules]
    assert ats == pytest.approx([event.t - kept.card.t_start for event in detail.events], abs=0.011)
    begin = kept.card.t_start - LIFE_T0
    shown = dict(pictures(kept.folder / data["clip"], lambda n, t: n % 20 == 0))
    same = dict(pictures(GATE, lambda n, t: any(abs(t - begin - each) < 0.002 for each in shown)))
    assert min(shown) == 0
    assert begin <= detail.events[0].t - LIFE_T0 - 15 - 3, "from before the stay of 15 s began, and the pre-roll"
    assert len(shown) == len(same) >= 10
    for one, other in zip(shown.values(), same.values(), strict=True):
        assert (one == other).all(), "packets are copied, not encoded again"


def pictures(path: Path, is_wanted: Callable[[int, float], bool]) -> Iterator[tuple[float, Any]]:
    """Yield the wanted pictures, by number and time: to convert one takes longer than to decode it."""
    for scene in ClipSource(path, "gate").play():
        if isinstance(scene, DecodedFrame) and is_wanted(scene.index, scene.t):
            yield scene.t, scene.av_frame.to_ndarray(format="gray")


def test_a_complete_clip_needs_every_alert_in_it_reviewed_and_then_allows_nothing_else(
    life: Life, eye: ObjectDetector
) -> None:
    first, second = life.all()[:2]
    life.review(second, "reviewed")
    keeper = keeper_of(life)
    with pytest.raises(
        PreconditionError, match=f"alert {first.id} of this camera is in the same clip and nobody has reviewed it"
    ):
        keeper.keep(second.id, KeepOptions(complete=True))
    life.review(first, "reviewed")
    kept = keeper.keep(second.id, KeepOptions(complete=True))
    data = yaml.safe_load(scenario_of(kept.folder).read_text())
    assert data["others"] == "never"
    may = [entry for entry in data["expect"] if entry.get("count") == {"min": 0, "max": 1}]
    assert {entry["note"] for entry in may} == {"was there already when the clip begins"}
    verdict = prove(kept.folder, eye)
    assert (verdict.status, verdict.text) == ("passed", "")

    def take_out_who_was_there(data: dict[str, Any]) -> None:
        data["expect"] = [entry for entry in data["expect"] if "count" not in entry]

    assert {fault.kind for fault in prove(kept.folder, eye, take_out_who_was_there).failures} == {"false alarm"}


def test_without_a_review_there_is_no_truth(life: Life) -> None:
    alert, keeper = life.all()[FIRST], keeper_of(life)
    with pytest.raises(PreconditionError, match="nobody has reviewed this alert"):
        keeper.keep(alert.id, KeepOptions())
    assert not keeper.store.folder.exists()
    kept = keeper.keep(alert.id, KeepOptions(name="said-here", truth="false")).card
    assert kept is not None
    assert (kept.truth, kept.expect) == ("false", 0)
    life.review(alert, "reviewed")
    with pytest.raises(PreconditionError, match="was reviewed as right: take that review back"):
        keeper.keep(alert.id, KeepOptions(name="otherwise", truth="false"))


@pytest.mark.parametrize("name", ["../up", "a/b", "/etc", ".hidden", "Upper", "x" * 65, "two words", "é", "a\n", "-a"])
def test_a_name_is_a_name_and_no_path(life: Life, name: str) -> None:
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    with pytest.raises(UsageError, match="is no name for a scenario"):
        keeper_of(life).keep(alert.id, KeepOptions(name=name))
    assert not (life.root / "scenarios").exists()


def test_what_is_kept_is_not_written_over(life: Life) -> None:
    alert, keeper = life.all()[SECOND], keeper_of(life)
    life.review(alert, "reviewed")
    kept = keeper.keep(alert.id, KeepOptions())
    assert kept.name == f"gate-{datetime.fromtimestamp(alert.t_start, timezone.utc):%Y%m%d-%H%M%S}"
    assert keeper.find(alert.id) == kept
    before = {path.name: path.stat().st_mtime_ns for path in kept.folder.iterdir()}
    with pytest.raises(PreconditionError, match=f"kept as `{kept.name}` already"):
        keeper.keep(alert.id, KeepOptions())
    with pytest.raises(PreconditionError, match="choose another name, or delete it"):
        keeper.keep(alert.id, KeepOptions(name=kept.name))
    assert {path.name: path.stat().st_mtime_ns for path in kept.folder.iterdir()} == before
    assert keeper.keep(alert.id, KeepOptions(name="once-more")).folder.is_dir()


def test_neither_the_quota_nor_age_touches_it_and_it_needs_no_recording(life: Life, eye: ObjectDetector) -> None:
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    kept = keeper_of(life).keep(alert.id, KeepOptions())
    life.clock.advance(10 * 365 * 86400)
    storage = life.config.storage.model_copy(update={"size_max_gb": 1e-9, "keep_hours": 0.001, "evidence_days": 0.001})
    retention = Retention(life.db, life.root, storage, free_bytes=lambda _: 0)
    retention.run_once()
    life.clock.advance(4000)
    report = retention.run_once()
    assert report.segments == 0
    assert not list((life.root / "segments").rglob("*.mp4"))
    assert not list((life.root / "evidence").rglob("*.mp4"))
    assert keeper_of(life).store.all() == [kept]
    assert prove(kept.folder, eye).status == "passed"


def test_when_the_recording_is_gone_the_alert_s_own_clip_serves_and_then_nothing_does(
    life: Life, eye: ObjectDetector
) -> None:
    alert, stay, keeper = life.all()[THIRD], life.all()[SECOND], keeper_of(life)
    for each in (alert, stay):
        life.review(each, "reviewed")
    shutil.rmtree(life.root / "segments")
    with pytest.raises(EvidenceError, match="does not reach from before the first event to the last"):
        keeper.keep(stay.id, KeepOptions())  # its clip does not show the 15 s before
    kept = keeper.keep(alert.id, KeepOptions(name="from-its-clip"))
    assert prove(kept.folder, eye).status == "passed"
    shutil.rmtree(life.root / "evidence")
    with pytest.raises(EvidenceError, match="cannot be kept any more: neither the recording"):
        keeper.keep(alert.id, KeepOptions(name="too-late"))
    assert [path.name for path in keeper.store.folder.iterdir()] == ["from-its-clip"]


def test_a_rule_that_is_gone_cannot_be_expected(life: Life) -> None:
    alert = life.all()[SECOND]
    life.review(alert, "reviewed")
    gate = life.config.cameras["gate"]
    fewer = gate.model_copy(update={"rules": gate.rules[:2]})
    life.config = life.config.model_copy(update={"cameras": {"gate": fewer}})
    with pytest.raises(PreconditionError, match=r"no rule `vehicle` any more \(there is: intruder, loiterer\)"):
        keeper_of(life).keep(alert.id, KeepOptions())


def test_rules_that_were_asleep_do_not_wake_in_the_scenario(life: Life) -> None:
    """Alerts of 11 o'clock UTC; a rule of another hour would fire in the clip, where every rule is armed."""
    gate = life.config.cameras["gate"]
    hour = (local_weekday_minute(LIFE_T0)[1] // 60 + 5) % 24
    asleep = gate.rules[0].model_copy(
        update={"name": "night", "schedule": Schedule(hours=(f"{hour:02}:00-{hour:02}:30",))}
    )
    woken = gate.model_copy(update={"rules": (*gate.rules, asleep)})
    life.config = life.config.model_copy(update={"cameras": {"gate": woken}})
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    file = scenario_of(keeper_of(life).keep(alert.id, KeepOptions()).folder)
    rules = yaml.safe_load(file.read_text())["cameras"]["gate"]["rules"]
    assert [rule["name"] for rule in rules] == ["intruder", "loiterer", "vehicle"]


def test_a_note_is_read_as_it_was_written_and_no_secret_is_in_it(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "not to be seen")
    note = 'for ${HOME}, ${NOBODY} and $5: "quoted"\n# no comment'
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    kept = keeper_of(life).keep(alert.id, KeepOptions(note=note))
    assert scenario_loader.load_scenario(scenario_of(kept.folder)).scenario.note == note
    assert all(b"hunter2" not in path.read_bytes() for path in kept.folder.iterdir())


def test_a_disk_that_is_full_keeps_nothing_and_says_so(life: Life, small_disk: Path) -> None:
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    with pytest.raises(DiskWriteError, match="make room first"):
        keeper_of(life, free_bytes=lambda _: 1000).keep(alert.id, KeepOptions())
    keeper = keeper_of(life, folder=small_disk / "scenarios", free_bytes=lambda _: 1 << 40)
    with pytest.raises(DiskWriteError, match="No space left"):
        keeper.keep(alert.id, KeepOptions())
    assert list((small_disk / "scenarios").iterdir()) == []


def test_a_kill_in_the_middle_leaves_nothing_that_passes_for_a_scenario(life: Life, tmp_path: Path) -> None:
    alert = life.all()[FIRST]
    life.review(alert, "reviewed")
    site = site_file(life, tmp_path)
    child = [sys.executable, "-c", KILLED, "scenario", "keep", alert.id, "--config", str(site), "--name", "walk"]
    assert subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    keeper = keeper_of(life)
    (left,) = keeper.store.folder.iterdir()
    assert left.name.startswith(".walk.")
    assert {path.suffix for path in left.iterdir()} == {".mp4", ".yaml", ".json"}
    assert keeper.store.all() == []
    with pytest.raises(UsageError, match=r"no \*\.scenario\.yaml in"):
        scenario_loader.find_scenarios([keeper.store.folder])
    os.utime(left, (life.clock.now() - 7200, life.clock.now() - 7200))
    keeper.keep(alert.id, KeepOptions(name="walk"))
    assert [path.name for path in keeper.store.folder.iterdir()] == ["walk"]


KILLED = """
import os, pathlib, signal, sys
pathlib.Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from appliance.__main__ import main
main(sys.argv[1:])
"""


def site_file(life: Life, folder: Path) -> Path:
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(life.config.model_dump(mode="json", exclude_none=True)))
    return file


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted.small_disk(tmp_path / "small", "256k") as place:
        yield place


def test_on_the_command_line(life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alert, site = life.all()[FIRST], str(site_file(life, tmp_path))
    assert main(["scenario", "keep", alert.id, "--config", site]) == 2
    assert "nobody has reviewed this alert" in capsys.readouterr().err
    assert main(["scenario", "keep", "nobody", "--config", site]) == 2
    words = ["scenario", "keep", alert.id, "--config", site, "--as", "right", "--name", "walk", "--run"]
    assert main([*words, "--to", str(tmp_path / "bench")]) == 0
    told = capsys.readouterr().out
    assert f"vedette scenario run {tmp_path / 'bench' / 'walk'}" in told
    assert "It shows people: personal data" in told
    assert "1 passed" in told
    assert main(["scenario", "keep", alert.id, "--config", site, "--as", "false", "--name", "no", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]["never"] == 1
    assert main([*words[:-2], "again", "--run", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["name"], one["kept"]["truth"], one["passed"], len(one["scenarios"])) == ("again", "right", True, 1)
    for note in ("a\0b", "caf\udce9"):  # the latter as Python reads a terminal that is not in UTF-8
        assert main([*words[:-2], "noted", "--note", note]) == 2
        assert "the note has characters that no text file holds" in capsys.readouterr().err
    assert main(["scenario", "delete", "again", "--config", site]) == 0
    capsys.readouterr()
    assert main(["scenario", "list", "--config", site, "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["scenarios"]] == ["no"]
    assert main(["scenario", "list", "--config", site]) == 0
    assert "false alarm" in capsys.readouterr().out
    assert main(["scenario", "delete", "no", "--config", site]) == 0
    assert main(["scenario", "delete", "no", "--config", site]) == 2
    assert main(["scenario", "list", "--config", site]) == 0
    assert "No scenario is kept" in capsys.readouterr().out


def test_what_was_put_there_by_hand_is_listed_and_left_alone(life: Life) -> None:
    keeper = keeper_of(life)
    foreign = keeper.store.folder / "by-hand"
    foreign.mkdir(parents=True)
    (foreign / "x.scenario.yaml").write_text("clip: x.mp4")
    (keeper.store.folder / "link").symlink_to("/etc")
    assert [(each.name, each.card) for each in keeper.store.all()] == [("by-hand", None)]
    with pytest.raises(PreconditionError, match="delete it by hand"):
        keeper.store.delete("by-hand")
    for name in ("link", "..", "", ".", "by-hand/x"):
        assert not keeper.store.delete(name)
