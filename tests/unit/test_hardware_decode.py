"""Decoding by hardware: the same frames, what fails is told, and nothing of it is silent. Without a device: see
`devices`; what a real one does is unmeasured (docs/hardware.md)."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
from av.codec.hwaccel import HWAccel
from numpy.typing import NDArray

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import GpuHandOver
from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError, MissingDependency
from appliance.cli.site_check import _hardware_decode
from appliance.config import CameraConfig, CameraDecodeConfig, DecodeConfig, DetectConfig, LatencyMode
from appliance.detect.letterbox import GpuFrame
from appliance.ingest.detect_stream import DetectStream
from appliance.ingest.hardware_decoders import RETRY_S, CameraHardware
from appliance.media import hardware_probe, piped_codec
from appliance.media.decoder import Decoder
from appliance.media.frames import at_host
from appliance.media.hardware_codec import (
    DAMAGED_IN_A_ROW_MAX,
    DecodeWay,
    HardwareCodec,
    HardwareFailed,
    LibavCodec,
    ways,
)
from appliance.media.hardware_probe import probe_kind, proof_clip, same_frames, software_frames
from appliance.media.piped_codec import PipedCodec
from appliance.replay.footage import ClipReader
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input, with_hardware
from appliance.replay.replay_runner import play
from appliance.track.tracker import Tracker
from appliance.types import Detections
from tests.support.decode_devices import Device, FakeAccel, fake_ffmpeg
from tests.support.scripted_sources import FrameByFrame, clip
from tests.support.waiting import until
from tests.support.walker_footage import WalkerDetector, place

CUDA = DecodeConfig(hardware="cuda")
CAMERA = CameraConfig(url="rtsp://camera/main")
SECONDS = 7.0
VISIT = ((3.2, 6.6),)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return place(tmp_path_factory.mktemp("film") / "place.mp4", SECONDS, VISIT, gop=15, bframes="0")


def site(**decode: Any) -> config.SiteConfig:
    return config.SiteConfig.model_validate({"cameras": {"gate": {"url": "file:clip"}}, "decode": decode})


@dataclass
class Outcome:
    """What came of a film."""

    shown: list[float]
    examined: list[float]
    hardware: CameraHardware | None
    sessions: int = 0


def watch(path: Path, latency: LatencyMode = "normal", device: Device | None = None, **decode: Any) -> Outcome:
    hardware = None
    if device is not None:
        decoders = device.decoders(DecodeConfig(**{"hardware": "cuda", **decode}))
        hardware = decoders.of("gate", CAMERA)
    settings = DetectConfig(latency=latency, heartbeat_s=2)
    driver = FrameByFrame("gate", WalkerDetector(), Tracker(("person",)), settings)
    shown, examined = [], []
    with ClipReader(str(path), hardware=hardware) as reader:
        for frame in reader.frames(driver.analysis.decode_policy):
            shown.append(frame.t)
            request = driver.select(frame.index, frame.t, frame.av_frame, next_s=frame.next_s)
            if request is not None:
                examined.append(driver.infer(request).t)
    return Outcome(shown, examined, hardware, 0 if hardware is None else hardware.decoders.sessions)


@functools.cache
def in_software(path: Path, latency: LatencyMode = "normal") -> Outcome:
    return watch(path, latency)


@pytest.mark.parametrize("latency", ["normal", "lowest"])
def test_a_device_gives_the_same_frames_in_every_state_of_the_decode_policy(film: Path, latency: LatencyMode) -> None:
    device = Device()
    found, wanted = watch(film, latency, device), in_software(film, latency)
    assert (found.shown, found.examined) == (wanted.shown, wanted.examined)
    assert found.hardware is not None
    assert (found.hardware.device, found.hardware.fault) == ("cuda", "")
    assert all(not each.allow_software_fallback and each.is_hw_owned for each in device.accels)
    assert found.sessions == 0, "given back at the end"


def test_only_frames_that_are_looked_at_are_copied_from_the_device(film: Path) -> None:
    device = Device()
    found = watch(film, "lowest", device)
    assert len(found.shown) == SECONDS * 15
    assert len(found.examined) <= device.copies <= len(found.shown) / 2, "the gate sees five of fifteen a second"


@pytest.mark.parametrize("latency", ["normal", "lowest"])
def test_a_decoder_that_fails_is_followed_by_software_and_is_told(film: Path, latency: LatencyMode) -> None:
    found = watch(film, latency, Device(fails_at=20), fallback=True)
    wanted = in_software(film, latency)
    assert found.hardware is not None
    assert (found.hardware.device, found.hardware.failures, found.sessions) == ("software", 1, 0)
    assert "a scripted failure; decoded in software meanwhile" in found.hardware.fault
    lost = [t for t in wanted.shown if t not in found.shown]
    # Where packets are held none is lost; else those up to the next key frame, the twentieth to the thirtieth.
    assert len(lost) == (0 if latency == "normal" else 11)
    assert len(set(found.shown)) == len(found.shown)


def test_a_stream_that_the_device_refuses_from_the_first_packet_on_loses_nothing(film: Path) -> None:
    device = Device(fails_at=1, error=av.error.InvalidDataError)
    found = watch(film, "lowest", device, fallback=True)
    assert found.shown == in_software(film, "lowest").shown


def test_without_leave_nothing_falls_back_and_the_device_is_asked_again(film: Path) -> None:
    device = Device(fails_at=1)
    hardware = device.decoders(CUDA).of("gate", CAMERA)
    assert hardware is not None
    with ClipReader(str(film)) as reader:
        decoder = Decoder("gate", reader.info, hardware)
        packets = list(reader.packets())
        assert not any(decoder.decode(packet) for packet in packets)
        assert hardware.device == ""
        assert "nothing of this camera is decoded: mend it, or set decode.fallback to true" in hardware.fault
        device.fails_at = None
        later = [_later(packet, RETRY_S + 1) for packet in packets]
        assert sum(len(decoder.decode(packet)) for packet in later) == len(later)
        assert (hardware.device, hardware.fault, hardware.failures) == ("cuda", "", 1)


def test_sessions_are_bounded_over_all_cameras_and_free_again_when_one_ends(film: Path) -> None:
    decoders = Device().decoders(DecodeConfig(hardware="cuda", sessions_max=1, fallback=True))
    first, second = (decoders.of(name, CAMERA) for name in ("gate", "yard"))
    assert first is not None
    assert second is not None
    with ClipReader(str(film)) as reader:
        one, two = (Decoder("camera", reader.info, each) for each in (first, second))
        assert (first.device, second.device, decoders.sessions) == ("cuda", "software", 1)
        assert "all 1 sessions of decode.sessions_max are taken" in second.fault
        two.close()
        one.close()
        one.close()
        assert decoders.sessions == 0
        Decoder("camera", reader.info, second)
        assert (second.device, second.fault) == ("cuda", "")


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Device(present=False), "cuda does not come up: cuInit: CUDA error 100"),
        (Device(not_implemented=True), "cuda: there is no such device"),  # PyAV decodes in software without a word
        (Device(to_software=True), "FFmpeg went on in software"),
    ],
)
def test_what_pyav_would_pass_over_in_silence_is_a_failure(film: Path, device: Device, said: str) -> None:
    with ClipReader(str(film)) as reader, pytest.raises(HardwareFailed, match=said):
        _decode_all(reader, device)


def test_one_damaged_packet_is_no_failure_of_the_device_and_many_are(film: Path) -> None:
    device = Device(error=av.error.InvalidDataError, fails_at=3)
    with ClipReader(str(film)) as reader:
        codec = LibavCodec(ways("cuda", None, "")[0], reader.info, device.libav())
        packets = [each.packet for each in reader.packets()]
        codec.decode(packets[0])
        codec.decode(packets[1])
        with pytest.raises(av.error.InvalidDataError):
            codec.decode(packets[2])
        for n in range(4, 3 + DAMAGED_IN_A_ROW_MAX):
            device.fails_at = n
            with pytest.raises(av.error.InvalidDataError):
                codec.decode(packets[3])
        device.fails_at = 3 + DAMAGED_IN_A_ROW_MAX
        with pytest.raises(HardwareFailed):
            codec.decode(packets[3])


def test_a_pyav_that_does_not_tell_the_format_on_the_device_is_asked_for_nv12() -> None:
    """Before 18 `VideoFrame` has no `sw_format`, on a device or off it."""
    there = SimpleNamespace(format=SimpleNamespace(name="cuda"), reformat=lambda format: format)
    here = SimpleNamespace(format=SimpleNamespace(name="yuv420p"))
    assert (at_host(cast(Any, there)), at_host(cast(Any, here))) == ("nv12", here)


def test_what_is_decoded_by_and_how_often_it_failed_is_counted_and_the_session_given_back(film: Path) -> None:
    settings = DetectConfig(latency="lowest")
    decoders = Device(fails_at=20).decoders(DecodeConfig(hardware="cuda", fallback=True))
    analysis = CameraAnalysis("gate", WalkerDetector(), Tracker, settings)
    stream = DetectStream(analysis, settings, ManualClock(), lambda message: None, hardware=decoders.of("gate", CAMERA))
    with ClipReader(str(film)) as reader:
        stream.begin(reader.info, "run")
        for n, packet in enumerate(reader.packets()):
            if n == 10:
                assert (stream.counts().decoder, decoders.sessions) == ("cuda", 1)
            stream.take(packet)
        counts = stream.counts()
        assert (counts.decoder, counts.decoder_failures, decoders.sessions) == ("software", 1, 0)
        assert "decoded in software meanwhile" in counts.decoder_fault
        stream.end()
        stream.begin(reader.info, "run2")
        assert (stream.counts().decoder, stream.counts().decoder_fault, decoders.sessions) == ("cuda", "", 1)
        stream.end()
        assert decoders.sessions == 0


def test_a_session_is_given_back_also_if_its_last_frames_cannot_be_examined(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a GPU that is lost: each reconnection would take another session, until there is none."""
    decoders = Device().decoders(DecodeConfig(hardware="cuda", fallback=True))
    analysis = CameraAnalysis("gate", WalkerDetector(), Tracker, DetectConfig())
    stream = DetectStream(
        analysis, DetectConfig(), ManualClock(), lambda message: None, hardware=decoders.of("gate", CAMERA)
    )

    def lost() -> None:
        raise av.error.ExternalError(1, "the GPU is lost")

    monkeypatch.setattr(analysis, "close", lost)
    with ClipReader(str(film)) as reader:
        stream.begin(reader.info, "run")
        assert decoders.sessions == 1
        with pytest.raises(av.error.ExternalError):
            stream.end()
    assert decoders.sessions == 0


