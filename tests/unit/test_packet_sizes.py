"""Packet sizes as a cue: what is usual for this stream is learnt, and only what is beyond it counts."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from appliance.analysis.decode_policy import (
    ECONOMY,
    KEYS_MIN,
    LEARN_MIN,
    NORMAL,
    CusumThreshold,
    KeyFrameSizes,
    PacketSizes,
)


def quiet(count: int, usual: float = 4000, spread: float = 300, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [round(chance.gauss(usual, spread)) for _ in range(count)]


def learnt(sizes: Iterable[int], bar: CusumThreshold = NORMAL, *, b_frame: bool = False) -> PacketSizes:
    known = PacketSizes(bar)
    for size in sizes:
        known.learn(size, b_frame=b_frame)
    return known


def cues(known: PacketSizes, sizes: Iterable[int], *, b_frame: bool = False) -> list[int]:
    """Which packets are a cue; what is none is learnt, as in idle."""
    found = []
    for n, size in enumerate(sizes):
        if known.observe(size, b_frame=b_frame):
            found.append(n)
            known.reset_sums()
        else:
            known.learn(size, b_frame=b_frame)
    return found


@pytest.mark.parametrize("spread", [30, 300, 1200])
def test_an_hour_of_noise_gives_hardly_a_cue(spread: float) -> None:
    known = learnt(quiet(100, spread=spread))
    assert len(cues(known, quiet(15 * 3600, spread=spread, seed=2))) <= 60


def test_somebody_who_comes_in_is_a_cue_within_half_a_second() -> None:
    known = learnt(quiet(100))
    assert cues(known, [*quiet(50, seed=3), *(size + 2500 for size in quiet(8, seed=4))])[0] in range(50, 55)


def test_a_small_rise_that_stays_is_a_cue_too() -> None:
    known = learnt(quiet(100))
    found = cues(known, [*quiet(50, seed=3), *(size + 900 for size in quiet(15, seed=4))])
    assert found
    assert found[0] >= 50


def test_one_odd_packet_is_none() -> None:
    known = learnt(quiet(100))
    assert cues(known, [*quiet(20, seed=3), 60_000, *quiet(20, seed=4)]) == []


def test_a_slow_drift_of_light_and_rate_control_is_followed() -> None:
    known = learnt(quiet(100))
    rising = [round(size * (1 + n / 3000)) for n, size in enumerate(quiet(3000, seed=5))]
    assert len(cues(known, rising)) <= 6


def test_b_pictures_are_small_and_have_their_own_usual() -> None:
    """A P picture is ten times a B picture; together they would hide anything below that."""
    known = learnt(quiet(60))
    for size in quiet(60, 400, 40):
        known.learn(size, b_frame=True)
    assert cues(known, [1500] * 4, b_frame=True)
    assert not cues(known, quiet(10, seed=9))


def test_thrifty_wants_much_more() -> None:
    rise = [size + 1500 for size in quiet(12, seed=4)]
    assert cues(learnt(quiet(100)), rise)
    assert cues(learnt(quiet(100), ECONOMY), rise) == []
    assert cues(learnt(quiet(100), ECONOMY), [size * 4 for size in quiet(12, seed=4)])


def test_in_rain_packets_are_larger_and_after_a_while_that_is_the_usual() -> None:
    known = learnt(quiet(100))
    rain = quiet(400, 9000, 900, seed=6)
    for size in rain:  # the gate finds nothing in it, so it is learnt although it was a cue
        known.observe(size)
        known.learn(size)
    known.reset_sums()
    assert len(cues(known, quiet(300, 9000, 900, seed=7))) <= 1


def test_nothing_is_a_cue_before_enough_is_known() -> None:
    known = learnt(quiet(LEARN_MIN - 1))
    assert not known.known
    assert cues(known, [90_000]) == []


def test_key_frames_of_a_quiet_place_have_their_usual_size_and_a_visitor_changes_it() -> None:
    """As measured on the benchmark's yard: 85,500 +- 300 bytes, and 1.5 to 3 % off with somebody in it."""
    known = KeyFrameSizes()
    sizes = quiet(60, usual=85_500, spread=300)
    assert not any(known.is_usual(size) for size in sizes[:KEYS_MIN]), "nothing is known yet"
    for size in sizes:
        known.learn(size)
    assert sum(known.is_usual(size) for size in quiet(100, usual=85_500, spread=300, seed=2)) >= 85
    assert not any(known.is_usual(round(85_500 * share)) for share in (0.97, 0.98, 1.02, 1.03))


@pytest.mark.parametrize("bar", [NORMAL, ECONOMY])
@pytest.mark.parametrize(("share", "calm"), [(1.0, True), (1.3, False), (0.7, False), (0.01, False)])
def test_half_a_cue_is_no_calm_and_neither_is_what_became_small(share: float, calm: bool, bar: CusumThreshold) -> None:
    """Also where a cue needs more: who is none yet is seen in the next key frame."""
    known = learnt(quiet(100), bar)
    known.begin_gop()
    for size in quiet(8, usual=4000 * share, seed=3):
        known.observe(size)
    assert known.is_calm == calm
    for size in quiet(20, seed=4):
        known.observe(size)
    assert known.is_calm == calm, "until the GOP ends"
    known.begin_gop()
    for size in quiet(20, seed=5):
        known.observe(size)
    assert known.is_calm, "what is over is over"
