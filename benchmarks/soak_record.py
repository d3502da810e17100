"""The record of a soak on disk, a JSON line at a time: a soak that was cut goes on where it was, and reports all parts.

A part is one run of the appliance. Only what the record holds is judged: of a part that was cut, the faults that could
be recovered from before the gaps were last asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.soak_checks import Fault, Finding, SoakResult, StatusSample, evaluate, log_findings

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
