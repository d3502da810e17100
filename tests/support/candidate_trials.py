"""A candidate of `candidate_networks` tried on key frames of our rendered clips, beside vedette-nano."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, SourceError
from appliance.canary.candidate_comparison import Judgement
from appliance.canary.candidate_trial import LIMITS, STILL_S_MAX, WALL_S_MAX, CameraFootage, CandidateTrial, TrialPlan
from appliance.canary.frame_survey import FootageFile
from appliance.sandbox.sandbox import Sandbox, SandboxFolders
from tests.support.candidate_networks import OWN, Candidate
from tests.support.waiting import until

FIXTURES = Path(__file__).parents[2] / "fixtures"
CLIPS = [FIXTURES / "clips" / "gate.mp4", *sorted((FIXTURES / "family").glob("*.mp4"))]
NETWORK = DetectorConfig(model=str(OWN), threads=1)


class SurveyChild:
    """Runs surveys in children of their own at usual priority; the answer of the network in force is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Any] = {}
        self.stopped = ""
        """File of the network whose child is stopped once it is at work."""

    def __call__(self, function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        model = values["detector"]["model"] if function == "survey_frames" else ""
        known = f"{model} on {len(values['files'])}"
        if known in self._known:
            return self._known[known]
        folders = SandboxFolders(readable=(FIXTURES, OWN.parent, self._folder))
        raises = (SourceError, ModelError, DetectorError)
        child = Sandbox("appliance.canary.frame_survey", LIMITS, folders, raises=raises)
        if model and model == self.stopped:
            threading.Thread(target=_stop, args=(child,)).start()
        try:
            found = child.call(function, dict(values), wall_s=WALL_S_MAX, cpu_s=cpu_s, still_s=STILL_S_MAX)
            self._known |= {known: found} if model == str(OWN) else {}
            return found
        finally:
            child.close()


def _stop(child: Sandbox) -> None:
    until(lambda: child.confined, 60)
    os.kill(child.pid, signal.SIGSTOP)


def tried(candidate: Candidate, folder: Path, child: SurveyChild) -> Judgement:
    """Try a candidate on 128 key frames of our rendered clips, day, dusk and infrared."""
    path = folder / f"{candidate.name}.onnx"
    candidate.write(path)
    child.stopped = str(path) if candidate.waits else ""
    # What ends at its first frame, or takes its memory there, is no more broken on more frames: the wait is short.
    clips = CLIPS[:1] if candidate.kind in ("crash", "hang", "memory") else CLIPS
    files = tuple(FootageFile(str(clip), 1e6 * number) for number, clip in enumerate(clips))
    plan = TrialPlan(
        candidate.name, NETWORK, NETWORK.model_copy(update={"model": str(path)}), (CameraFootage("gate", files),),
        every_s=0.5,
    )  # fmt: skip
    report = CandidateTrial(plan, child).run(0.0)
    path.unlink()
    assert not report.unread
    return report.judgement
