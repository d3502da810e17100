"""A replay that was killed goes on where it was, and leaves the bytes of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from appliance.base.clock import ManualClock
from appliance.base.errors import SourceError, UsageError
from appliance.config import SiteConfig
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_result import ReplayResult
from appliance.replay.replay_resume import DetectionJournal, open_log
from appliance.replay.replay_runner import play
from appliance.types import Detections
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.tiny_networks import Thing, yolo
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


class Killed(Exception):
    """Stands for SIGKILL inside a test's own process."""


class Mortal(BrightBlock):
    """Counts its looks, leaves the first `fails` unanswered, and dies at one of them."""

    def __init__(self, dies_at: int | None = None, *, fails: int = 1) -> None:
        super().__init__(fails)
        self.looks = 0
        self._dies_at = dies_at

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        if self.looks == self._dies_at:
            raise Killed
        self.looks += 1
        return super().detect(images)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "walk.mp4", 6, lambda t: 0.1 + 0.25 * min(t, 2.4))


def run(
    clip: Path, log: Path, detector: Mortal, *, resume: bool = False, config: SiteConfig | None = None
) -> tuple[ReplayResult, ...]:
    config = config or site()
    plan = ReplayPlan((clip_input(clip, config.for_decisions(), "gate", detector),), config.for_decisions(), detector)
    with open_log(log, plan.header(), resume=resume) as file:
        if file.finished is not None:
            return file.finished
        results = play(plan, file.sink, ReplayOptions(ManualClock(), detections=file.detections))
        file.complete()
        return results


