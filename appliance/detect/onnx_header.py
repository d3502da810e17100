"""Reads the header of an .onnx file without a library: inputs, outputs, metadata, the types of its weights."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from appliance.base.config_model import Precision
from appliance.base.errors import ModelError, unreadable_model
from appliance.detect.network_runtime import Side, TensorSpec
from appliance.detect.protobuf_reader import protobuf_fields

# TensorProto.DataType of onnx.proto, by numpy's names.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
FLOATS = ("float32", "float16", "bfloat16")
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True)
class OnnxHeader:
    """inputs: without weights that are listed among them. weights: numpy's names of the weights' floating types.

    quantised: the graph has QuantizeLinear or DequantizeLinear. integers: numpy's names of the types that these turn
    numbers into: what ONNX Runtime's quantiser writes has uint8 and int32, what TensorRT takes int8 alone.
    convolutions: how many the graph has. external: weights lie in other files.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: dict[str, str]
    weights: frozenset[str]
    quantised: bool
    external: bool
    integers: frozenset[str] = frozenset()
    convolutions: int = 0

    @property
    def precision(self) -> Precision:
        """fp32, fp16, bf16 or int8, as the file is typed."""
        if self.quantised:
            return "int8"
        if "float16" in self.weights:
            return "fp16"
        return "bf16" if "bfloat16" in self.weights else "fp32"


def read_header(path: Path) -> OnnxHeader:
    """Read the header. Raise ModelError: no such file, or not ONNX."""
    try:
        with path.open("rb") as file:
            # Not closed by hand: an error's traceback still holds views into it.
            return _model(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except OSError as error:
        raise unreadable_model(f"{path}: the model file", error) from None
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a usable ONNX file: {error}") from None


def _model(view: memoryview) -> OnnxHeader:
    metadata: dict[str, str] = {}
    graph: memoryview | None = None
    for number, value in protobuf_fields(view):
        if number == 7 and isinstance(value, memoryview):
            graph = value
        elif number == 14 and isinstance(value, memoryview):
            entry = dict(protobuf_fields(value))
            metadata[_text(entry.get(1))] = _text(entry.get(2))
    if graph is None:
        raise ValueError("it has no graph")
    return _graph(graph, metadata)


def _graph(graph: memoryview, metadata: dict[str, str]) -> OnnxHeader:
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    held: dict[str, str] = {}
    nodes: list[tuple[str, list[str]]] = []
    external = False
    for number, value in protobuf_fields(graph):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            fields = list(protobuf_fields(value))
            nodes.append((_text(dict(fields).get(4)), [_text(given) for at, given in fields if at == 1]))
        elif number == 5:
            tensor = dict(protobuf_fields(value))
            held[_text(tensor.get(8))] = DTYPES.get(_number(tensor.get(2)), "")
            external = external or tensor.get(14) == 1
        elif number == 11:
            inputs.append(_value_info(value))
        elif number == 12:
            outputs.append(_value_info(value))
    if not inputs or not outputs:
        raise ValueError("its graph has no inputs or no outputs")
    wanted = tuple(each for each in inputs if each.name not in held)
    quantising = [(kind, given) for kind, given in nodes if kind in _QUANTISING]
    # Their third input is the zero point; without one it is a uint8. What is stored as integers is Dequantize's first.
    integers = {held.get(given[2], "") if len(given) > 2 else "uint8" for _, given in quantising}
    integers |= {held.get(given[0], "") for kind, given in quantising if kind == "DequantizeLinear"}
    return OnnxHeader(
        wanted,
        tuple(outputs),
        metadata,
        frozenset(set(held.values()) & set(FLOATS)),
        bool(quantising),
        external,
        frozenset(integers - {""}),
        sum(kind == "Conv" for kind, _ in nodes),
    )


def _value_info(view: memoryview) -> TensorSpec:
    info = dict(protobuf_fields(view))
    tensor = dict(protobuf_fields(_view(dict(protobuf_fields(_view(info.get(2)))).get(1))))
    sides: list[Side] = []
    for number, dim in protobuf_fields(_view(tensor.get(2))):
        if number == 1:
            side = dict(protobuf_fields(_view(dim)))
            sides.append(_number(side[1]) if 1 in side else _text(side.get(2)) or None)
    return TensorSpec(_text(info.get(1)), DTYPES.get(_number(tensor.get(1)), "?"), tuple(sides))


def _view(value: int | memoryview | None) -> memoryview:
    return value if isinstance(value, memoryview) else memoryview(b"")


def _bytes(value: int | memoryview | None) -> bytes:
    return bytes(_view(value))


def _text(value: int | memoryview | None) -> str:
    return _bytes(value).decode()


def _number(value: int | memoryview | None) -> int:
    return value if isinstance(value, int) else 0
