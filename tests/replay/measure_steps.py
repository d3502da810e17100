"""What a question costs on the uplink, step by step, and at which step a second look settles it.

    python tests/replay/measure_steps.py                     # the bundled clips, and PETS where the data is
    python tests/replay/measure_steps.py --judge femto.onnx  # judged by another network
    python tests/replay/measure_steps.py --many              # with alerts of 10 s at most, for more questions
    python tests/replay/measure_steps.py --set crops=3 --set frame_bytes_max=65536

Each clip is replayed with an uplink in its site file. Every question that the router asks is measured twice from the
same frames: as four whole pictures (`first: frames`, the way before), and as cut-outs (`first: crops`) with the whole
picture after them where the judge asked for it. Bytes are payload, subject and headers of every message of a question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.config import SiteConfig
from appliance.detect import detector_loader
from appliance.replay.replay_routing import EscalationImages, FrameHistory, replay_escalation
from appliance.router.escalation_planner import build_escalation
from appliance.types import Alert, Event, EvidenceStep
from cloud_worker.commands import build_engine as engine_of
from cloud_worker.config import RedetectEngine
from cloud_worker.evidence import IN_PROCESS, EvidenceFile
from cloud_worker.judge import Engine, Judge, JudgeCase
from tests.support.clip_replay import replay

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("VEDETTE_SHARED", ROOT / ".." / "shared")) / "data"
PETS = SHARED / "footage" / "pets09_s2l1_vtest_768x576.mp4"
LAWN = {
    "zones": {"lawn": [[0.05, 0.3], [0.95, 0.3], [0.95, 0.98], [0.05, 0.98]]},
    "rules": [{"name": "walker", "kind": "enter", "zone": "lawn", "severity": "alert"}],
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. frames: the way before; crops: first message; frame: what the second one adds."""

    frames: tuple[int, wire.Verdict]
    crops: tuple[int, wire.Verdict]
    frame: tuple[int, wire.Verdict] | None

    @property
    def bytes(self) -> int:
        return self.crops[0] + (self.frame[0] if self.frame else 0)

    @property
    def decision(self) -> str:
        return (self.frame or self.crops)[1].decision


class Bench:
    """Looks over the shoulder of the album: each question that is asked there is asked in both ways of the judge."""

    def __init__(self, config: SiteConfig, engine: Engine) -> None:
        self._config = config
        self._judge = Judge(engine, "bench", SystemClock(), IN_PROCESS)
        self.asked: list[Asked] = []

    def question(self, album: FrameHistory, alert: Alert, event: Event, cut: Any) -> None:
        rule = next(rule for rule in self._config.cameras[alert.camera].rules if rule.name == event.rule)
        body = build_escalation(alert, event, rule, site=self._config.site.name, now=event.t, model="measured")

        def ask(first: EvidenceStep) -> tuple[int, wire.Verdict, Any]:
            pictures: EscalationImages = cut(album, alert, event, first)
            question = replay_escalation(album, alert, event, body, pictures, "high")
            return question.bytes, self._verdict(question.body, pictures.shown), question

        frames, crops = ask("frames"), ask("crops")
        more = None
        if crops[1].need is not None:
            later = crops[2].more(crops[1].need)
            more = (later.bytes, self._verdict(later.body, (*crops[2].images, *later.images)))
        self.asked.append(Asked(frames[:2], crops[:2], more))

    def _verdict(self, body: wire.Escalation, shown: Any) -> wire.Verdict:
        pictures = tuple(EvidenceFile(each.ref, each.data) for each in sorted(shown, key=lambda each: each.ref.t))
        return asyncio.run(self._judge.verdict(JudgeCase(escalation=body, files=pictures, decoder=IN_PROCESS)))


