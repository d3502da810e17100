"""How much faster than real time a replay goes: 720p at 15 frames a second, 5 looks a second, the bundled network.

    python -m benchmarks.replay_speed                              # the bundled yard, brought to 1280x720
    python -m benchmarks.replay_speed --model vedette-nano-int8 --with rain,night --json speed.json
    python -m benchmarks.replay_speed --conditions                 # what each condition of `--with` costs instead

Each round replays the whole clip with one thread calling the detector and with one per core. Wall time depends on other
processes; so the CPU time that these took meanwhile is shown beside it (cores that they kept busy), and the CPU time of
the replay, which they change little. The logs of all rounds must be the same bytes.
A condition's cost is in milliseconds of CPU a frame of 1280x720, one core, the median of several frames.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import cv2
import numpy as np

from appliance import config
from appliance.base import yamlfile
from appliance.base.clock import SystemClock
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.replay.footage_conditions import CONDITION_KINDS, NO_CONDITIONS, ConditionSet
from appliance.replay.frame_transform import frame_transform_of
from appliance.replay.replay_plan import workers_for
from benchmarks.__main__ import ROOT, SITE
from tests.support.clip_replay import replay

SIZE, RATE = (1280, 720), 15
YARD = ROOT / "fixtures" / "clips" / "yard.mp4"
CONDITION_FRAMES, CONDITION_T = 15, 10.2  # how many, and their time in the footage
BAR = 10.0


@dataclass(frozen=True, slots=True)
class Round:
    """One replay. others: cores that other processes kept busy meanwhile, on average."""

    threads: int
    speed: float
    wall_s: float
    cpu_s: float
    others: float
    looks: int


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.replay_speed", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--clip", type=Path, help="720p at 15 frames a second (default: yard.mp4, brought to that)")
    options.add_argument("--model", default="auto", help="detector (default: the bundled network)")
    options.add_argument("--with", dest="weather", default="none", help="weather, as of vedette replay")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options.add_argument("--conditions", action="store_true", help="the cost of each condition, no replay")
    chosen = options.parse_args()
    if chosen.conditions:
        return measure_conditions(chosen.json)
    site = yamlfile.loads(SITE, config.SiteConfig)
    site = site.model_copy(update={"detector": site.detector.model_copy(update={"model": chosen.model})})
    network = detector_loader.load(site.detector)
    with tempfile.TemporaryDirectory() as folder:
        clip = chosen.clip or enlarged(YARD, Path(folder) / "yard720.mp4")
        about = {"clip": described(clip), "model": network.name, "cores": usable_cores(), "with": chosen.weather}
        print(json.dumps(about))
        made = ConditionSet.parse([chosen.weather])
        rounds = [
            one(clip, site, network, threads, made)
            for _ in range(chosen.rounds)
            for threads in sorted({1, workers_for(site.for_decisions())})
        ]
    if len({log for _, log in rounds}) != 1:
        print("the logs of the rounds differ", file=sys.stderr)
        return 1
    figures = [each for each, _ in rounds]
    for threads in sorted({each.threads for each in figures}):
        print(table_row([each for each in figures if each.threads == threads]))
    if chosen.json:
        about["python"], about["machine"] = platform.python_version(), platform.machine()
        chosen.json.write_text(json.dumps({**about, "rounds": [asdict(each) for each in figures]}, indent=1))
    return 0


def measure_conditions(to: Path | None) -> int:
    """Print the milliseconds of each condition, and of four together."""
    cv2.setNumThreads(1)
    with av.open(str(YARD)) as film:
        shown = zip(range(CONDITION_FRAMES), film.decode(video=0), strict=False)
        frames = [frame.reformat(*SIZE, "yuv420p") for _, frame in shown]
    texts = {
        kind.name: f"{kind.name}@10s" if kind.when == "moment" else kind.name
        for kind in CONDITION_KINDS
        if not kind.stream
    }
    figures = {name: _condition_ms(text, frames) for name, text in texts.items()}
    figures["rain,night,shake,jpeg"] = _condition_ms("rain,night,shake,jpeg", frames)
    for name, value in figures.items():
        print(f"{name:<24} {value:6.1f} ms")
    if to:
        to.write_text(json.dumps({"size": SIZE, "ms": figures}, indent=1))
    return 0


def _condition_ms(text: str, frames: list[av.VideoFrame]) -> float:
    lens = frame_transform_of(ConditionSet.parse([text]))
    assert lens is not None, text
    lens(0, CONDITION_T, frames[0])  # what is made once for the whole footage
    took = []
    for number, frame in enumerate(frames):
        begin = time.thread_time()
        lens(number, CONDITION_T, frame)
        took.append(1000 * (time.thread_time() - begin))
    return round(statistics.median(took), 1)


def one(
    clip: Path, site: config.SiteConfig, network: ObjectDetector, threads: int, weather: ConditionSet = NO_CONDITIONS
) -> tuple[Round, bytes]:
    """Replay the clip once, and return the round and its log."""
    log, before = io.BytesIO(), busy_s()
    result = replay(
        clip, site.for_decisions(), "yard", network, log, clock=SystemClock(), workers=threads, conditions=weather
    )
    others = (busy_s() - before - result.cost.cpu_s) / result.cost.wall_s
    found = Round(
        threads=threads,
        speed=round(result.end.t / result.cost.wall_s, 2),
        wall_s=round(result.cost.wall_s, 2),
        cpu_s=round(result.cost.cpu_s, 2),
        others=round(max(0.0, others), 2),
        looks=result.end.examined,
    )
    return found, log.getvalue()


def table_row(rounds: list[Round]) -> str:
    """Write the medians of one kind of round."""
    middle = {name: statistics.median(getattr(each, name) for each in rounds) for name in ("speed", "cpu_s", "others")}
    best = max(rounds, key=lambda each: each.speed)
    return (
        f"{rounds[0].threads} asking: {middle['speed']:.1f} times real time (bar {BAR:g}), "
        f"{middle['cpu_s']:.2f} CPU-s, {rounds[0].looks} looks, "
        f"others kept {middle['others']:.1f} cores busy (medians of {len(rounds)}); "
        f"least disturbed: {best.speed:.1f} times, others {best.others:.1f}"
    )


def enlarged(source: Path, target: Path) -> Path:
    """Write the clip at 1280x720 and 15 frames a second, as H.264 of a camera (no B frames, a key frame in 2 s)."""
    with av.open(str(source)) as film, av.open(str(target), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.options = {"preset": "veryfast", "crf": "23", "bf": "0", "g": str(2 * RATE)}
        for number, frame in enumerate(film.decode(video=0)):
            scaled = cv2.resize(frame.to_ndarray(format="bgr24"), SIZE, interpolation=cv2.INTER_CUBIC)
            picture = np.asarray(scaled, np.uint8)
            large = av.VideoFrame.from_ndarray(picture, format="bgr24").reformat(format="yuv420p")
            large.pts = number
            container.mux(stream.encode(large))
        container.mux(stream.encode(None))
    return target


def described(clip: Path) -> str:
    with av.open(str(clip)) as film:
        stream = film.streams.video[0]
        size = f"{stream.codec_context.width}x{stream.codec_context.height}"
        return f"{clip.name} {size} {float(stream.average_rate or 0):g} fps, {clip.stat().st_size / 1e6:.1f} MB"


def busy_s() -> float:
    """Return the CPU seconds that all processes of this machine have used together; Linux only."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, soft = (int(each) for each in fields[:7])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
