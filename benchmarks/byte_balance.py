"""The byte balance of a site after a run on labelled footage: bytes by kind against camera bytes, incidents escalated.

`LabelledCamera` has a camera's footage, zones and rules with the true objects in each frame; of these `incidents_of`
makes what the site's own rules would raise on them, and `balance` reads the ended site's database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.demo.looping_clip import LoopingClip, as_camera_clip
from appliance.lab.curve_footage import CameraTruth, label_incidents
from appliance.lab.curve_ranking import Candidate, LabelledIncident
from appliance.scenario import ground_truth as true_boxes
from appliance.scenario import scenario_loader
from appliance.store import savings
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.types import FrameBoxes, StreamHeader, TrackedObject
from appliance.wire import Escalation
from benchmarks.ingest.cameras import FrameClock
from benchmarks.ingest.footage import FPS, FootageSpec, Truth, make

LOOKS_PER_S = 5
LATE_S = 12.0  # seconds; what begins so shortly before the end can neither be found nor missed
ROOT = Path(__file__).parents[1]
SCENARIOS = ROOT / "fixtures" / "scenarios"
VIEWS = ("yard", "gate")
VISIBLE_MIN = 0.3
IDS_A_PASS = 1_000_000
LABELS = {"person": "person", "vehicle": "car"}
Frames = Mapping[int, tuple[TrackedObject, ...]]


@dataclass(frozen=True, slots=True)
class LabelledCamera:
    """One camera. section: zones, lines and rules as in a site file; frames: the objects in each frame of one loop.

    once: the truth holds for one loop only, since objects in view at its end are cut off.
    """

    camera: str
    film: Path
    fps: float
    size: tuple[int, int]
    section: Mapping[str, Any]
    length: int
    frames: Frames = field(repr=False)
    once: bool = False

    def at(self, frame: int) -> tuple[TrackedObject, ...]:
        """Return the objects in a frame, counted from the camera's first; in a later loop they have other ids."""
        turn, place = divmod(frame, self.length)
        return tuple(
            TrackedObject(track=each.track + turn * IDS_A_PASS, label=each.label, score=each.score, box=each.box)
            for each in self.frames.get(place, ())
        )


def of_scene(scene: str, footage: Path, lines: int = 720, cameras: int = 2) -> tuple[LabelledCamera, ...]:
    """Return the rendered views in turn, under the rules of their scenarios: `quiet`, `mixed` or `busy`."""
    found = []
    for k in range(cameras):
        view = VIEWS[k % len(VIEWS)]
        path, truth = make(FootageSpec(view, scene, lines), footage)
        clip = LoopingClip(path)
        clip.close()
        section = _sections(SCENARIOS / f"{view}.scenario.yaml")[view]
        found.append(LabelledCamera(f"{view}{k}", path, FPS, clip.size, section, truth.frames, _by_frame(truth)))
    return tuple(found)


def of_scenario(file: Path, folder: Path) -> tuple[LabelledCamera, ...]:
    """Return a scenario file's footage with true boxes, once; none where its clip is absent. Raise ConfigError."""
    made = scenario_loader.load_scenario(file)
    settings = made.scenario.truth
    if made.absent or made.truth is None or settings is None:
        return ()
    (part,) = made.parts
    path = as_camera_clip(part.clip, folder, print)
    clip = LoopingClip(path)
    clip.close()
    seen = true_boxes.read_truth(made.truth, settings, clip.size)
    frames = {
        frame: tuple(
            TrackedObject(track=each.id, label=each.label, score=0.9, box=each.box)
            for each in true_boxes.counted_objects(seen, frame)
        )
        for frame in seen
    }
    fps = clip.fps or float(FPS)
    section = _sections(file)[part.camera]
    return (LabelledCamera(part.camera, path, fps, clip.size, section, max(seen) + 1, frames, once=True),)


def _sections(file: Path) -> Mapping[str, Any]:
    sections: Mapping[str, Any] = yaml.safe_load(file.read_text())["cameras"]
    return sections


