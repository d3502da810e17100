"""HEF files, Hailo's compiled networks: which device one is for, what it lacks and a file beside it says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError, unreadable_model
from appliance.base.json_lines import first_problem
from appliance.detect.class_labels import COCO_80
from appliance.detect.protobuf_reader import protobuf_fields

# github.com/hailo-ai/hailort (MIT), branch hailo8: src/hef/hef_internal.hpp and hef.proto.
MAGIC = 0x01484546
_COMMON = struct.Struct(">III")  # magic, version, bytes of the protobuf
_HEADER_BYTES = {0: 32, 1: 28, 2: 44, 3: 56}  # by version, what comes before the protobuf
_PROTO_BYTES_READ = 4096  # its first field is the header
ARCHITECTURES = {
    1: "hailo8", 2: "hailo8r", 3: "hailo8l", 4: "hailo15m", 5: "hailo10h", 6: "hailo15l", 103: "hailo15h",
}  # fmt: skip
# device_internal.cpp, DeviceBase::is_hef_compatible: what else than its own a device runs.
ALSO_RUNS = {
    "hailo8": ("hailo8r", "hailo8l"),
    "hailo15h": ("hailo15m", "hailo10h"),
    "hailo10h": ("hailo15h", "hailo15m"),
}
NOTES_BYTES_MAX = 256 * 1024  # labels and calibration beside a .hef


@dataclass(frozen=True, slots=True)
class HefHeader:
    """architecture: `hailo8l`, or '' where it is none that is known; compiler: of the Dataflow Compiler, or ''."""

    architecture: str
    compiler: str


class HefNotes(ConfigModel):
    """The file beside a HEF, `yolov8s.hef.json`: what a HEF does not say of itself.

    names: one a class. placing: how frames are laid into the input (Letterbox). pixels: the order in which the input
    wants colours; the alls script of Hailo's zoo turns RGB into what the network was trained with. scores: whether
    raw class scores are through the sigmoid. sides: how raw boxes say how far their sides are, in strides.
    """

    names: Literal["coco-80"] | tuple[Annotated[str, Field(min_length=1)], ...] = ()
    placing: Literal["stretch", "corner", "centre"] = "centre"
    pixels: Literal["rgb", "bgr"] = "rgb"
    scores: Literal["sigmoid", "logits"] = "sigmoid"
    sides: Literal["distribution", "exponent"] = "distribution"

    @property
    def labels(self) -> tuple[str, ...]:
        return COCO_80 if self.names == "coco-80" else self.names


def read_header(path: Path) -> HefHeader:
    """Read the header of a HEF. Raises ModelError if the file is no HEF, or is of an unknown format."""
    try:
        with path.open("rb") as file:
            head = file.read(max(_HEADER_BYTES.values()) + _PROTO_BYTES_READ)
    except OSError as error:
        raise unreadable_model(f"{path}: the model file", error) from None
    if len(head) < _COMMON.size or _COMMON.unpack_from(head)[0] != MAGIC:
        raise ModelError(
            f"{path}: not a HEF: detector.backend hailo runs networks that were compiled for a Hailo device "
            "(docs/hardware.md tells how)"
        )
    version = _COMMON.unpack_from(head)[1]
    if version not in _HEADER_BYTES:
        raise ModelError(f"{path}: a HEF of format {version}, and only 0 to {max(_HEADER_BYTES)} are known")
    try:  # the header is field 1 of a ProtoHEFHef, and comes first
        _, first = next(protobuf_fields(memoryview(head)[_HEADER_BYTES[version] :]), (1, b""))
        fields = dict(protobuf_fields(memoryview(first))) if not isinstance(first, int) else {}
    except (ValueError, IndexError):
        fields = {}
    number, compiler = fields.get(1, 0), fields.get(3, b"")
    return HefHeader(
        ARCHITECTURES.get(number, "") if isinstance(number, int) else "",
        bytes(compiler).decode("ascii", "replace") if isinstance(compiler, memoryview) else "",
    )


def read_notes(path: Path) -> HefNotes:
    """Read the notes on the HEF at `path`; the defaults where there is no file beside it. Raises ModelError."""
    notes = notes_file(path)
    try:
        if notes.stat().st_size > NOTES_BYTES_MAX:
            raise ModelError(f"{notes}: not over {NOTES_BYTES_MAX} bytes")
        return HefNotes.model_validate_json(notes.read_bytes())
    except FileNotFoundError:
        return HefNotes()
    except OSError as error:
        raise unreadable_model(f"{notes}:", error) from None
    except ValidationError as error:
        raise ModelError(f"{notes}: {first_problem(error)}") from None


def notes_file(path: Path) -> Path:
    """`models/yard.hef` has its notes in `models/yard.hef.json`."""
    return path.with_name(f"{path.name}.json")


def runs_on(architecture: str, device: str) -> bool:
    """Return whether a HEF for `architecture` may run on a `device`; where one is unknown, HailoRT tells."""
    return not architecture or not device or architecture == device or architecture in ALSO_RUNS.get(device, ())


def find_hef(model: str, places: Sequence[Path]) -> Path:
    """Return the file that `detector.model` means. Raises ModelError.

    The model is a path, a file name, or the name of a network that was compiled to `NAME.ARCHITECTURE.hef` (or
    NAME.hef) in one of `places`.
    """
    path = Path(model).expanduser()
    if model.endswith(".hef"):
        for each in (path, *(place / model for place in places if "/" not in model)):
            if each.is_file():
                return each
        raise ModelError(f"{model}: no such model file")
    if model.endswith(".onnx") or "/" in model:
        raise ModelError(
            f"{model}: detector.backend hailo runs .hef files: compile it (docs/hardware.md), or set detector.backend "
            "to auto"
        )
    found = {
        each.name: each
        for place in reversed(places)
        for each in (place / f"{model}.hef", *(place / f"{model}.{name}.hef" for name in ARCHITECTURES.values()))
        if each.is_file()
    }
    if len(found) > 1:
        raise ModelError(f"{model} was compiled for several devices ({', '.join(sorted(found))}): name the file")
    if not found:
        raise ModelError(
            f"`{model}` is not compiled for a Hailo device: {model}.hef, or {model}.hailo8l.hef and the like, is in "
            f"none of {', '.join(map(str, dict.fromkeys(places)))}. `python -m models.hailo_recipe {model}` makes "
            "what Hailo's compiler wants (docs/hardware.md); or set detector.model to a .hef file, or "
            "detector.backend to auto"
        )
    return next(iter(found.values()))