def test_the_fake_has_the_signature_of_the_real_one() -> None:
    fake = inspect.signature(FakeAccel)
    given = HWAccel.__doc__ or ""
    assert given.startswith(f"HWAccel({', '.join(map(_plain, fake.parameters.values()))})\n") or av.__version__ < "18"
    plain = av.CodecContext.create("h264", "r", hwaccel=None)
    assert not plain.is_hwaccel
    with pytest.raises(HardwareFailed):  # none here; where there is one, this test has to be told of it
        LibavCodec(ways("cuda", None, "")[0], proof_clip("libx264").info)


def test_auto_takes_what_costs_less_than_software_and_nothing_else(film: Path) -> None:
    auto = DecodeConfig(hardware="auto")
    with ClipReader(str(film)) as reader:
        for cpu_ms, device in ((0.5, "cuda"), (2.0, "software")):
            hardware = Device().decoders(auto, cpu_ms=cpu_ms).of("gate", CAMERA)
            assert hardware is not None
            Decoder("gate", reader.info, hardware)
            assert (hardware.device, hardware.fault) == (device, "")


def test_what_is_asked_for_and_not_there_is_refused_with_the_key_and_the_cure() -> None:
    decoders = Device().decoders(DecodeConfig())
    lacking = CameraConfig(url="rtsp://camera/main", decode=CameraDecodeConfig(hardware="vaapi"))
    with pytest.raises(
        MissingDependency, match=r"cameras\.gate\.decode\.hardware vaapi .*renderD128.*fallback to true"
    ):
        decoders.must_have({"gate": lacking})
    allowed = lacking.model_copy(update={"decode": CameraDecodeConfig(hardware="vaapi", fallback=True)})
    decoders.must_have({"gate": allowed, "yard": CAMERA, "off": lacking.model_copy(update={"enabled": False})})
    asking = config.SiteConfig(cameras={"gate": lacking, "yard": allowed})
    found = [(each.about, each.level) for each in _hardware_decode(asking, decoders)]
    assert found == [("cameras.gate.decode", "wrong"), ("decode.hardware vaapi", "warning")]


