"""Defines the NetworkRuntime port: a library that runs a network on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
Side = int | str | None
RUN_S_MAX = 5.0  # half of what the watchdog waits for (STUCK_S): the failure is then told by who knows why


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of a network. dtype: numpy's name of it; shape: a number, or a name or None where a side is open."""

    name: str
    dtype: str
    shape: tuple[Side, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join('?' if side is None else str(side) for side in self.shape)}]"


class NetworkRuntime(Protocol):
    """A network that was loaded by one library for one device.

    tests/contract/test_network_runtimes.py asks the same of each, and of the fakes of those that this machine lacks.

    **Opening** one raises ModelError: the file is no network for it, or the wanted device or precision is not here;
    then the message names the missing part and the cure. Nothing falls back to another device or precision.
    **Warm-up**: once opened it answers; the first run in a shape may pay for memory, and `prepare` for compiling.
    **Threads**: several may call `run` and `prepare` at once; where a device does one at a time they queue inside.
    **Time-out**: a library that can stop waiting for its device does so after RUN_S_MAX and raises DetectorError; one
    that cannot is given up by the caller's watchdog (`DetectorWatchdog`), and its process is replaced.
    """

    @property
    def version(self) -> str:
        """Library, version and where it runs: `onnxruntime 1.31.1, cpu`."""
        ...

    @property
    def mark(self) -> str:
        """Return the mark of its answers in logs and replay headers: `openvino-bf16`.

        '' stands for ONNX Runtime on a CPU, whose answers all recorded ones are.
        """
        ...

    @property
    def takes_any_shape(self) -> bool:
        """Return whether a shape that was not seen before costs no compiling and no search."""
        ...

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """How many frames one run may hold: 1 first, ascending; (1,) where more of them in a run gain nothing.

        The caller measures the gain (`measure_batching`). They are used only for a network whose inputs
        leave their first side open; other numbers of frames are split into these.
        """
        ...

    @property
    def input_sizes(self) -> tuple[tuple[int, int], ...]:
        """Return the (width, height) of the few inputs that are cheapest, smallest first, the whole one last.

        They are for a runtime that pays for each shape. (): that of the file, or any.
        """
        ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the file's metadata, as the exporter wrote it."""
        ...

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make inputs of these shapes as cheap as they get, for they will come often. May take a second; any thread."""
        ...

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: every output by name, in the file's order. Several threads may call at once.

        **A batch** is a feed whose arrays have as many rows as frames; row n of each output is frame n's, and is what
        that frame gets by itself, but for rounding. It **fails** as a whole, with DetectorError, as a shape that the
        network does not take does; the next run is as good as ever. **Memory**: the feed is the caller's, who may write
        to it again at once; the answer may lie in memory of the library and is good until the same thread runs again.
        """
        ...

    def close(self) -> None:
        """Give device and memory back, once no run is under way.

        A run afterwards raises DetectorError; a second call does nothing.
        """
        ...


CLOSED = "the network was closed"  # what `run` says then


def first_line(error: Exception) -> str:
    """Return a library's exception, short enough for one line of a log."""
    return str(error).strip().split("\n", 1)[0][:300]
