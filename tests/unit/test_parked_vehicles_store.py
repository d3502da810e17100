"""What is parked survives a restart in a small file; a bad file, a full disk and a power cut are no harm."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.base.clock import ManualClock
from appliance.track.stationary_objects import (
    FORGET_S,
    RENEW_EVERY_S,
    STATIONARY_MAX,
    WRITE_EVERY_S,
    ParkedVehiclesStore,
    StationaryObject,
    normalised_patch,
    patch_correlation,
)


def place(x: float = 0.2, t: float = 1_700_000_000.0) -> StationaryObject:
    patch = normalised_patch(np.random.default_rng(3).integers(0, 255, 192))
    return StationaryObject("vehicle", (x, 0.4, x + 0.2, 0.6), t - 50, t, 50.0, patch)


def file_of(folder: Path) -> Path:
    return folder / "parked" / "gate.json"


def test_what_was_parked_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    before = ParkedVehiclesStore(tmp_path, "gate", clock)
    before.objects.park(place())
    before.close()
    (known,) = ParkedVehiclesStore(tmp_path, "gate", clock).objects.snapshot()
    assert (known.kind, known.box, known.t_first, known.t_last, known.stood_s) == (
        "vehicle", (0.2, 0.4, 0.4, 0.6), 1_699_999_950.0, 1_700_000_000.0, 50.0,
    )  # fmt: skip
    assert (known.number, known.taken) == (0, False)
    was = place().patch
    assert known.patch is not None
    assert was is not None
    assert patch_correlation(known.patch, was) > 0.999


def test_places_of_the_day_before_yesterday_say_nothing_of_what_stands_there_now(tmp_path: Path) -> None:
    clock = ManualClock()
    before = ParkedVehiclesStore(tmp_path, "gate", clock)
    assert not before.objects.knows(clock.now())
    before.objects.park(place(t=clock.now()))
    before.close()
    clock.advance(FORGET_S)
    assert ParkedVehiclesStore(tmp_path, "gate", clock).objects.knows(clock.now())
    clock.advance(1)
    after = ParkedVehiclesStore(tmp_path, "gate", clock).objects
    assert not after.knows(clock.now())
    after.forget(clock.now())
    assert len(after) == 0, "the tracker does not know them either"


def test_a_class_with_a_sentence_for_a_name_does_not_end_the_process(tmp_path: Path) -> None:
    """Networks with free prompts have such names; a network's own metadata may hold an empty one."""
    sentence = "a person in a yellow high-visibility vest and a white hard hat who stands"
    before = ParkedVehiclesStore(tmp_path, "gate", ManualClock())
    for number, kind in enumerate((sentence, "", "x" * 5000)):
        before.objects.park(replace(place(0.1 * number), kind=kind))
    before.close()
    assert [each.kind for each in ParkedVehiclesStore(tmp_path, "gate", ManualClock()).objects.snapshot()] == [
        sentence, "",
    ]  # fmt: skip


def test_each_camera_has_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    gate = ParkedVehiclesStore(tmp_path, "gate", clock)
    gate.objects.park(place())
    gate.close()
    assert len(ParkedVehiclesStore(tmp_path, "yard", clock).objects) == 0


def test_it_is_written_within_a_minute_of_a_change_and_otherwise_every_ten(tmp_path: Path) -> None:
    clock = ManualClock()
    parking, written = ParkedVehiclesStore(tmp_path, "gate", clock), list[float]()
    parking.objects.park(standing := place())
    began = clock.monotonic()
    for second in range(3600):
        clock.advance(1)
        standing.seen(standing.t_last + 1)
        if second == 1800:
            parking.objects.park(place(0.6))
        parking.tick()
        if file_of(tmp_path).exists():
            file_of(tmp_path).rename(tmp_path / "seen")
            written.append(clock.monotonic() - began)
    assert written[0] == WRITE_EVERY_S
    assert len(written) <= 2 + 3600 / RENEW_EVERY_S
    assert any(1800 < at <= 1800 + WRITE_EVERY_S for at in written)


def test_nothing_parked_is_never_written(tmp_path: Path) -> None:
    clock = ManualClock()
    parking = ParkedVehiclesStore(tmp_path, "gate", clock)
    for _ in range(2000):
        clock.advance(1)
        parking.tick()
    parking.close()
    assert list(tmp_path.iterdir()) == []


def file_with(**more: object) -> bytes:
    """A file with one place, of which `more` is wrong."""
    good = {"kind": "vehicle", "box": [0, 0, 1, 1], "t_first": 0, "t_last": 0, "stood_s": 0}
    return json.dumps({"version": 1, "places": [{**good, **more}]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\0" * 4096,
        b'{"version": 2, "places": []}',
        file_with(box=[0.1, 0.1, 0.2]),
        file_with(t_last=float("nan")),
        file_with(patch="AAA"),
        file_with(patch="AAAA"),
        b"[" * 300_000,
    ],
    ids=["empty", "cut", "zeros", "newer", "three sides", "no time", "no base64", "small patch", "huge"],
)
def test_a_file_that_makes_no_sense_is_logged_and_forgotten(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        parking = ParkedVehiclesStore(tmp_path, "gate", ManualClock())
    assert len(parking.objects) == 0
    (said,) = caplog.messages
    assert "camera gate: gate.json is not understood" in said
    parking.objects.park(place())
    parking.close()
    assert len(ParkedVehiclesStore(tmp_path, "gate", ManualClock()).objects) == 1


def test_a_kill_while_it_is_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    parking = ParkedVehiclesStore(tmp_path, "gate", clock)
    parking.objects.park(place())
    parking.close()
    parking.objects.park(place(0.6))

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        parking.close()
    assert len(ParkedVehiclesStore(tmp_path, "gate", clock).objects) == 1


def test_a_disk_that_refuses_is_logged_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    (tmp_path / "parked").write_text("a file stands in the way")
    with caplog.at_level(logging.WARNING):
        parking = ParkedVehiclesStore(tmp_path, "gate", clock)
        caplog.clear()
        parking.objects.park(place())
        for _ in range(300):
            clock.advance(1)
            parking.tick()
        assert len(caplog.messages) == 1
        (tmp_path / "parked").unlink()
        for _ in range(61):
            clock.advance(1)
            parking.tick()
    assert file_of(tmp_path).exists()


def test_a_car_park_takes_little_room(tmp_path: Path) -> None:
    parking = ParkedVehiclesStore(tmp_path, "gate", ManualClock())
    for index in range(3 * STATIONARY_MAX):
        parking.objects.park(place(index / 1000 + (index % 2) / 2))
    parking.close()
    assert file_of(tmp_path).stat().st_size < 32_000
    assert len(json.loads(file_of(tmp_path).read_text())["places"]) <= STATIONARY_MAX