@pytest.mark.slow
def test_ingest_ends_with_2_before_anything_runs_when_the_hardware_is_not_there() -> None:
    decode = {"hardware": "drm", "ffmpeg": "no-such-ffmpeg"}
    given = json.dumps({"decode": decode, "cameras": {"gate": {"url": "rtsp://camera/main"}}}) + "\n"
    command = [sys.executable, "-m", "appliance.ingest"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "decode.hardware drm does not work here: drm: there is no program no-such-ffmpeg; it needs" in done.stderr


def test_a_replay_is_decoded_in_software_unless_asked_and_its_first_line_tells(film: Path) -> None:
    asking = site(hardware="cuda")
    detector = WalkerDetector()
    plan = ReplayPlan((clip_input(film, asking.for_decisions(), "gate", detector),), asking.for_decisions(), detector)
    device = Device()
    lines = {}
    for name, each in (("software", plan), ("cuda", with_hardware(plan, device.decoders(CUDA), "cuda"))):
        log = io.BytesIO()
        play(each, log, ReplayOptions(ManualClock()))
        lines[name] = [json.loads(line) for line in log.getvalue().splitlines()]
        assert bool(device.accels) == (name == "cuda")
    assert "decoder" not in lines["software"][0]["settings"]
    assert lines["cuda"][0]["settings"]["decoder"] == "cuda"
    assert lines["cuda"][0]["run"] != lines["software"][0]["run"]
    seen = [[each for each in of if each["type"] == "boxes" and each["objects"]] for of in lines.values()]
    assert seen[0] == seen[1] != []


def test_a_device_that_fails_ends_a_replay_and_nothing_takes_its_place(film: Path) -> None:
    asking, detector = site(), WalkerDetector()
    plan = ReplayPlan((clip_input(film, asking.for_decisions(), "gate", detector),), asking.for_decisions(), detector)
    (result,) = play(
        with_hardware(plan, Device(fails_at=20).decoders(CUDA), "cuda"), None, ReplayOptions(ManualClock())
    )
    assert "a scripted failure (--hardware; without it software decodes)" in (result.end.error or "")


def test_the_system_page_is_told_what_was_found_and_is_in_use(film: Path) -> None:
    decoders = Device().decoders(DecodeConfig(hardware="auto", sessions_max=4))
    assert decoders.text == "", "nothing was asked for yet"
    hardware = decoders.of("gate", CAMERA)
    with ClipReader(str(film), hardware=hardware):
        assert decoders.text == "1 of 4 sessions; cuda (h264, hevc), no v4l2, no drm, no vaapi, no qsv"
    assert decoders.text.startswith("0 of 4 sessions")


def test_the_section_is_read_as_yaml_writes_it_and_sessions_must_suffice(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        "decode: {hardware: cuda, sessions_max: 1}\n"
        "cameras:\n  gate: {url: 'rtsp://a/b'}\n  yard: {url: 'rtsp://a/c', decode: {hardware: off}}\n",
        encoding="utf-8",
    )
    read = config.load(path)
    assert [read.decode.hardware_of(each.decode) for each in read.cameras.values()] == ["cuda", "off"]
    assert read.for_ingest().decode == read.decode
    path.write_text(path.read_text(encoding="utf-8").replace("off", "qsv"), encoding="utf-8")
    with pytest.raises(ConfigError, match="2 cameras are to be decoded by hardware, and it allows 1"):
        config.load(path)


def test_a_probe_proves_times_and_pixels() -> None:
    frames, _ = software_frames(proof_clip("libx264"))
    same_frames("cuda", frames, frames)
    late = [(pts + 1, luma) for pts, luma in frames]
    other = [*frames[:-1], (frames[-1][0], frames[-1][1] ^ 4)]
    for wrong, said in ((late, "or at other times"), (frames[1:], "gives 23 frames"), (other, "its frame 23 is not")):
        with pytest.raises(HardwareFailed, match=said):
            same_frames("cuda", wrong, frames)


def test_software_is_timed_as_ingest_decodes_without_the_loop_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    smooth, raw = (software_frames(proof_clip("libx265"), loop_filter=each)[0] for each in (True, False))
    assert [pts for pts, _ in raw] == [pts for pts, _ in smooth]
    assert any((one != other).any() for (_, one), (_, other) in zip(raw, smooth, strict=True))
    costs = {True: 9.0, False: 3.0}
    monkeypatch.setattr(hardware_probe, "must_exist", lambda way, codec: None)
    monkeypatch.setattr(hardware_probe, "_prove", lambda way, clip: (way, 5.0))
    monkeypatch.setattr(hardware_probe, "software_frames", lambda clip, loop_filter=True: ([], costs[loop_filter]))
    found = probe_kind("vaapi", None, "ffmpeg")
    assert (found.cpu_ms, found.software_ms) == (5.0, 3.0)


def test_a_test_clip_is_encoded_once_for_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = proof_clip("libx264", tmp_path)
    monkeypatch.setattr(hardware_probe, "_encoded", lambda encoder: pytest.fail("it was encoded again"))
    again = proof_clip("libx264", tmp_path)
    assert [bytes(each) for each in again.packets] == [bytes(each) for each in first.packets]


@pytest.mark.parametrize(
    ("version", "option"), [("4.4.2", "-vsync"), ("5.0.3", "-vsync"), ("5.1.6", "-fps_mode"), ("n7.1", "-fps_mode")]
)
def test_an_ffmpeg_before_5_1_is_asked_in_its_own_words(tmp_path: Path, version: str, option: str) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\necho 'ffmpeg version {version}-0ubuntu0.22.04.1 Copyright'\n")
    program.chmod(0o755)
    assert piped_codec.every_frame(str(program)) == (option, "passthrough")


def test_nothing_of_this_machine_is_taken_for_what_it_is_not() -> None:
    """Here there is no such device; where there is one, it proves itself."""
    for kind in ("cuda", "drm", "vaapi"):
        probed = probe_kind(kind, None, "no-such-ffmpeg")
        assert probed.works or (probed.reason and "it needs" in probed.text)


class OnGpu(WalkerDetector):
    """A detector that takes frames on the GPU; lacking: the kernel for it cannot be compiled."""

    shape_step = 32

    def __init__(self, *, lacking: bool = False) -> None:
        self.runtime = SimpleNamespace(run_frames=print)
        self.taken: list[GpuFrame] = []
        self.shown = 0
        self._lacking = lacking

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.shown += len(pictures)
        return super().detect(pictures)

    def detect_on_gpu(self, frames: Sequence[GpuFrame]) -> list[Detections]:
        if self._lacking:
            raise MissingDependency("frames on the GPU need NVRTC")
        self.taken += frames
        return [Detections.empty() for _ in frames]


@pytest.mark.parametrize("lacking", [False, True])
def test_a_whole_frame_on_the_gpu_goes_to_a_detector_there_as_it_lies(film: Path, lacking: bool) -> None:
    detector = OnGpu(lacking=lacking)
    hand_over = GpuHandOver(detector)
    driver = FrameByFrame("gate", detector, Tracker(("person",)), DetectConfig(latency="lowest"))
    device, asked = Device(), []
    with ClipReader(str(film), hardware=device.decoders(CUDA).of("gate", CAMERA)) as reader:
        for frame in reader.frames(driver.analysis.decode_policy):
            request = driver.select(frame.index, frame.t, frame.av_frame)
            if request is not None:
                asked.append(request)
                driver.result(request, hand_over.detect([request])[0])
    whole = [each.gpu_frame for each in asked if each.mosaic is None]
    assert len(whole) >= 2
    assert None not in whole
    assert {each.gpu_frame for each in asked if each.mosaic is not None} == {None}, "parts are drawn on the host"
    assert (detector.taken, detector.shown) == (([], len(asked)) if lacking else (whole, len(asked) - len(whole)))
    first = asked[0].gpu_frame
    assert first is not None
    assert (first.luma, first.luma_pitch, first.chroma, first.matrix, first.full_range) == (1, 512, 2, "bt709", True)
    assert (first.width, first.height) == (driver.analysis.probe.size)
    # With two frames of which one lies elsewhere both go by the host.
    detector.taken, detector.shown = [], 0
    hand_over.detect([asked[0], replace(asked[0], gpu_frame=None)])
    assert (detector.taken, detector.shown) == ([], 2)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("numbers") / "numbers.mp4", 30, gop=10)


