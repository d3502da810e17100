"""What a site may send as evidence to harm the worker: it costs a child process and that evidence, nothing else."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.sandbox.sandbox import Sandbox
from cloud_worker import decoding
from cloud_worker import evidence as worker_evidence
from cloud_worker.evidence import IN_PROCESS, LIMITS, MediaDecoder, MediaRefused, SandboxDecoder
from tests.support import hostile_media
from tests.support.hostile_media import PLAYLISTS, clip, evidence, jpeg, marker_bomb, resized

MB = 1024 * 1024


@pytest.fixture(scope="module")
def sandboxed() -> Iterator[SandboxDecoder]:
    made = SandboxDecoder()
    yield made
    made.close()


@pytest.fixture(params=["in process", "sandbox"])
def decoder(request: pytest.FixtureRequest, sandboxed: SandboxDecoder) -> MediaDecoder:
    return sandboxed if request.param == "sandbox" else IN_PROCESS


def test_what_is_well_formed_is_decoded(decoder: MediaDecoder) -> None:
    assert decoder.image(evidence(jpeg(130, 70))).shape == (70, 130, 3)
    frames = decoder.frames(evidence(clip(count=30), "clip"), 3, 160)
    assert [each.pixels.shape for each in frames] == [(120, 160, 3)] * 3
    assert [each.t for each in frames] == pytest.approx([0.0, 0.5, 0.97], abs=0.07)
    assert all(each.shrunk for each in frames)
    assert not decoder.frames(evidence(clip(), "clip"), 1, 4096)[0].shrunk


@pytest.mark.parametrize("marker", [0x01, *range(0xD0, 0xDA)])
def test_a_jpeg_whose_size_is_hidden_behind_a_bare_marker_is_refused(marker: int) -> None:
    """libjpeg sees 30000x30000 (5.3 GB in the worker), a walk over the segments 640x480."""
    bomb = marker_bomb(marker)
    assert decoding.declared_size(bomb) is None
    with pytest.raises(MediaRefused, match="not a JPEG"):
        IN_PROCESS.image(evidence(bomb))


@pytest.mark.parametrize("size", [(65_500, 65_500), (30_000, 30_000), (40_001, 1_000), (0, 100)])
def test_a_jpeg_that_says_it_is_huge_is_refused(decoder: MediaDecoder, size: tuple[int, int]) -> None:
    with pytest.raises(MediaRefused, match="is refused"):
        decoder.image(evidence(resized(jpeg(), *size)))


def test_what_needs_more_memory_than_a_child_may_have_costs_the_child_alone() -> None:
    small = SandboxDecoder(replace(LIMITS, memory_bytes=60 * MB))
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(MediaRefused, match=r"within the limits|damaged"):
            small.image(evidence(resized(jpeg(), 7_000, 5_000)))
        assert small.image(evidence(jpeg(130, 70))).shape == (70, 130, 3), "the next has a child that can"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024, "kB, of 100 MB of pixels"
    finally:
        small.close()


def test_a_clip_of_huge_frames_is_refused_at_once(decoder: MediaDecoder) -> None:
    bomb = evidence(clip(7680, 5120, 3), "clip")
    started = time.perf_counter()
    with pytest.raises(MediaRefused, match="a video of 7680x5120 is refused"):
        decoder.frames(bomb, 4, 768)
    assert time.perf_counter() - started < 10


def test_a_clip_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_evidence, "CLIP_S_MAX", 0.3)
    slow = SandboxDecoder()
    try:
        slow.image(evidence(jpeg()))  # a child that has started
        with pytest.raises(MediaRefused, match=r"frames took longer than 0\.3 s"):
            slow.frames(evidence(clip(1920, 1080, 400), "clip"), 4, 768)
        assert slow.image(evidence(jpeg(130, 70))).shape == (70, 130, 3)
    finally:
        slow.close()


@pytest.mark.parametrize("name", PLAYLISTS)
def test_a_text_that_names_other_files_is_no_clip(
    decoder: MediaDecoder, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MediaRefused):
        decoder.frames(evidence(PLAYLISTS[name], "clip"), 4, 768)
    assert "/etc/hostname" not in "".join(capfd.readouterr()), "FFmpeg did not get to see it"


def test_a_film_in_another_container_is_no_clip(decoder: MediaDecoder) -> None:
    """Vedette sends MP4; the other hundred demuxers of FFmpeg are not for strangers."""
    with pytest.raises(MediaRefused, match="not an MP4"):
        decoder.frames(evidence(clip(form="matroska"), "clip"), 2, 768)


@pytest.mark.parametrize(
    "answer",
    [
        None, "x", [], {}, [1, 1], [1, 1, "abc"], [1, 1, bytearray(4)], [0, 0, bytearray()], [-1, -1, bytearray(3)],
        [2.0, 0.5, bytearray(3)], ["1", 1, bytearray(3)], [None, 1, bytearray(3)], [10**9, 10**9, bytearray(3)],
    ],
)  # fmt: skip
def test_what_a_decoder_that_was_taken_over_may_answer_is_refused(
    sandboxed: SandboxDecoder, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(Sandbox, "call", lambda *_, **__: answer)
    with pytest.raises(MediaRefused, match="nonsense"):
        sandboxed.image(evidence(jpeg()))
    frame = [0.5, *answer, False] if isinstance(answer, list) else answer
    for frames in (answer, [frame], [[0.5, 1, 1, bytearray(3)]], [[float("nan"), 1, 1, bytearray(3), False]]):
        monkeypatch.setattr(Sandbox, "call", lambda *_, frames=frames, **__: frames)
        with pytest.raises(MediaRefused, match="nonsense"):
            sandboxed.frames(evidence(clip(count=3), "clip"), 2, 160)


def test_nothing_of_a_clip_stays_behind(sandboxed: SandboxDecoder) -> None:
    folder = Path(sandboxed._folder.name)
    sandboxed.frames(evidence(clip(), "clip"), 2, 768)
    with pytest.raises(MediaRefused):
        sandboxed.frames(evidence(hostile_media.clip(7680, 5120, 1), "clip"), 2, 768)
    assert list(folder.iterdir()) == []


def test_the_children_may_not_read_what_is_the_workers(sandboxed: SandboxDecoder) -> None:
    sandboxed.image(evidence(jpeg()))
    for pid in sandboxed.pids:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"TOKEN" not in environment
        assert b"PASSWORD" not in environment
    assert {"seccomp"} <= set(sandboxed._all[0].confined + sandboxed._all[1].confined) or not sandboxed.pids
