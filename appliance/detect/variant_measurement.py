"""The measurement of a network's variant (INT8, FP16, other weights) on scenarios, kept in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError
from appliance.bundle.manifest import sha256_of

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
