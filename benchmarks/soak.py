"""Hours of `vedette run` with cameras that stall, hang, drip, cut, send garbage, jump in time or are gone altogether.

    python -m benchmarks.soak --hours 2 --cameras 8          # make soak
    python -m benchmarks.soak --hours 0.0167 --cameras 2     # a minute
    python -m benchmarks.soak --hours 24 --record FILE       # make soak-day; cut, the same command goes on

What goes wrong is a plan made from --seed. The appliance runs as its users run it and is asked over HTTP, once a
second. It must show every fault that stops pictures within 10 s and leave a gap of it, be live again after it, show no
camera as live whose packets do not come, leave the other cameras alone and go on recording; its memory must be flat, in
all and by process (resident pages, which do not depend on what else maps the same libraries). Exit code 1: something of
that was not so.

The record on disk is a JSON line at a time: a soak that was cut goes on where it was, and reports all parts. A part is
one run of the appliance. Only what the record holds is judged: of a part that was cut, the faults that could be
recovered from before the gaps were last asked for.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import soak_checks
from benchmarks.ingest.cameras import ROOT, Setting, prepare
from benchmarks.soak_checks import (
    LONG,
    SHORT,
    Fault,
    Finding,
    Pace,
    SoakResult,
    StatusSample,
    evaluate,
    log_findings,
    make,
)
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread

EVERY_S = 1.0
SETTLE_S = 8.0
SETTLE_S_MAX = 90.0
SHORT_S = 180.0
DRIP_BYTES_PER_S = 300.0
JUMP_S = 11.0
PROGRESS_EVERY_S = 300.0
Gaps = Mapping[str, Sequence[Mapping[str, Any]]]


class UnusableRecord(Exception):
    """The record cannot be gone on with, or holds nothing to judge. The message says what helps."""


class OtherSoak(UnusableRecord):
    """The file holds a soak of other settings."""


@dataclass(slots=True)
class SoakPart:
    """One run of the appliance.

    `begun_t` is the UTC at which the plan would have begun, and `from_s` the place in the plan at which the run came
    in. `gaps` are by camera, then by the time they began; `known_s` is the place in the plan up to which they are
    known.
    """

    begun_t: float
    from_s: float
    known_s: float = 0.0
    samples: list[StatusSample] = field(default_factory=list)
    gaps: dict[str, dict[float, Mapping[str, Any]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def played_s(self) -> float:
        """How far in the plan it came."""
        return max([self.from_s, *(each.t - self.begun_t for each in self.samples[-1:])])

    def judge(self, faults: Sequence[Fault], recover_s: float) -> SoakResult:
        """Judge the faults that this part saw from beginning to end: what was as it should be, and what was not."""
        seen = [each for each in faults if each.start_s >= self.from_s and each.end_s + recover_s <= self.known_s]
        samples = [each for each in self.samples if each.t - self.begun_t <= self.known_s]
        gaps = {camera: list(found.values()) for camera, found in self.gaps.items()}
        result = evaluate(seen, self.begun_t, samples, gaps, recover_s)
        result.findings.extend(self.findings)
        return result


class SoakRecord:
    """The record of one soak, its earlier parts and the one that runs. State: the file, open to append; the parts.

    Invariant: a line is written whole or is the last one; a last line that was torn is left out when it is read.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, object]) -> None:
        """path None: nothing is kept.

        Raise OtherSoak when the file was begun with other settings, UnusableRecord when it is no record or is damaged;
        it is left as it is.
        """
        self._file = None
        self.parts: list[SoakPart] = []
        if path is None:
            return
        text = path.read_text("utf-8", errors="replace") if path.exists() else ""
        lines = _lines(path, text)
        if lines and lines[0]["settings"] != settings:
            raise OtherSoak(f"{path} holds a soak of {lines[0]['settings']}: name another file, or remove it")
        for number, line in enumerate(lines[1:], 2):
            try:
                self._read(line)
            except (LookupError, TypeError, AttributeError):
                raise UnusableRecord(_damaged(path, number)) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = "".join(json.dumps(line) + "\n" for line in lines)
        if text != whole:  # its last line is torn
            fresh = path.with_name(f"{path.name}.new")
            fresh.write_text(whole, "utf-8")
            fresh.replace(path)  # a kill leaves the old file or the new one
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"settings": settings})

    @property
    def played_s(self) -> float:
        """How much of the plan has been played."""
        return max((part.played_s for part in self.parts), default=0.0)

    def begin(self, now: float) -> SoakPart:
        """Begin a part, as the appliance runs: the plan goes on where it was cut."""
        self._add({"begun_t": now - self.played_s, "from_s": self.played_s})
        return self.parts[-1]

    def add_sample(self, sample: StatusSample) -> None:
        self._add({"sample": asdict(sample)})

    def add_gaps(self, now: float, gaps: Gaps) -> None:
        """Add the gaps that the appliance shows now; of those shown before, only the newest may have changed."""
        self._add({"t": now, "gaps": {camera: [dict(each) for each in found] for camera, found in gaps.items()}})

    def end(self, log: str) -> None:
        """End the part, as the appliance was stopped; its log is judged, too."""
        self._add({"findings": [each.text for each in log_findings(log)]})

    def judge(self, faults: Sequence[Fault], recover_s: float) -> SoakResult:
        """Judge all parts together; memory is that of the longest part. Raise UnusableRecord: there is none."""
        if not self.parts:
            raise UnusableRecord("nothing was played, so there is nothing to judge: let the soak run for longer")
        found = [(part, part.judge(faults, recover_s)) for part in self.parts]
        longest = max(found, key=lambda each: len(each[0].samples))[1]
        return replace(
            longest,
            findings=[finding for _, each in found for finding in each.findings],
            noticed_s=[seconds for _, each in found for seconds in each.noticed_s],
            recovered_s=[seconds for _, each in found for seconds in each.recovered_s],
            disturbed_s=sum(each.disturbed_s for _, each in found),
        )

    def _add(self, line: Mapping[str, Any]) -> None:
        self._read(line)
        self._write(line)

    def _read(self, line: Mapping[str, Any]) -> None:
        if "begun_t" in line:
            self.parts.append(SoakPart(line["begun_t"], line["from_s"]))
            return
        part = self.parts[-1]
        if "sample" in line:
            part.samples.append(StatusSample(**line["sample"]))
        elif "gaps" in line:
            part.known_s = line["t"] - part.begun_t
            for camera, gaps in line["gaps"].items():
                part.gaps.setdefault(camera, {}).update({gap["t_start"]: gap for gap in gaps})
        elif "findings" in line:
            part.findings = [Finding(text) for text in line["findings"]]

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def _lines(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the lines of a record's text, but for a last one that was torn. Raise UnusableRecord."""
    texts = text.removesuffix("\n").split("\n") if text else []
    found: list[dict[str, Any]] = []
    for number, each in enumerate(texts, 1):
        try:
            line = json.loads(each)
        except ValueError:
            line = None
        if number == 1 and not (isinstance(line, dict) and "settings" in line):
            raise UnusableRecord(f"{path} is no record of a soak: name another file, or remove it")
        if isinstance(line, dict):
            found.append(line)
        elif number < len(texts):
            raise UnusableRecord(_damaged(path, number))
    return found


def _damaged(path: Path, number: int) -> str:
    return f"{path}: line {number} is damaged: name another file, or remove that line and all after it"


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it, and the record is whole
    seconds = 3600 * chosen.hours
    pace = SHORT if seconds < SHORT_S else LONG
    setting = Setting(chosen.scene, chosen.lines, 1, chosen.cameras)
    files, _ = prepare(setting, chosen.footage)
    faults = make(sorted(files), seconds, pace, chosen.seed)
    print(f"{len(faults)} faults in {seconds / 60:.1f} minutes on {chosen.cameras} cameras, seed {chosen.seed}")
    try:
        record = SoakRecord(chosen.record, _settings(chosen))
        if record.parts:
            print(f"{record.played_s / 60:.1f} minutes of it are played already, in {len(record.parts)} parts")
        if record.played_s < seconds - EVERY_S:
            _play(record, chosen, files, faults, seconds)
        verdict = record.judge(faults, pace.recover_s)
    except UnusableRecord as error:
        print(error, file=sys.stderr)
        return 2
    print(told(verdict, record, faults))
    if chosen.json:
        chosen.json.write_text(json.dumps(_as_json(chosen, pace, faults, record, verdict), indent=1))
    return int(bool(verdict.findings))


def _play(
    record: SoakRecord, chosen: argparse.Namespace, files: Mapping[str, Path], faults: Sequence[Fault], seconds: float
) -> None:
    with tempfile.TemporaryDirectory() as folder, FaultyRtspServer.in_thread(files) as server:
        with ApplianceProcess(Path(folder), _site(server, files, chosen.model)) as box:
            _soak(record, server, box, faults, seconds, sorted(files))
        record.end(box.log)
        if chosen.log:
            chosen.log.write_text(box.log)


def told(verdict: SoakResult, record: SoakRecord, faults: Sequence[Fault]) -> str:
    """Write the report for a person."""
    samples = [each for part in record.parts for each in part.samples]
    lines = [
        f"played: {record.played_s / 60:.1f} minutes in {len(record.parts)} part(s)",
        f"faults: {len(faults)}, of which {len(verdict.noticed_s)} stopped a camera's pictures and were noticed",
        f"noticed after {_span(verdict.noticed_s)}; live again {_span(verdict.recovered_s)} after their end",
        f"other cameras disturbed for {verdict.disturbed_s:.0f} s; dashboard silent at "
        f"{sum(not each.answered for each in samples)} of {len(samples)} glances; ingest process started "
        f"{max((each.ingest_starts for each in samples), default=0):.0f} times",
        f"memory {verdict.memory_mb:.0f} MB (PSS); resident pages: robust slope {verdict.growth_mb_h:+.1f} MB an hour",
        *(
            f"  {name}: {mb:.0f} MB of its own, {per_h:+.1f} MB an hour"
            + "".join(f"; {kind} {by_kind:+.1f}" for kind, by_kind in verdict.kinds_mb_h.get(name, {}).items())
            for name, (mb, per_h) in verdict.process_mb.items()
        ),
        *(f"WRONG: {finding.text}" for finding in verdict.findings),
    ]
    return "\n".join([*lines, "" if verdict.findings else "nothing was wrong"]).strip()


def _soak(
    record: SoakRecord,
    server: RtspServerThread,
    box: ApplianceProcess,
    faults: Sequence[Fault],
    seconds: float,
    cameras: Sequence[str],
) -> None:
    """Play what is left of the plan, and look once a second."""
    _settle(box, cameras)
    part = record.begin(time.time())
    begun_t, left = part.begun_t, [fault for fault in faults if fault.start_s >= part.from_s]
    due = sorted(
        [(fault.start_s, fault, True) for fault in left]
        + [(fault.end_s, fault, False) for fault in left if fault.end_s > fault.start_s],
        key=lambda each: each[0],
    )
    told_s = part.from_s
    while (at := time.time() - begun_t) < seconds:
        while due and due[0][0] <= at:
            _, fault, begins = due.pop(0)
            _apply_fault(server, fault, begins=begins)
        sample = soak_checks.poll(box.url, box.pid)
        record.add_sample(sample)
        if at - told_s >= PROGRESS_EVERY_S:
            told_s = at
            record.add_gaps(time.time(), _gaps(box, cameras))
            print(f"{at / 60:5.0f} min: {sample.pss_bytes / 1e6:.0f} MB, {sample.states}", flush=True)
        next_s = min(due[0][0], at + EVERY_S) if due else at + EVERY_S
        time.sleep(max(0.0, begun_t + next_s - time.time()))
    record.add_gaps(time.time(), _gaps(box, cameras))


def _gaps(box: ApplianceProcess, cameras: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    return {camera: soak_checks.gaps(box.url, camera) for camera in cameras}


def _settle(box: ApplianceProcess, cameras: Sequence[str]) -> None:
    """Until all cameras are live, and a little longer."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while True:
        states = soak_checks.poll(box.url, box.pid).states
        if all(states.get(camera) == "live" for camera in cameras):
            time.sleep(SETTLE_S)
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the cameras did not come up within {SETTLE_S_MAX:.0f} s: {states}")
        time.sleep(EVERY_S)


def _apply_fault(server: RtspServerThread, fault: Fault, *, begins: bool) -> None:
    camera = fault.camera
    if not begins:
        server.resume(camera or None)
    elif fault.kind == "stall":
        server.stall(camera)
    elif fault.kind == "hang":
        server.hang(camera)
    elif fault.kind == "drip":
        server.drip(camera, bytes_per_s=DRIP_BYTES_PER_S)
    elif fault.kind == "off":
        server.refuse()
    elif fault.kind in ("cut", "reset"):
        server.cut(camera, reset=fault.kind == "reset")
    elif fault.kind in ("garbage", "noise"):
        server.garbage(camera, framed=fault.kind == "noise")
    else:
        server.jump_back(camera, JUMP_S)


def _site(server: RtspServerThread, cameras: Mapping[str, Path], model: str) -> str:
    lines = [f"detector: {{model: {model}}}", "cameras:"]
    for name in cameras:
        lines += [
            f"  {name}:",
            f"    url: {server.url(name)}",
            "    zones: {all: [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]}",
            "    rules: [{name: seen, kind: enter, zone: all, labels: [person, car, truck, bus]}]",
        ]
    return "\n".join(lines) + "\n"


def _span(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} s (worst {max(seconds):.1f})" if seconds else "-"


def _as_json(
    chosen: argparse.Namespace,
    pace: Pace,
    faults: Sequence[Fault],
    record: SoakRecord,
    verdict: SoakResult,
) -> dict[str, Any]:
    glances = [{**asdict(each), "t": round(each.t - part.begun_t, 2)} for part in record.parts for each in part.samples]
    return {
        **_settings(chosen), "pace": asdict(pace), "verdict": asdict(verdict),
        "faults": [asdict(each) for each in faults], "glances": glances,
    }  # fmt: skip


def _settings(chosen: argparse.Namespace) -> dict[str, object]:
    """Return the options that make one soak another one."""
    return {key: getattr(chosen, key) for key in ("hours", "cameras", "seed", "scene", "lines", "model")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scene", default="mixed", choices=("quiet", "mixed", "busy"))
    parser.add_argument("--lines", type=int, default=720, choices=(360, 720, 1080))
    parser.add_argument("--model", default="auto")
    parser.add_argument("--footage", type=Path, default=ROOT / "benchmarks" / "out" / "footage")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the appliance's log here")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="keep what was seen here; the same command goes on after a cut"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write plan, glances and verdict here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
