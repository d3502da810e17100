"""The whole way from a false alarm to a network without it: python -m models.train.loop --out DIR.

On a rendered site, whose mannequin is reported as a person day after day (`fixtures.render mannequin`):

1. its days are played to the appliance's own parts with the network that comes with Vedette, and every alert is
   answered as the truth is;
2. `vedette export --format training` makes the site's set of it, and `models.train.finetune` re-trains the head;
3. the result becomes a bundle with a version, is signed, installed from the signed repository, and tried by
   `vedette models prove` on the recording of other days;
4. these other days are played with both networks: what is gone of the false alarms, and what is lost of the visits
   that were reported, with the one-sided 95 % bound of Clopper and Pearson;
5. with --evaluation, the pictures of other kinds of view (`models.evaluation.public`) are judged by both.

The exit status says whether all measured bars hold. No clip of DIR is rendered again. The clock is moved along clips.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from appliance.__main__ import main as vedette
from appliance.alerts.pipeline import Pipeline
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.base.clock import ManualClock, SystemClock, local_weekday_minute
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import VedetteError
from appliance.bundle.manifest import BundleManifest
from appliance.config import SiteConfig, load
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.router.calibration import error_bound
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.reviews import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.track.tracker import Tracker
from appliance.types import Event, Gap, PipelineStep, StreamHeader, iou
from fixtures.render.clip import Row, read_rows
from fixtures.render.family import mannequin
from fixtures.render.scene import PERSON
from models.evaluation import cameras, kinds, public
from models.train import finetune
from models.train.dataset import IndexFault

GONE_MIN, LOST_MAX, LOST_BOUND_MAX = 0.6, 0.01, 0.03  # shares: of false alarms; of reported visits, and its 95 % bound
CAMERA, RULE = "shop", "somebody"
BEGIN_T = 1_795_172_400.0  # UTC seconds, 2026-11-20T11:00:00Z
AWAY_S = 60.0  # between two clips: alerts of one are no incident with those of the next
SAME_IOU = 0.3  # an event is about the true box that it overlaps most, from here on
EVIDENCE_ROUNDS = 40  # of the evidence maker, which makes a few pieces at a time


@dataclass(frozen=True, slots=True)
class Reported:
    """An event, and which true object it is about (None: nothing that is there). clip: the file's stem."""

    clip: str
    event: Event
    about: int | None
    is_person: bool


def write_site(root: Path) -> Path:
    """Write the site file of one camera that reports everybody who stays for 0.6 s; return its path."""
    rule = {"name": RULE, "kind": "dwell", "zone": "ground", "seconds": 0.6, "labels": ["person"]}
    camera = {
        "url": "file:/dev/null", "training": True, "detect": {"latency": "lowest"},
        "zones": {"ground": [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]}, "rules": [rule],
    }  # fmt: skip
    site = {
        "site": {"name": "rendered"},
        "storage": {"dir": str(root / "data"), "disk_free_min_mb": 0, "keep_hours": 1000},
        "alerts": {"merge_s": 1, "pre_roll_s": 0, "post_roll_s": 0},
        "cameras": {CAMERA: camera},
    }
    root.mkdir(parents=True, exist_ok=True)
    (root / "site.yaml").write_text(yaml.safe_dump(site, sort_keys=False))
    return root / "site.yaml"


