"""What is decoded: only key frames while nothing happens, and when something does, what led to it as well."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from appliance import config
from appliance.analysis.decode_policy import DecodePolicy
from appliance.analysis.decode_session import GOP_BYTES_MAX, GOP_PACKETS_MAX, TUNING, GopBuffer
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.source import VideoPacket
from appliance.replay.footage import ClipReader
from appliance.track.tracker import Tracker
from appliance.types import DecodeState, FrameBoxes
from tests.support import walker_footage
from tests.support.scripted_sources import FrameByFrame
from tests.support.walker_footage import FPS, WalkerDetector

HEARTBEAT_S = 2.0
VISIT = (9.4, 12.0)


def place(path: Path, seconds: float, visits: Sequence[tuple[float, float]] = (), **how: Any) -> Path:
    """Small pictures, and H.264 without CABAC, as in its Baseline profile: two thirds of this file's CPU time."""
    if how.get("codec", "libx264") == "libx264":
        how = {"cabac": "0", **how}
    if how.get("codec") != "mpeg4":  # whose small pictures are hardly larger where something moves
        how = {"size": walker_footage.SMALL, **how}
    return walker_footage.place(path, seconds, visits, **how)


@dataclass
class Outcome:
    """What came of a film."""

    examined: list[FrameBoxes]
    policy: DecodePolicy
    decoded: int
    frames: int
    states: list[tuple[float, DecodeState, str]]

    def visitors(self, visit: tuple[float, float] = VISIT) -> list[float]:
        return [boxes.t for boxes in self.examined if boxes.objects and visit[0] - 0.5 <= boxes.t <= visit[1] + 0.5]

    def state_at(self, t: float) -> DecodeState:
        return [state for at, state, _ in self.states if at <= t][-1]


@functools.cache  # the same film is asked about by several tests
def watch(
    path: Path, latency: config.LatencyMode = "normal", *, fps: float = 5, heartbeat_s: float = HEARTBEAT_S
) -> Outcome:
    settings = config.DetectConfig(fps=fps, heartbeat_s=heartbeat_s, latency=latency)
    detector = WalkerDetector()
    driver = FrameByFrame("gate", detector, Tracker(detector.labels), settings)
    policy = driver.analysis.decode_policy
    examined, states = [], []
    with ClipReader(str(path)) as clip:
        for frame in clip.frames(policy):
            assert frame.index == round(frame.t * _fps(clip)), "as if all had been decoded"
            states.append((frame.t, policy.state, policy.reason))
            boxes = driver.select(frame.index, frame.t, frame.av_frame, next_s=frame.next_s)
            if boxes is not None:
                examined.append(driver.infer(boxes))
        return Outcome(examined, policy, clip.decoded, clip.decoded + clip.skipped, states)


def _fps(clip: ClipReader) -> float:
    return 1 / clip.info.frame_s


def gaps(examined: list[FrameBoxes]) -> list[float]:
    return [b.t - a.t for a, b in itertools.pairwise(examined)]


CODINGS = {
    "gop 15": {"gop": 15, "bframes": "0"},
    "gop 30": {"gop": 30, "bframes": "0"},
    "gop 60": {"gop": 60, "bframes": "0"},
    "gop 175, 11.7 s": {"gop": 175, "bframes": "0"},
    "b-frames": {"gop": 30, "bframes": "3"},
    "b-pyramid": {"gop": 30, "bframes": "4", "b-pyramid": "normal"},
    "hevc": {"codec": "libx265", "gop": 30, "bframes": "0", "open-gop": "0"},
    "hevc b-frames": {"codec": "libx265", "gop": 30, "bframes": "3", "open-gop": "0"},
    "mjpeg": {"codec": "mjpeg"},
    "mpeg4": {"codec": "mpeg4", "gop": 30},
}


# Of each kind one; all of them with `make test-slow`. H.265 is decoded in two tests below that make their own films.
USUAL = ("gop 30", "gop 175, 11.7 s", "b-frames", "mjpeg")


@pytest.fixture(
    scope="module",
    params=[name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in CODINGS],
)
def coding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("coding")
    how = {**CODINGS[request.param]}
    ending = "avi" if how.get("codec") == "mjpeg" else "mp4"

    def make(name: str, seconds: float, *visits: tuple[float, float]) -> Path:
        path = folder / f"{name}.{ending}"
        return path if path.exists() else place(path, seconds, visits, **how)

    make.key_s = how.get("gop", 1) / FPS  # type: ignore[attr-defined]
    return make