def test_frames_of_the_systems_ffmpeg_are_those_of_software_also_when_it_begins_anew(
    numbers: Path, tmp_path: Path
) -> None:
    program = fake_ffmpeg(tmp_path, version="4.4.2")  # of JetPack 6
    way = DecodeWay("v4l2", "ffmpeg", {"h264": "h264_nvv4l2dec"}, program=str(program))
    with ClipReader(str(numbers)) as reader:
        packets = [each.packet for each in reader.packets()]
        wanted = [packet.pts for packet in packets]
        codec = PipedCodec(way, reader.info)
        try:
            first = [frame.pts for packet in packets[:15] for frame in codec.decode(packet)]
            codec.flush_buffers()  # as after a cue: from the key frame on once more, so back in time
            again = [frame.pts for packet in packets[10:] for frame in codec.decode(packet)]
            again += [frame.pts for frame in codec.decode(None)]
        finally:
            codec.close()
    assert first == wanted[: len(first)]
    assert len(first) >= 14
    assert again == wanted[10:]


def test_an_ffmpeg_that_lacks_the_decoder_or_dies_says_so(numbers: Path, tmp_path: Path) -> None:
    with ClipReader(str(numbers)) as reader:
        packets = [each.packet for each in reader.packets()]
        for knows, dies_after, said in (
            ("hevc_nvv4l2dec", 0, r"v4l2: ffmpeg: \[dec:x\] Unknown decoder 'h264_nvv4l2dec'"),
            ("h264_nvv4l2dec", 5, "v4l2: ffmpeg: the decoder hung itself up"),
        ):
            way = DecodeWay(
                "v4l2", "ffmpeg", {"h264": "h264_nvv4l2dec"},
                program=str(fake_ffmpeg(tmp_path, knows=knows, dies_after=dies_after)),
            )  # fmt: skip
            codec = PipedCodec(way, reader.info)
            with pytest.raises(HardwareFailed, match=said):
                _give(codec, packets)
            codec.close()