class RecordedSite:
    """The storage of a site while clips are played to it. Owner: one thread; `close` ends it."""

    def __init__(self, site_file: Path, detector: ObjectDetector) -> None:
        self.config: SiteConfig = load(site_file)
        self._root = self.config.storage.dir
        self._root.mkdir(parents=True, exist_ok=True)
        self._clock = ManualClock(BEGIN_T)
        self._db = Database(self._root / DATABASE, self._clock)
        self.alerts, self.boxes, self.cameras = AlertStore(self._db), BoxStore(self._db), CameraStore(self._db)
        self.cameras.ensure({name: camera.url for name, camera in self.config.cameras.items()})
        self.detector = detector
        self.raised: set[str] = set()
        """Alerts by their ids."""
        self._right: set[str] = set()

    def play(self, clips: Sequence[Path]) -> list[Reported]:
        """Let the camera show each clip in a session of its own; return what its rule reported. Raise SourceError."""
        return [each for clip in clips for each in self._played(clip)]

    def review(self) -> tuple[int, int]:
        """Answer every alert as the truth is: right if any event of it is about a person. Return right and false."""
        counts = [0, 0]
        for alert in self.raised:
            right = any(each.id in self._right for each in self.alerts.events_of(alert))
            ReviewStore(self._db).review([alert], "reviewed" if right else "false_alarm", self._clock.now())
            counts[not right] += 1
        return counts[0], counts[1]

    def close(self) -> None:
        """Make what evidence the alerts need, and end."""
        maker = EvidenceMaker(self._db, self._root, self.config.for_decisions(), self._clock)
        for _ in range(EVIDENCE_ROUNDS):
            if not maker.run_once():
                break
        self._db.close()

    def _played(self, clip: Path) -> Iterator[Reported]:
        begin, run = self._clock.now(), clip.stem
        source = FileSource(CAMERA, f"file:{clip}", self._clock)
        info = source.open()
        target = RecordTarget(self._root, CAMERA, self.config.storage.segment_s, 0)
        store = SegmentStore(self._db)
        recorder = SegmentRecorder(target, self._clock, lambda row: None if isinstance(row, Gap) else store.put(row))
        recorder.begin(info, run)
        session = _Session(self, run)
        decoder = Decoder(CAMERA, info)
        for packet in source.packets():
            recorder.take(packet)
            for frame in decoder.decode(packet):
                session.take(frame)
        recorder.end()
        source.close()
        session.end()
        truth = read_rows(clip.with_suffix(".gt.txt"))
        for event in session.events:
            row = _about(event, round((event.t - begin) * mannequin.FPS) + 1, truth, session.size)
            is_person = row is not None and row.kind == PERSON
            if is_person:
                self._right.add(event.id)
            yield Reported(run, event, None if row is None else row.number, is_person)
        self._clock.advance(AWAY_S)


class _Session:
    """One clip on its way from frames to alerts."""

    def __init__(self, site: RecordedSite, run: str) -> None:
        camera = site.config.cameras[CAMERA]
        self._site, self._run, self._t = site, run, 0.0
        self._analysis = CameraAnalysis(CAMERA, site.detector, Tracker, camera.detect, decode_everything=True)
        self._pipeline = Pipeline(CAMERA, camera, site.config.alerts, local_time=local_weekday_minute)
        self.size = (0, 0)
        self.events: list[Event] = []

    def take(self, frame: DecodedFrame) -> None:
        """Examine a frame if it is due, and decide."""
        self._t = frame.t
        if self._analysis.begins_session(frame):
            self.size = self._analysis.start_session(frame)
            header = StreamHeader(camera=CAMERA, clip="", model=self._site.detector.name, size=self.size, run=self._run)
            self._site.cameras.write_header(header)
            self._pipeline.feed(header)
        request = self._analysis.select(frame)
        if request is not None:
            found = self._site.detector.detect([self._analysis.detector_input(request)])[0]
            boxes = self._analysis.result(request, found)
            self._site.boxes.append(CAMERA, self._run, [boxes])
            self._commit(self._pipeline.feed(boxes))

    def end(self) -> None:
        """End what is open, as the stream is over."""
        self._commit(self._pipeline.close(self._t, "new run"))

    def _commit(self, step: PipelineStep) -> None:
        """Store it as the core does, without a cloud."""
        self.events += step.events
        self._site.alerts.add_suppressed(step.suppressed, self._run)
        for change in step.changes:
            self._site.alerts.apply(change, escalation=None, priority="")
            self._site.raised.add(change.alert.id)


def _about(event: Event, frame: int, truth: Sequence[Row], size: tuple[int, int]) -> Row | None:
    width, height = size
    rows = (row for row in truth if row.frame == frame)
    shared = (
        (iou(event.box, (row.x / width, row.y / height, (row.x + row.w) / width, (row.y + row.h) / height)), row)
        for row in rows
    )
    most, best = max(shared, key=lambda pair: pair[0], default=(0.0, None))
    return best if most >= SAME_IOU else None