def test_the_first_moments_of_a_visitor_are_examined_as_if_all_had_been_decoded(coding: Callable[..., Path]) -> None:
    """Somebody comes in the middle of a group of pictures; the looks at them are those that `lowest` takes."""
    path = coding("visit", 26, VISIT, (21.3, 23.5))
    lowest, normal = watch(path, "lowest"), watch(path, "normal")
    for visit in (VISIT, (21.3, 23.5)):
        assert normal.visitors(visit), "nobody was seen"
        assert normal.visitors(visit)[0] <= lowest.visitors(visit)[0] + 0.3
        assert len(normal.visitors(visit)) >= len(lowest.visitors(visit)) - 2
    assert [boxes.t for boxes in normal.examined] == sorted({boxes.t for boxes in normal.examined})
    assert normal.frames == lowest.frames, "each picture is decoded or counted as skipped"


def test_a_quiet_place_is_looked_at_each_heartbeat_and_little_is_decoded(coding: Callable[..., Path]) -> None:
    seen = watch(coding("quiet", 40))
    assert max(gaps(seen.examined)) <= HEARTBEAT_S * (1 + TUNING.wait_share) + 1e-6
    assert seen.frames == 40 * FPS
    key_s: float = coding.key_s  # type: ignore[attr-defined]
    if key_s <= HEARTBEAT_S:
        # The first seconds, to learn, are a part; where all are key frames, as many are decoded as may be looked at.
        assert seen.decoded < (0.5 if key_s < 2 / FPS else 0.45) * seen.frames
        assert seen.policy.counts().skipped == seen.frames - seen.decoded
    else:  # the heartbeat needs the packets up to it
        assert seen.decoded < seen.frames


def test_after_the_visitor_is_gone_it_is_idle_again(coding: Callable[..., Path]) -> None:
    seen = watch(coding("visit", 26, VISIT, (21.3, 23.5)))
    assert seen.state_at(11.5) != "idle"
    assert seen.state_at(20.5) == "idle"


def test_thrifty_sees_the_visitor_with_the_next_key_frame(coding: Callable[..., Path]) -> None:
    path = coding("visit", 26, VISIT, (21.3, 23.5))
    key_s: float = coding.key_s  # type: ignore[attr-defined]
    lowest, thrifty = watch(path, "lowest"), watch(path, "thrifty")
    assert thrifty.visitors()[0] <= lowest.visitors()[0] + min(key_s, HEARTBEAT_S * (1 + TUNING.wait_share)) + 0.3
    assert thrifty.decoded <= lowest.decoded


def test_the_same_film_gives_the_same_looks(coding: Callable[..., Path]) -> None:
    path = coding("visit", 26, VISIT, (21.3, 23.5))
    assert watch.__wrapped__(path).examined == watch(path).examined, "the other one is remembered"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"codec": "libx264", "gop": 30, "intra-refresh": "1"}, "not whole pictures"),
        pytest.param(
            {"codec": "libx264", "gop": 30, "bframes": "3", "open-gop": "1"},
            "not whole pictures",
            marks=pytest.mark.slow,  # for the same reason as the one above
        ),
        ({"codec": "libx265", "gop": 30, "bframes": "3", "open-gop": "1"}, "open"),
        ({"codec": "libx264", "gop": 600}, "no key frame for 12 s"),
    ],
)
def test_a_stream_that_allows_nothing_else_is_decoded_whole_and_says_why(
    tmp_path: Path, how: dict[str, str], why: str
) -> None:
    path = place(tmp_path / "film.mp4", 28, [(22.3, 24.5)], **how)
    seen, lowest = watch(path), watch(path, "lowest")
    assert any(state == "everything" and why in reason for _, state, reason in seen.states), seen.states[-1]
    assert seen.states[-1][1] == "everything"
    assert seen.policy.counts().skipped == 0
    meanwhile = [{boxes.t for boxes in each.examined if 22.3 <= boxes.t <= 25.0} for each in (seen, lowest)]
    assert len(meanwhile[0]) >= 10
    assert meanwhile[0] <= meanwhile[1], "which looks again at who is new"


def test_lowest_decodes_everything(tmp_path: Path) -> None:
    seen = watch(place(tmp_path / "film.mp4", 12), "lowest")
    assert (seen.decoded, seen.policy.counts().skipped, seen.policy.state) == (12 * FPS, 0, "everything")
    assert seen.policy.reason == "detect.latency is lowest"


