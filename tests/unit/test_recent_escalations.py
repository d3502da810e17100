"""A core that is started anew knows what the cloud was asked about: what stands there still is not asked about."""

from __future__ import annotations

from pathlib import Path

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.types import Box, StreamHeader, TrackedObject
from tests.support.core_harness import CoreHarness, site

THERE: Box = (0.4, 0.2, 0.5, 0.6)
ELSEWHERE: Box = (0.7, 0.2, 0.8, 0.6)


def stands(box: CoreHarness, track: int, where: Box = THERE, looks: int = 20) -> None:
    for _ in range(looks):
        box.examine((TrackedObject(track=track, label="person", score=0.8, box=where),))


def started_anew(box: CoreHarness, folder: Path, config: SiteConfig, *, after_s: float = 20.0) -> CoreHarness:
    box.core.close()
    box.db.close()
    box.clock.advance(after_s)
    again = CoreHarness(folder, config, box.clock)
    again.core.take(StreamHeader(camera="gate", clip="", model="m", size=(640, 480), run="r2"))
    return again


def asked_of(box: CoreHarness) -> bool:
    moment, _ = box.decided(box.newest.id)[-1]
    return moment != "never"


def test_what_stood_there_for_long_is_not_asked_about_again_after_a_restart(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, config := site(), ManualClock())
    stands(box, 1, looks=300)
    assert asked_of(box)
    again = started_anew(box, tmp_path, config)
    stands(again, 1)
    assert again.newest.run == "r2"
    assert not asked_of(again)


def test_somebody_who_stands_elsewhere_is_asked_about(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, config := site(), ManualClock())
    stands(box, 1, looks=300)
    again = started_anew(box, tmp_path, config)
    stands(again, 1, ELSEWHERE)
    assert asked_of(again)


def test_who_was_seen_for_a_moment_only_is_asked_about_again(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, config := site(), ManualClock())
    stands(box, 1)
    again = started_anew(box, tmp_path, config)
    stands(again, 1)
    assert asked_of(again)


def test_after_longer_than_repeat_s_it_is_asked_about_again(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, config := site(router={"repeat_s": 60}), ManualClock())
    stands(box, 1, looks=300)
    again = started_anew(box, tmp_path, config, after_s=120)
    stands(again, 1)
    assert asked_of(again)