def test_a_process_with_many_open_files_decodes_as_one_with_few(numbers: Path, tmp_path: Path) -> None:
    """Each camera has sockets, segments and pipes; `select` takes no descriptor above 1023."""
    way = DecodeWay("v4l2", "ffmpeg", {"h264": "h264_nvv4l2dec"}, program=str(fake_ffmpeg(tmp_path)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    with ClipReader(str(numbers)) as reader:
        packets = [each.packet for each in reader.packets()]
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        codec = PipedCodec(way, reader.info)
        try:
            assert [frame for packet in packets for frame in codec.decode(packet)]
        finally:
            codec.close()
            for each in files:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_ffmpeg_that_is_stuck_in_a_driver_holds_up_nobody(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not even die; its pipe stays open as long as a thread reads of it."""
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    started, popen = list[subprocess.Popen[bytes]](), subprocess.Popen

    def start(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        child = popen(*given, **options)
        monkeypatch.setattr(child, "kill", lambda: None)
        started.append(child)
        return child

    monkeypatch.setattr(piped_codec, "END_S_MAX", 0.05)
    monkeypatch.setattr(piped_codec, "every_frame", lambda program: ("-fps_mode", "passthrough"))
    monkeypatch.setattr(subprocess, "Popen", start)
    with ClipReader(str(numbers)) as reader:
        way = DecodeWay("v4l2", "ffmpeg", {"h264": "h264_nvv4l2dec"}, program=str(program))
        began = time.monotonic()
        PipedCodec(way, reader.info).close()
    (child,) = started
    assert time.monotonic() - began < 10
    assert child.poll() is None
    assert child.stdout is not None
    assert not child.stdout.closed
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    until(lambda: not any(each.name == "decoded" for each in threading.enumerate()))
    child.stdout.close()


def test_an_ffmpeg_that_reads_and_never_answers_is_given_up_soon_after_its_start(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is waited for once, not with each of the packets that a decoder may hold back."""
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexec 3>&1 cat >/dev/null\n")
    program.chmod(0o755)
    monkeypatch.setattr(piped_codec, "START_S_MAX", 1.0)
    monkeypatch.setattr(piped_codec, "FRAME_S_MAX", 0.01)
    monkeypatch.setattr(piped_codec, "every_frame", lambda program: ("-fps_mode", "passthrough"))
    with ClipReader(str(numbers)) as reader:
        packets = [each.packet for each in reader.packets()]
        codec = PipedCodec(DecodeWay("v4l2", "ffmpeg", {"h264": "h264_nvv4l2dec"}, program=str(program)), reader.info)
        began = time.monotonic()
        with pytest.raises(HardwareFailed, match="gives no picture back"):
            _give(codec, packets)
        assert time.monotonic() - began < 5, "one START_S_MAX; before, one for each of 17 packets"
        codec.close()


def test_hardware_that_cannot_be_tried_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refused)
    found = hardware_probe.probe_hardware(["cuda"])["cuda"]
    assert (found.works, found.reason) == (False, "it could not be tried: Resource temporarily unavailable")


def _decode_all(reader: ClipReader, device: Device) -> None:
    codec = LibavCodec(ways("cuda", None, "")[0], reader.info, device.libav())
    _give(codec, [each.packet for each in reader.packets()])


def _give(codec: HardwareCodec, packets: list[Any]) -> None:
    for packet in packets:
        codec.decode(packet)


def _plain(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default}"


def _later(packet: Any, seconds: float) -> Any:
    there = av.Packet(bytes(packet.packet))
    there.time_base, there.is_keyframe = packet.packet.time_base, packet.keyframe
    there.pts, there.dts = (each + round(seconds * 1_000_000) for each in (packet.packet.pts, packet.packet.dts))
    return replace(packet, packet=there, t=packet.t + seconds)