@dataclass
class Scripted:
    """An attention that does what it is told; nothing moves unless the script says so."""

    busy_from: float = float("inf")
    changed_at: float = float("inf")
    looked: float = float("-inf")
    t: float = 0.0
    asked: list[float] = field(default_factory=list)
    heartbeat_s: float = HEARTBEAT_S
    waited_s: float = 0.0

    def is_active(self, t: float) -> bool:
        self.t = t
        return t < 2 or t >= self.busy_from  # the first moments of a camera are always busy

    def has_motion(self, t: float) -> bool:
        return self.is_active(t)

    def is_overdue(self, t: float, late_share: float = 0.0) -> bool:
        return t - self.looked >= self.heartbeat_s * (1 + late_share) - 0.002

    def shows_change(self, picture: av.VideoFrame) -> bool:
        t = round(float(picture.pts) / 1e6, 3)
        self.asked.append(t)
        return t >= self.changed_at


def handed_on(
    path: Path, probe: Scripted, latency: config.LatencyMode = "normal", *, looking: bool = True
) -> tuple[list[DecodedFrame], DecodePolicy]:
    """looking: every picture is looked at; else no heartbeat is ever due."""
    probe.looked = float("-inf") if looking else float("inf")
    policy = DecodePolicy(latency, 5, probe)
    frames = []
    with ClipReader(str(path)) as clip:
        for frame in clip.frames(policy):
            probe.looked = max(probe.looked, frame.t)
            frames.append(frame)
    return frames, policy


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So noisy that sizes say nothing."""
    return place(tmp_path_factory.mktemp("film") / "noise.mp4", 16, noise=12, bframes="0")


def test_a_change_in_a_key_frame_brings_the_group_before_it(restless: Path) -> None:
    """The packets told nothing; but what the key frame at 10 s shows began after the one at 8 s."""
    frames, policy = handed_on(restless, Scripted(changed_at=9.9, busy_from=10.0))
    late = [frame for frame in frames if 8.0 < frame.t <= 10.0]
    assert [frame.index for frame in late] == list(range(121, 151))
    assert all(frame.late for frame in late)
    assert [frame.t for frame in frames] == sorted({frame.t for frame in frames})
    assert policy.counts().skipped == 16 * FPS - len(frames)


def test_of_a_long_group_only_so_many_pictures_are_handed_on(tmp_path: Path) -> None:
    """Eight seconds at once: spread evenly from the first to the last, the rest is counted."""
    path = place(tmp_path / "long.mp4", 36, gop=8 * FPS, noise=12, bframes="0")
    frames, policy = handed_on(path, Scripted(changed_at=31.9, busy_from=32.0), looking=False)
    late = [frame.t for frame in frames if frame.late]
    assert TUNING.late_frames_max - 2 <= len(late) <= TUNING.late_frames_max + 1
    assert late[0] < 24.2
    assert late[-1] > 31.0
    assert policy.counts().sampled_out == 8 * FPS - len(late)


def test_thrifty_shows_half_as_much_of_the_group_before_it(restless: Path) -> None:
    frames, policy = handed_on(restless, Scripted(changed_at=9.9, busy_from=10.0), "thrifty")
    late = [frame.t for frame in frames if 8.0 < frame.t <= 10.0]
    assert TUNING.late_frames_max_economy <= len(late) <= TUNING.late_frames_max_economy + 1
    assert max(b - a for a, b in itertools.pairwise([8.0, *late])) < 0.5
    assert len([frame for frame in frames if 10.0 < frame.t < 12.0]) == 29
    assert policy.counts().sampled_out == 30 - len(late)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"bframes": "0"}, marks=pytest.mark.slow),
        {"bframes": "3"},
        {"codec": "libx265", "bframes": "0"},
    ],
)
def test_what_comes_after_a_key_frame_is_decoded_as_if_nothing_had_been_left_out(
    tmp_path: Path, how: dict[str, str]
) -> None:
    """Bit for bit, whether the decoder had to begin anew at the key frame or could go on from it."""
    path = place(tmp_path / "film.mp4", 16, noise=6, **how)
    with ClipReader(str(path)) as clip:
        whole = {frame.index: frame.av_frame.to_ndarray(format="gray") for frame in clip.frames()}
    frames, _ = handed_on(path, Scripted(busy_from=10.5))
    assert len([frame for frame in frames if frame.t > 10.0]) > 4 * FPS
    assert any(frame.index == 8 * FPS for frame in frames), "an idle one"
    assert all(np.array_equal(frame.av_frame.to_ndarray(format="gray"), whole[frame.index]) for frame in frames)


def test_who_looks_sees_nearly_what_the_camera_meant(tmp_path: Path) -> None:
    """Pictures are decoded without the loop filter; over a group of 4 s what is missing stays below grain."""
    path = place(tmp_path / "film.mp4", 8, noise=6, gop=60)
    with av.open(str(path)) as film:
        meant = [frame.to_ndarray(format="gray") for frame in film.decode(video=0)]
    with ClipReader(str(path)) as clip:
        off = [np.abs(f.av_frame.to_ndarray(format="gray").astype(int) - meant[f.index]).mean() for f in clip.frames()]
    assert len(off) == 8 * FPS
    assert np.mean(off[:4]) > 0, "the filter was left out"
    assert max(off) < 2


def test_what_the_detector_found_in_a_key_frame_brings_all_since(restless: Path) -> None:
    """The answer comes half a second after the question: nothing of that half second is lost."""
    frames, policy = handed_on(restless, Scripted(busy_from=8.5))
    since = [frame for frame in frames if 8.0 < frame.t < 9.0]
    assert since[0].t < 8.3
    assert {frame.late for frame in since} == {True, False}
    assert policy.counts().wake_ups == 1


def test_idle_shows_key_frames_only_and_says_when_the_next_comes(restless: Path) -> None:
    frames, policy = handed_on(restless, Scripted())
    idle = [frame for frame in frames if frame.t > 4.3]
    assert [frame.t for frame in idle] == [6.0, 8.0, 10.0, 12.0, 14.0]
    assert {round(frame.next_s, 3) for frame in idle} == {2.0}
    assert policy.counts().skipped == 16 * FPS - len(frames)


def of_sizes(
    path: Path, probe: Scripted, size: Callable[[VideoPacket], int] = lambda packet: 20_000 if packet.keyframe else 900
) -> tuple[list[DecodedFrame], DecodePolicy]:
    """As if packets had those sizes, whatever this encoder made of the place."""
    policy, frames = DecodePolicy("normal", 5, probe), []
    with ClipReader(str(path)) as clip:
        policy.open(Decoder("gate", clip.info), clip.info)
        for packet in clip.packets():
            for frame in policy.frames(replace(packet, size=size(packet))):
                probe.looked = frame.t
                frames.append(frame)
            probe.waited_s = max(probe.waited_s, packet.t - probe.looked)
    list(policy.close())
    return frames, policy


def test_with_time_for_it_every_second_key_frame_is_left_alone(restless: Path) -> None:
    """A heartbeat of 4 s, a key frame in 2 s: as long as nothing speaks for it, only the one that is due is decoded."""
    frames, policy = of_sizes(restless, Scripted(heartbeat_s=4.0))
    assert [frame.t for frame in frames if frame.t > 5.0] == [6.0, 8.0, 12.0], "of four the size is known"
    assert policy.counts().skipped == 16 * FPS - len(frames)
    often, _ = of_sizes(restless, Scripted(heartbeat_s=3.0))
    assert [frame.t for frame in often if frame.t > 5.0] == [6.0, 8.0, 10.0, 12.0, 14.0], "the next would be too late"
    seldom, _ = of_sizes(restless, Scripted(heartbeat_s=20.0))
    assert [frame.t for frame in seldom if frame.t > 5.0] == [6.0, 8.0, 12.0], "two are never left alone in a row"


@pytest.mark.parametrize(
    ("at", "size"), [(10.0, 21_500), (10.0, 18_500), (9.0, 1_080), (9.0, 60)], ids=["key +", "key -", "P +", "P -"]
)
def test_sizes_that_are_not_the_usual_ones_speak_for_a_key_frame(restless: Path, at: float, size: int) -> None:
    """Somebody who is no cue yet, a lens that is covered, a picture that stands still. That at 10 s would be left."""

    def other(packet: VideoPacket) -> int:
        usual = 20_000 if packet.keyframe else 900
        return size if at <= packet.t < at + 0.5 and packet.keyframe == (at == 10.0) else usual

    frames, policy = of_sizes(restless, Scripted(heartbeat_s=4.0), other)
    assert [frame.t for frame in frames if frame.t > 5.0] == [6.0, 8.0, 10.0, 14.0]
    assert policy.counts().wake_ups == 0


@pytest.mark.parametrize(("changed_at", "first_t"), [(11.9, 10.0), (9.9, 8.0)])
def test_what_a_key_frame_shows_is_followed_back_over_one_that_was_left_alone(
    restless: Path, changed_at: float, first_t: float
) -> None:
    """The key frame at 12 s shows a change. Where that at 10 s does, too, it came after the one at 8 s."""
    with ClipReader(str(restless)) as clip:
        whole = {frame.index: frame.av_frame.to_ndarray(format="gray") for frame in clip.frames()}
    probe = Scripted(changed_at=changed_at, busy_from=12.0, heartbeat_s=4.0)
    frames, policy = of_sizes(restless, probe)
    assert probe.asked[-2:] == [12.0, 10.0]
    late = [frame for frame in frames if frame.late]
    assert first_t <= late[0].t <= first_t + 0.5
    assert late[-1].t > 11.5
    assert [frame.t for frame in frames] == sorted({frame.t for frame in frames})
    assert all(np.array_equal(frame.av_frame.to_ndarray(format="gray"), whole[frame.index]) for frame in frames)
    assert policy.counts().skipped + policy.counts().sampled_out == 16 * FPS - len(frames)


def test_a_cue_after_a_key_frame_that_was_left_alone_brings_all_since(restless: Path) -> None:
    frames, policy = of_sizes(restless, Scripted(busy_from=10.5, heartbeat_s=4.0))
    assert [frame.index for frame in frames if 8.5 < frame.t < 10.6] == list(range(150, 159))
    assert policy.counts().skipped == 16 * FPS - len(frames)


def test_who_may_be_looked_at_each_second_is_not_made_to_wait_for_a_key_frame(restless: Path) -> None:
    """A tenth of a second at most, whatever a heartbeat is."""
    probe = Scripted(heartbeat_s=1.7)
    of_sizes(restless, probe)
    assert probe.waited_s <= 1.7 * (1 + TUNING.wait_share) + 1e-6


def test_key_frames_that_come_just_before_a_heartbeat_are_looked_at(tmp_path: Path) -> None:
    """Every 1.4 s a key frame: to wait for 2.0 s would mean to decode the packets up to there."""
    seen = watch(place(tmp_path / "film.mp4", 30, gop=21))
    idle = [boxes.t for boxes in seen.examined if boxes.t > 10]
    assert max(b - a for a, b in itertools.pairwise(idle)) <= 1.41  # seconds, of key frames
    assert seen.decoded < 0.45 * seen.frames


class Packet:
    """As far as `Held` cares."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_what_is_held_is_bounded_in_packets_and_bytes() -> None:
    for size, most in ((10, GOP_PACKETS_MAX), (GOP_BYTES_MAX // 10, 10)):
        held = GopBuffer()
        held.begin(Packet(size))  # type: ignore[arg-type]
        for _ in range(3 * most):
            held.add(Packet(size))  # type: ignore[arg-type]
            assert len(held.packets) <= most
            assert sum(packet.size for packet in held.packets) <= GOP_BYTES_MAX
        assert not held.starts_with_key


def spoilt(packet: av.Packet) -> av.Packet:
    data = bytes(packet)
    new = av.Packet(data[:40] + bytes(len(data) - 40))
    new.pts, new.dts, new.time_base, new.is_keyframe = packet.pts, packet.dts, packet.time_base, True
    return new


def test_a_damaged_key_frame_does_not_close_the_eye(tmp_path: Path) -> None:
    """What follows it is decoded as well as it can be, and from the next key frame on all is well."""
    path = place(tmp_path / "film.mp4", 20, [(15.2, 17.5)])
    broken = tmp_path / "broken.mp4"
    with av.open(str(path)) as source, av.open(str(broken), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for n, packet in enumerate(source.demux(source.streams.video[0])):
            if packet.size:
                new = spoilt(packet) if n == 150 else packet
                new.stream = stream
                out.mux(new)
    detector = WalkerDetector()
    settings = config.DetectConfig(heartbeat_s=2.0)
    driver = FrameByFrame("gate", detector, Tracker(detector.labels), settings)
    policy = driver.analysis.decode_policy
    seen = []
    with ClipReader(str(broken)) as clip:
        for frame in clip.frames(policy):
            found = driver.examine(frame.index, frame.t, frame.av_frame)
            seen += [found] if found else []
    assert any(boxes.objects for boxes in seen if 15 < boxes.t < 18)
    assert max(gaps(seen)) <= 4.1