def sites(settings: dict[str, int], many: bool) -> dict[str, tuple[Path, SiteConfig, str]]:
    """clip, site file and camera of each measurement."""
    found = {}
    short = {"merge_s": 2, "length_max_s": 10}
    for name in ("yard", "gate"):
        cameras = yaml.safe_load((ROOT / f"fixtures/scenarios/{name}.scenario.yaml").read_text())["cameras"]
        found[name] = (
            ROOT / f"fixtures/clips/{name}.mp4",
            _site(cameras[name], short if many else {}, settings),
            "camera",
        )
    if PETS.exists():
        found["pets"] = (PETS, _site(LAWN, short, settings), "camera")  # its lawn is never empty
    return found


def _site(camera: dict[str, Any], alerts: dict[str, int], settings: dict[str, int]) -> SiteConfig:
    return SiteConfig.model_validate(
        {
            "cameras": {"camera": {"url": "file:clip.mp4", **camera}},
            "alerts": alerts,
            "escalation": {**settings, "severities": ["info", "warning", "alert"]},
            "uplink": {"url": "nats://127.0.0.1:4222"},
        }
    )


def measure(clip: Path, config: SiteConfig, camera: str, engine: Engine) -> dict[str, Any]:
    bench = Bench(config, engine)
    cut = FrameHistory.images

    def pictures(album: FrameHistory, alert: Alert, event: Event, *first: Any, **later: Any) -> EscalationImages:
        if "need" not in later:
            bench.question(album, alert, event, cut)
        return cut(album, alert, event, *first, **later)

    FrameHistory.images = pictures  # type: ignore[method-assign, assignment]
    try:
        result = replay(clip, config.for_decisions(), camera, detector_loader.load(config.detector))
    finally:
        FrameHistory.images = cut  # type: ignore[method-assign]
    return figures(bench.asked, result.end.footage_bytes, result.end.t)


def figures(asked: list[Asked], footage_bytes: int, footage_s: float) -> dict[str, Any]:
    count = max(1, len(asked))
    before, after = sum(each.frames[0] for each in asked), sum(each.bytes for each in asked)
    return {
        "camera_kbit_s": round(footage_bytes * 8 / footage_s / 1000),
        "questions": len(asked),
        "bytes_a_question_four_frames": round(before / count),
        "bytes_a_question_crops_first": round(after / count),
        "bytes_of_the_first_message": round(sum(each.crops[0] for each in asked) / count),
        "bytes_of_the_second_message": [each.frame[0] for each in asked if each.frame],
        "share_of_camera_bytes_four_frames": round(before / footage_bytes, 4),
        "share_of_camera_bytes_crops_first": round(after / footage_bytes, 4),
        "settled_by_crops": sum(each.crops[1].need is None and each.decision != "unsure" for each in asked),
        "settled_by_the_frame": sum(each.frame is not None and each.decision != "unsure" for each in asked),
        "unsure_in_the_end": sum(each.decision == "unsure" for each in asked),
        "unsure_with_four_frames": sum(each.frames[1].decision == "unsure" for each in asked),
        "same_answer_as_four_frames": sum(each.decision == each.frames[1].decision for each in asked),
        "answers": [f"{each.frames[1].decision} > {each.decision}" for each in asked],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what questions cost, and at which step they are settled.")
    parser.add_argument("--judge", default="auto", metavar="MODEL", help="the network of the second look")
    parser.add_argument("--many", action="store_true", help="alerts of 10 s at most, for more questions")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=N", help="another escalation setting")
    wanted = parser.parse_args()
    engine = engine_of(RedetectEngine(kind="redetect", model=wanted.judge), SystemClock())
    settings = {key: int(value) for key, _, value in (each.partition("=") for each in wanted.set)}
    looked: dict[str, Any] = {"judge": engine.model, "settings": settings}
    for name, (clip, config, camera) in sites(settings, wanted.many).items():
        looked[name] = measure(clip, config.model_copy(update={"detector": DetectorConfig()}), camera, engine)
    print(json.dumps(looked, indent=2))


if __name__ == "__main__":
    main()