def _by_frame(truth: Truth) -> Frames:
    found: dict[int, tuple[TrackedObject, ...]] = {}
    for track, visit in enumerate(truth.visits, 1):
        for frame, sight in visit.sights.items():
            if sight.visible >= VISIBLE_MIN:
                one = TrackedObject(track=track, label=LABELS[visit.label], score=0.9, box=sight.box)
                found[frame] = (*found.get(frame, ()), one)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBalance:
    """The totals of a run.

    `kernel` is the bytes that the interface counted, None without a counter. `missed` has a sentence for each missed
    incident. `settled` counts escalations that have their verdict. `by_kind` holds the parts of `sent`.
    """

    case: str
    cameras: int
    seconds: float
    received: int
    sent: int
    by_kind: Mapping[str, int]
    kernel: int | None
    incidents: int
    found: int
    questions: int
    settled: int
    missed: tuple[str, ...] = field(default=())

    @property
    def share(self) -> float:
        return self.sent / self.received if self.received else 0.0

    @property
    def kbit_s(self) -> float:
        """The mean rate of one camera in kbit/s."""
        return self.sent * 8 / 1000 / self.seconds / self.cameras

    @property
    def largest(self) -> str:
        return max(self.by_kind, key=self.by_kind.__getitem__, default="-")


@dataclass(frozen=True, slots=True)
class SentEscalation:
    """An escalation that left. moments: times that its images show, and of its event."""

    camera: str
    moments: tuple[float, ...]
    settled: bool


def balance(
    case: str, root: Path, seconds: float, kernel: int | None, incidents: Mapping[str, Sequence[LabelledIncident]]
) -> ByteBalance:
    """Read the ended site's database. incidents: by camera."""
    database = Database(root / "vedette.db", SystemClock())
    try:
        account = savings.account_for(Meter(database, "").totals("all"), incidents).total
        escalations_sent = _sent_escalations(database)
    finally:
        database.close()
    found, missed = match_incidents(incidents, escalations_sent)
    return ByteBalance(
        case=case,
        cameras=len(incidents),
        seconds=seconds,
        received=account.camera_bytes,
        sent=account.uplink_bytes,
        by_kind={each.what: each.bytes for each in account.uplink_kinds},
        kernel=kernel,
        incidents=sum(map(len, incidents.values())),
        found=found,
        questions=len(escalations_sent),
        settled=sum(each.settled for each in escalations_sent),
        missed=tuple(missed),
    )


def _sent_escalations(database: Database) -> list[SentEscalation]:
    with database.read() as connection:
        rows = connection.execute(
            "SELECT body, state FROM escalation WHERE state IN ('sent', 'settled') OR attempts > 0 ORDER BY created_t"
        ).fetchall()
    found = []
    for row in rows:
        body: Escalation = Escalation.from_json(row["body"].encode())
        found.append(SentEscalation(body.camera, (body.t, *(each.t for each in body.media)), row["state"] == "settled"))
    return found


def match_incidents(
    incidents: Mapping[str, Sequence[LabelledIncident]], escalations_sent: Sequence[SentEscalation]
) -> tuple[int, list[str]]:
    """Return how many incidents an escalation shows, and the others as text."""
    found, missed = 0, []
    for camera, own in incidents.items():
        sent = [Candidate(footage=0, t=0, value=0, bytes=0, moments=each.moments) for each in escalations_sent
                if each.camera == camera]  # fmt: skip
        for incident in own:
            if any(each.finds(incident) for each in sent):
                found += 1
            else:
                missed.append(f"{camera}: {incident.text}")
    return found, missed


def incidents_of(
    config: SiteConfig, show: LabelledCamera, taken: FrameClock, begin_t: float, end_t: float
) -> tuple[LabelledIncident, ...]:
    """Return the incidents, between two times, that a perfect detector and tracker would raise.

    The site's own rules apply to them.
    """
    step = max(1, round(show.fps / LOOKS_PER_S))
    last = taken.frame(end_t)
    if show.once:
        last = min(last, show.length)
    looks = [
        FrameBoxes(camera=show.camera, seq=n, frame=frame, t=taken.t(frame), looked=True, objects=show.at(frame))
        for n, frame in enumerate(range(0, last, step))
    ]
    header = StreamHeader(camera=show.camera, clip="", model="truth", size=show.size, run="truth")
    labels = label_incidents(
        config.for_decisions(), CameraTruth(header=header, frames=looks, expectations=(), derived=True)
    )
    zero = taken.t(0)
    report = [(each, f"at {each.t - zero:.1f} s") for each in labels.incidents(0) if begin_t <= each.t < end_t - LATE_S]
    return tuple(
        LabelledIncident(
            footage=0, start=each.start, end=each.end, t=each.t, text=f"{each.text.split(' at ')[0]} {when}"
        )
        for each, when in report
    )
