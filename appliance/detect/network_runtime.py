"""The NetworkRuntime port: what runs a network's arithmetic, whatever library and device that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
Side = int | str | None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of a network. dtype: numpy's name of it; shape: a number, or a name or None where a side is open."""

    name: str
    dtype: str
    shape: tuple[Side, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join('?' if side is None else str(side) for side in self.shape)}]"


class NetworkRuntime(Protocol):
    """A network that was loaded by one library for one device. tests/contract/test_detectors.py asks each the same.

    Opening one raises ModelError: the file is no network for it, or what was asked for (device, precision) is not
    here; then the message names the missing part and the cure. Nothing falls back to another device or precision.
    """

    @property
    def version(self) -> str:
        """Library, version and where it runs: `onnxruntime 1.31.1, cpu`."""
        ...

    @property
    def mark(self) -> str:
        """What sets its answers apart in logs and replay headers: `openvino-bf16`; '' for ONNX Runtime on a CPU, whose
        answers all recorded ones are."""
        ...

    @property
    def takes_any_shape(self) -> bool:
        """Whether a shape that was not seen before costs no compiling and no search."""
        ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself, as the exporter wrote it."""
        ...

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Inputs of these shapes will come often: make them as cheap as they get. May take a second; any thread."""
        ...

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: every output by name, in the file's order. Several threads may call at once.

        The feed is not kept. An answer is good until the same thread runs the next one: it may lie in memory of the
        library. A shape that the network does not take, or any failure, raises DetectorError.
        """
        ...


def first_line(error: Exception) -> str:
    """What a library's exception says, short enough for one line of a log."""
    return str(error).strip().split("\n", 1)[0][:300]
