"""Which known network would find more of what a site's rules ask for, and whether this machine has room for it.

Also whether a variant of a network (INT8, FP16, other weights) may be recommended: by its measurement on scenarios,
which is kept in a file beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError
from appliance.bundle.manifest import ModelEntry, sha256_of
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
    return [kind for name, kinds in _by_class(bundle).items() if name in classes for kind in kinds]


def _by_class(bundle: ModelEntry) -> dict[str, list[str]]:
    """Return the figures by class. Where fixed cameras were measured, only that one: the others are of other views."""
    classes: dict[str, list[str]] = {}
    for kind in bundle.unseen:
        classes.setdefault(kind.rpartition("_")[2], []).append(kind)
    return {
        name: [camera] if (camera := f"cameras_{name}") in bundle.unseen else kinds for name, kinds in classes.items()
    }


def _mean(bundle: ModelEntry, kinds: list[str]) -> float:
    """Return the mean; 0 if one of them was not measured."""
    if not kinds or not set(kinds) <= set(bundle.unseen):
        return 0.0
    return statistics.fmean(bundle.unseen[kind] for kind in kinds)


def ap50_by_class(entry: ModelEntry) -> dict[str, float]:
    """Return the mean AP50 over the kinds of view, 0..1, for each class that was measured; {}: none was."""
    return {label: _mean(entry, kinds) for label, kinds in _by_class(entry).items()}


VARIANT_KEY, BASE_KEY = "vedette_variant", "vedette_base_sha256"  # metadata that `models.export variant` writes
SUFFIX = ".measured.json"
FILE_BYTES_MAX = 1024 * 1024  # figures of some 100 scenarios


class MeasuredFigures(ConfigModel):
    """The figures of one network on the scenarios. None: nothing to measure there. cpu_ms: one inference there."""

    passed: int
    recall: float | None
    precision: float | None
    false_alarms: int
    alerts: int
    hota: float | None = None
    idf1: float | None = None
    ap50: float | None = None
    cpu_ms: float | None = None


class VariantMeasurement(ConfigModel):
    """The result of `vedette scenario compare`; of these two files alone. machine: where it ran."""

    version: Literal[1] = 1
    variant: str
    variant_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    base: str
    base_sha256: str
    recommended: bool
    reasons: tuple[str, ...]
    scenarios: tuple[str, ...]
    events: int
    footage_s: float
    figures: dict[Literal["base", "variant"], MeasuredFigures]
    measured: str
    machine: str
    settings: dict[str, str] = {}


def measurement_path(model: Path) -> Path:
    """`int8.onnx` to `int8.onnx.measured.json`."""
    return model.with_name(model.name + SUFFIX)


def read_measurement(model: Path) -> VariantMeasurement | None:
    """Return the measurement beside the model file, if it is of this very file. Raise ModelError: it cannot be read."""
    path = measurement_path(model)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ModelError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        found = VariantMeasurement.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ModelError(f"{path} cannot be read: {str(error).splitlines()[0]}; delete it and measure again") from None
    return found if found.variant_sha256 == sha256_of(model) else None


def variant_advice(model: Path, metadata: Mapping[str, str]) -> tuple[bool, str] | None:
    """Return whether the model may be recommended, and why in words; None: it is no variant of another.

    metadata: of the file, as the runtime read it.
    """
    kind = metadata.get(VARIANT_KEY, "")
    if not kind:
        return None
    how = f"vedette scenario compare BASE {model.name} FOOTAGE"
    try:
        measured = read_measurement(model)
    except ModelError as error:
        return False, str(error)
    if measured is None:
        changed = " as it is now" if measurement_path(model).exists() else ""
        return False, f"{model.name} is a variant ({ascii(kind)[1:-1][:20]}) that was never measured{changed}: {how}"
    of = f"against {measured.base} on {len(measured.scenarios)} scenarios, {measured.events} events"
    if measured.recommended:
        return True, f"{model.name} is recommended, as measured {of}"
    return False, f"{model.name} is not recommended, as measured {of}: {'; '.join(measured.reasons)}"
