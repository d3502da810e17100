"""Which known network would find more of what a site's rules ask for, and whether this machine has room for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.bundle.manifest import ModelEntry
from appliance.config import CameraConfig
from appliance.detect.model_files import named_model

LOAD_MAX = 0.7  # of one core, with every camera moving at once: above that a costlier network would drop frames
LOAD_KEEP = 0.9  # what was suggested stays so up to here: a load near the limit does not change the advice each minute
GAIN_MIN = 1.1  # a network that finds less than a tenth more is not worth a word
_PERSON, _VEHICLES, _ANIMALS = "person", {"car", "bus", "truck"}, {"cat", "dog"}


@dataclass(frozen=True, slots=True)
class DetectorLoad:
    """inference_s: CPU seconds for one whole frame, as measured. wanted: inferences a second when all cameras move."""

    inference_s: float
    wanted: float

    @property
    def share(self) -> float:
        """Share of one core with all cameras moving: 1 is all that one detector thread can do."""
        return self.inference_s * self.wanted


@dataclass(frozen=True, slots=True)
class BetterModel:
    """A network that finds more. gain: mean AP50 over the kinds of view, against now; load: as `DetectorLoad.share`."""

    name: str
    ap50: float
    ap50_now: float
    cost: float
    load: float


def inferences_wanted(cameras: Mapping[str, CameraConfig]) -> float:
    """Return how many inferences a second the cameras ask for when all of them show movement."""
    return sum(camera.detect.fps for camera in cameras.values() if camera.enabled)


def better_models(
    model: str,
    bundles: Mapping[str, ModelEntry],
    cameras: Mapping[str, CameraConfig],
    load: DetectorLoad,
    suggested: str = "",
) -> list[BetterModel]:
    """Return networks that find more of what the rules ask for and fit on this machine, the best first.

    They are compared on images that none was tuned to. Empty if the network in use was never measured that way.
    suggested: the one that was the best before; it stays up to LOAD_KEEP.
    """
    own = bundles.get(named_model(model))
    if own is None or not own.cost:
        return []
    kinds = _kinds(own, cameras)
    now = _mean(own, kinds)
    found = []
    for name, bundle in bundles.items():
        better = _mean(bundle, kinds)
        share = load.share * bundle.cost / own.cost
        room = LOAD_KEEP if name == suggested else LOAD_MAX
        if bundle.cost and better >= GAIN_MIN * now and better > 0 and share <= room:
            found.append(BetterModel(name, better, now, bundle.cost / own.cost, share))
    return sorted(found, key=lambda each: -each.ap50)


def _kinds(bundle: ModelEntry, cameras: Mapping[str, CameraConfig]) -> list[str]:
    """Return the figures that concern what the rules want, such as `stills_person` or `pets_dog`."""
    wanted = {label for camera in cameras.values() for rule in camera.rules for label in rule.labels} or {_PERSON}
    classes = {_PERSON} & wanted
    classes |= {"vehicle"} if wanted & _VEHICLES else set()
    classes |= wanted & _ANIMALS
    return [kind for kind in bundle.unseen if kind.rpartition("_")[2] in classes]


def _mean(bundle: ModelEntry, kinds: list[str]) -> float:
    """Return the mean; 0 if one of them was not measured."""
    if not kinds or not set(kinds) <= set(bundle.unseen):
        return 0.0
    return statistics.fmean(bundle.unseen[kind] for kind in kinds)


def ap50_by_class(entry: ModelEntry) -> dict[str, float]:
    """Return the mean AP50 over the kinds of view, 0..1, for each class that was measured; {}: none was."""
    classes: dict[str, list[float]] = {}
    for kind, value in entry.unseen.items():
        classes.setdefault(kind.rpartition("_")[2], []).append(value)
    return {label: statistics.fmean(values) for label, values in classes.items()}
