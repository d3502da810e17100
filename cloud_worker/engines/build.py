"""Makes the engine that the worker file asks for."""

from __future__ import annotations

from appliance.clock import Clock
from appliance.detect import detector
from appliance.detect.whole import Whole
from appliance.errors import MissingPart
from cloud_worker.config import Engine, RedetectEngine
from cloud_worker.engines.redetect import UNSURE_SHARE, Redetect
from cloud_worker.judge import Engine as EnginePort


def build(settings: Engine, clock: Clock) -> EnginePort:
    """Raises ModelError when a detector cannot be loaded, MissingPart when a package is absent."""
    if isinstance(settings, RedetectEngine):
        # Objects a little below the threshold are wanted too: they make a picture abstain instead of saying no.
        lower = settings.model_copy(update={"score_min": settings.score_min * UNSURE_SHARE})
        return Redetect(Whole(detector.load(lower)), settings.score_min, clock)
    try:
        from cloud_worker.engines.openai import OpenAi  # httpx comes with the extra `cloud`: only who asks needs it
    except ModuleNotFoundError as error:
        raise MissingPart(f"the engine openai needs {error.name}: pip install 'vedette[cloud]'") from None
    return OpenAi(settings, clock)