@dataclass(frozen=True, slots=True)
class Days:
    """Rendered clips: how many of which seeds, and every which is without walkers."""

    name: str
    clips: int
    seeds: tuple[int, ...]
    alone: int

    def filmed(self, out: Path) -> list[Path]:
        """Return the clips, filmed where they are not there yet."""
        folder = out / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in self.seeds:
            if len(list(folder.glob(f"{seed}-*.gt.txt"))) < self.clips:
                mannequin.film(folder, self.clips, seed, self.alone)
        return sorted(folder.glob("*.mp4"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Reports of both networks on the same days.

    false_before, false_after: clips in which something that is no person was reported. visits: people in a clip that
    the network before reported; lost: of them those that the other did not; found: those that only the other reported.
    """

    false_before: int
    false_after: int
    visits: int
    lost: int
    found: int

    @property
    def gone(self) -> float:
        """Share of the false alarms that is gone."""
        return 1 - self.false_after / max(1, self.false_before)

    @property
    def lost_bound(self) -> float:
        """Upper 95 % bound of the share of visits that are lost."""
        return error_bound(self.lost, self.visits) if self.visits else 1.0

    @property
    def holds(self) -> bool:
        """Return whether false alarms go and visits stay as asked."""
        kept = self.lost <= LOST_MAX * self.visits and self.lost_bound <= LOST_BOUND_MAX
        return self.gone >= GONE_MIN and kept


def compared(before: Sequence[Reported], after: Sequence[Reported]) -> Comparison:
    """Compare what two networks reported on the same clips."""
    false = [{each.clip for each in reports if not each.is_person} for reports in (before, after)]
    visits = [{(each.clip, each.about) for each in reports if each.is_person} for reports in (before, after)]
    return Comparison(
        len(false[0]), len(false[1]), len(visits[0]), len(visits[0] - visits[1]), len(visits[1] - visits[0])
    )


class Loop:
    """One run of the loop in a folder. State: what was measured so far, in `report`."""

    def __init__(self, out: Path, options: argparse.Namespace) -> None:
        self._out, self._options = out, options
        self.report: dict[str, Any] = {}
        self._began = time.monotonic()

    def run(self) -> bool:
        """Run all of it; return whether the bars hold. Raise VedetteError."""
        days = (Days("before", self._options.before, (1,), 2), Days("fresh", self._options.fresh, (101, 102), 4))
        before, fresh = (each.filmed(self._out) for each in days)
        self._note("rendered", clips=len(before) + len(fresh))
        for name in ("site", "fresh-before", "fresh-after", "set", "bundle", "models", "repository", "keys"):
            shutil.rmtree(self._out / name, ignore_errors=True)
        os.environ["VEDETTE_MODELS"] = str(self._out / "models")
        file, _ = self._played("site", before, "auto")
        self._vedette("export", "--config", file, "--format", "training", "--to", self._out / "set")
        manifest = self._trained()
        self._signed_and_installed(manifest)
        old_file, old = self._played("fresh-before", fresh, "auto")
        _, new = self._played("fresh-after", fresh, str(manifest.ref))
        found = compared(old, new)
        self._note("compared", **asdict(found), gone=found.gone, lost_bound=found.lost_bound, holds=found.holds)
        proof = self._vedette("models", "prove", manifest.ref, "--config", old_file, "--hours", 48, ok=(0, 1))
        self._note("proof", **proof)
        worse = self._other_kinds() if self._options.evaluation else []
        self._note("bars", hold=found.holds and not worse)
        return bool(self.report["bars"]["hold"])

    def _played(self, name: str, clips: Sequence[Path], model: str) -> tuple[Path, list[Reported]]:
        """Play the days to a site of that name, and answer its alerts; return its file and what was reported."""
        file = write_site(self._out / name)
        site = RecordedSite(file, detector_loader.load(DetectorConfig(model=model)))
        reports = site.play(clips)
        right, false = site.review()
        site.close()
        self._note(name, network=site.detector.name, alerts_right=right, alerts_false=false)
        return file, reports

    def _trained(self) -> BundleManifest:
        start, out = finetune.Start(finetune.OWN), self._out / "retrained.onnx"
        made = finetune.retrain(start, self._out / "set", out, finetune.OWN_INT8, self._options)
        judged = {"held_back_before": asdict(made.before), "held_back_after": asdict(made.after)}
        self._note("trained", pictures=made.pictures, others=made.others, **judged)
        return finetune.write_bundle(made.written, self._out / "bundle", made.pictures, made.figures)

    def _signed_and_installed(self, manifest: BundleManifest) -> None:
        """Sign it with keys of this run, and install it as any appliance would."""
        repository = self._out / "repository"
        signing = ("--repository", repository, "--keys", self._out / "keys")
        root = self._vedette("models", "publish", self._out / "bundle", "--new", *signing)["root"]
        self._vedette("models", "install", manifest.ref, "--from", repository, "--root", root)
        blobs = [blob for file in manifest.files.values() for blob in file.blobs]
        head = sum(blob.bytes for blob in blobs if blob.stage == "head")
        self._note("installed", bundle=str(manifest.ref), bytes=manifest.total_bytes, bytes_of_the_heads=head)

    def _other_kinds(self) -> list[str]:
        """Judge the pictures of other kinds of view by both; return those of which the new one is worse."""
        cache: Path = self._options.evaluation
        rows = public.read(cache)
        if (cache / cameras.NAME).is_file():
            rows += public.read(cache, cameras.NAME)
        before, after = (
            kinds.figures(rows, list(kinds.judged(kinds.load(str(path)), public.labelled(cache, rows))))
            for path in (finetune.OWN, self._out / "retrained.onnx")
        )
        figures = {
            f"{one.kind}, {one.name}": {
                "before": round(one.ap50, 4), "low": round(one.low, 4), "after": round(other.ap50, 4)
            }
            for one, other in zip(before, after, strict=True)
        }  # fmt: skip
        worse = [name for name, each in figures.items() if each["after"] < each["low"]]
        self._note("other_kinds", pictures=len(rows), figures=figures, worse_than_interval=worse)
        return worse

    def _vedette(self, *words: object, ok: Sequence[int] = (0,)) -> Any:
        """Run a command of Vedette; return its JSON. Raise IndexFault if it does not end as it should."""
        said = self._out / "command.json"
        with said.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            status = vedette([*map(str, words), "--json"])
        if status not in ok:
            raise IndexFault(f"vedette {' '.join(map(str, words))}: exit code {status}")
        return json.loads(said.read_text(encoding="utf-8"))

    def _note(self, name: str, **what: Any) -> None:
        self.report[name] = {**what, "after_s": round(time.monotonic() - self._began, 1)}
        print(f"{name}: {json.dumps(self.report[name])}", file=sys.stderr)
        text = json.dumps({"made_t": SystemClock().now(), **self.report}, indent=1)
        (self._out / "report.json").write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; returns 0 if the bars hold, 1 if not, 2 if it could not be run."""
    parser = argparse.ArgumentParser(
        prog="python -m models.train.loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the run: clips, sites, set, bundle, report.json")
    add("--before", type=int, default=32, help="clips of the days that are learnt from (default 32)")
    add("--fresh", type=int, default=36, help="clips of each of the two seeds that are judged by (default 36)")
    add("--base", type=Path, default=finetune.CLIPS, help="other pictures (default: our rendered clips)")
    add("--others", type=int, default=150, help="how many of them (default 150)")
    add("--epochs", type=int, default=20, help="how often each cell is shown (default 20)")
    add("--evaluation", type=Path, help="cache of models.evaluation.public: judge other kinds of view as well")
    add("--threads", type=int, default=1, help="of PyTorch (default 1)")
    add("--seed", type=int, default=0, help="of the background cells, the other pictures and their order (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    loop = Loop(options.out.resolve(), options)
    try:
        holds = loop.run()
    except VedetteError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(loop.report, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
