"""Selects the network that a candidate is compared with. Used by the dashboard, too: it loads no detector."""

from __future__ import annotations

from appliance.base.detector_config import DetectorConfig
from appliance.bundle.bundle_store import InForceTable
from appliance.config import DecisionConfig, IngestConfig
from appliance.detect.model_files import AUTO_MODEL, OWN_MODEL


def opponent(site: IngestConfig | DecisionConfig, table: InForceTable, camera: str, candidate: str) -> str:
    """Return the network in force ("": for all cameras) as `detector.model` names it; of the candidate, its way back.

    A candidate that is in force on probation is compared with what was before, never with itself.
    """
    slot = table.of(camera) if site.detector.model == AUTO_MODEL else None
    own = site.cameras[camera].model if camera else None
    model = own or (str(slot.bundle) if slot is not None else site.detector.model)
    if model != candidate:
        return model
    return str(slot.before) if slot is not None and slot.before is not None and not own else OWN_MODEL


def detector_with(section: DetectorConfig, model: str) -> DetectorConfig:
    """Return the site's section with another network; precision, labels and head at their defaults."""
    usual = {"precision": "auto", "labels": None, "head": "auto"}
    return section if model == section.model else section.model_copy(update={**usual, "model": model})