@pytest.fixture
def whole(clip: Path, tmp_path: Path) -> bytes:
    run(clip, tmp_path / "whole.jsonl", Mortal())
    return (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("dies_at", [0, 1, 13, 29])
def test_what_was_examined_is_not_examined_again(clip: Path, tmp_path: Path, whole: bytes, dies_at: int) -> None:
    log = tmp_path / "x.jsonl"
    with pytest.raises(Killed):
        run(clip, log, Mortal(dies_at))
    assert whole.startswith(log.read_bytes())
    again = Mortal(fails=1 if dies_at == 0 else 0)  # the look that was left unanswered is remembered as such
    (result,) = run(clip, log, again, resume=True)
    assert log.read_bytes() == whole
    assert (again.looks, result.cost.remembered) == (30 - dies_at, dies_at)
    assert not log.with_name("x.jsonl.looks").exists()


def test_torn_last_lines_of_both_files_are_dropped(clip: Path, tmp_path: Path, whole: bytes) -> None:
    log, frames = tmp_path / "x.jsonl", tmp_path / "x.jsonl.looks"
    with pytest.raises(Killed):
        run(clip, log, Mortal(20))
    log.write_bytes(log.read_bytes()[:-7])
    frames.write_bytes(frames.read_bytes()[:-9])
    run(clip, log, again := Mortal(fails=0), resume=True)
    assert again.looks == 11
    assert log.read_bytes() == whole


def test_without_the_journal_frames_are_examined_again_and_lines_checked(
    clip: Path, tmp_path: Path, whole: bytes
) -> None:
    log = tmp_path / "x.jsonl"
    with pytest.raises(Killed):
        run(clip, log, Mortal(20))
    (tmp_path / "x.jsonl.looks").unlink()
    run(clip, log, again := Mortal(), resume=True)
    assert again.looks == 30
    assert log.read_bytes() == whole


def test_a_log_with_other_lines_is_not_continued(clip: Path, tmp_path: Path) -> None:
    log = tmp_path / "x.jsonl"
    with pytest.raises(Killed):
        run(clip, log, Mortal(20))
    text = log.read_bytes()
    log.write_bytes(text.replace(b'"frame":8,', b'"frame":9,', 1))
    with pytest.raises(UsageError, match=r"x\.jsonl: line \d+ is not what this replay finds"):
        run(clip, log, Mortal(), resume=True)


def test_other_settings_are_refused_in_words_and_nothing_is_touched(clip: Path, tmp_path: Path) -> None:
    log = tmp_path / "x.jsonl"
    with pytest.raises(Killed):
        run(clip, log, Mortal(20))
    before = log.read_bytes(), (tmp_path / "x.jsonl.looks").read_bytes()
    config = site(detect={"fps": 2}, zones={"yard": [[0.6, 0], [1, 0], [1, 1], [0.6, 1]]})
    with pytest.raises(UsageError, match=r"gate: detect\.fps 5 → 2; .*leave --resume away"):
        run(clip, log, Mortal(), resume=True, config=config)
    assert (log.read_bytes(), (tmp_path / "x.jsonl.looks").read_bytes()) == before


def test_a_finished_log_is_read_and_not_replayed(clip: Path, tmp_path: Path) -> None:
    log = tmp_path / "x.jsonl"
    (first,) = run(clip, log, Mortal())
    (again,) = run(clip, log, never := Mortal(), resume=True)
    assert never.looks == 0
    for name in ("events", "alerts", "routes", "end", "boxes", "tracks", "size"):
        assert getattr(first, name) == getattr(again, name), name


def test_what_a_kill_left_beside_a_finished_log_is_removed(clip: Path, tmp_path: Path) -> None:
    log, frames = tmp_path / "x.jsonl", tmp_path / "x.jsonl.looks"
    run(clip, log, Mortal())
    frames.write_bytes(b"killed before it was removed\n")
    run(clip, log, Mortal(), resume=True)
    assert not frames.exists()


@pytest.mark.parametrize("found", ["A", "AAAAAAAA" * 5])
def test_a_journal_that_holds_no_detections_is_damaged(clip: Path, tmp_path: Path, found: str) -> None:
    log, frames = tmp_path / "x.jsonl", tmp_path / "x.jsonl.looks"
    with pytest.raises(Killed):
        run(clip, log, Mortal(20))
    head, first, *rest = frames.read_bytes().splitlines(keepends=True)
    row = {**json.loads(first), "found": found}
    frames.write_bytes(b"".join([head, json.dumps(row).encode() + b"\n", *rest]))
    with pytest.raises(UsageError, match=r"x\.jsonl\.looks is damaged; remove it"):
        run(clip, log, Mortal(fails=0), resume=True)


def test_footage_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    """An empty log beside those of other clips would keep their whole folder from being compared."""
    clip = tmp_path / "empty.mp4"
    clip.write_bytes(b"")
    with pytest.raises(SourceError, match="is not a video that can be read"):
        run(clip, tmp_path / "x.jsonl", Mortal())
    assert [each.name for each in tmp_path.iterdir()] == ["empty.mp4"]


def test_detections_come_back_bit_for_bit(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    found = Detections(
        random.random((5, 4), np.float32), random.random(5, np.float32), random.integers(0, 80, 5).astype(np.int32)
    )
    path = tmp_path / "x.looks"
    frames = DetectionJournal(path, "d", resume=False)
    for frame, each in enumerate((found, Detections.empty(), None)):
        frames.append("gate", frame, each)
    frames.close()
    frames = DetectionJournal(path, "d", resume=True)
    first, second, third = (frames.read_next("gate", frame) for frame in range(3))
    assert first is not None
    assert second is not None
    assert third is None
    for name in ("boxes", "scores", "class_ids"):
        assert getattr(first, name).tobytes() == getattr(found, name).tobytes()
        assert getattr(first, name).dtype == getattr(found, name).dtype
    assert (len(second), second.boxes.shape, frames.has_next) == (0, (0, 4), False)
    frames.close()


@pytest.mark.timeout(300)
def test_a_process_that_was_killed_outright_continues(tmp_path: Path) -> None:
    """SIGKILL to the command itself, in the middle, at a pace that makes the middle easy to hit."""
    block_clip(tmp_path / "walk.mp4", 4, lambda t: 0.1 + 0.25 * min(t, 2.4))
    network = yolo(tmp_path / "n.onnx", [Thing((16, 16, 80, 112), 0.9, 0)], ["person"])
    config = site(str(network), detect={"fps": 10}).model_dump(
        mode="json", include={"cameras", "detector"}, exclude_none=True
    )
    config["detector"]["score_min"] = 0.05  # it scores by how red a picture is, and these are dark
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "appliance", "replay", "--config", "site.yaml", "walk.mp4", "--json", "--log"]
    where = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE}
    log = tmp_path / "killed.jsonl"
    with subprocess.Popen([*command, log.name, "--speed", "0.5"], **where) as process:  # type: ignore[call-overload]
        until(lambda: log.exists() and log.read_bytes().count(b"\n") > 12, seconds=60)
        process.send_signal(signal.SIGKILL)
    left = log.read_bytes()
    assert b'"type":"end"' not in left
    done = subprocess.run([*command, log.name, "--resume"], check=True, **where)  # type: ignore[call-overload]
    assert json.loads(done.stdout)["remembered"] >= 12
    subprocess.run([*command, "whole.jsonl"], check=True, **where)  # type: ignore[call-overload]
    assert log.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert log.read_bytes().startswith(left[: left.rindex(b"\n") + 1])
