"""The work that ingest does for the bundled clips, counted: frames decoded, inferences, pixels copied, bytes sent.

CPU time depends on the machine and on what else it does; these counts do not. fixtures/work_counts.json holds them, and
more work than there by MORE_SHARE_MAX is a regression. `pytest tests/replay/test_work_counts.py --update` accepts new
ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.base.config_model import DetectorConfig
from appliance.base.json_lines import encode_ingest
from appliance.config import DetectConfig
from appliance.detect import detector_loader
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.track.tracker import Tracker

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "fixtures" / "work_counts.json"
MORE_SHARE_MAX = 0.05  # a processor that rounds otherwise moves a score over a threshold now and then


@dataclass(slots=True)
class WorkCounts:
    """packets: of the clip. decoded: frames, those decoded twice included. image_bytes: handed to the detector.

    channel_bytes: of messages about boxes.
    """

    packets: int = 0
    decoded: int = 0
    inferences: int = 0
    image_bytes: int = 0
    channel_bytes: int = 0


def count_work(clip: Path, latency: str) -> WorkCounts:
    counts = WorkCounts()
    network = detector_loader.load(DetectorConfig(model="vedette-nano", backend="onnx"))
    settings = DetectConfig.model_validate({"latency": latency})
    analysis = CameraAnalysis(clip.stem, network, Tracker, settings)
    source = FileSource(clip.stem, f"file:{clip}")
    info = source.open()
    decoder = Decoder(clip.stem, info)
    analysis.open(decoder, info)

    def take(frame: DecodedFrame) -> None:
        if analysis.begins_session(frame):
            analysis.start_session(frame)
        request = analysis.select(frame)
        if request is None:
            return
        image = analysis.detector_input(request)
        counts.inferences += 1
        counts.image_bytes += image.nbytes
        boxes = analysis.result(request, network.detect([image])[0])
        counts.channel_bytes += len(encode_ingest(boxes))

    try:
        for packet in source.packets():
            counts.packets += 1
            for frame in analysis.frames(packet):
                take(frame)
        for frame in analysis.close():
            take(frame)
    finally:
        source.close()
    counts.decoded = decoder.decoded
    return counts


@pytest.mark.parametrize("latency", ["normal", "thrifty"])
@pytest.mark.parametrize("clip", ["gate", "yard"])
def test_a_clip_costs_no_more_work_than_it_did(clip: str, latency: str, *, update: bool) -> None:
    found = asdict(count_work(ROOT / "fixtures" / "clips" / f"{clip}.mp4", latency))
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    name = f"{clip}, {latency}"
    if update:
        KNOWN.write_text(json.dumps({**known, name: found}, indent=1, sort_keys=True) + "\n")
        return
    more = {key: (known[name][key], n) for key, n in found.items() if n > known[name][key] * (1 + MORE_SHARE_MAX)}
    assert not more, "more work than before: (known, now)"
    assert found["packets"] == known[name]["packets"]
    assert min(found.values()) > 0
