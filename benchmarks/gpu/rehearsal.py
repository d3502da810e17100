"""Stand-ins for NVIDIA's libraries in this process: `--rehearse` runs every step on them, to see that it runs at all.

The tests' own: cuda-bindings and TensorRT by their signatures, engines that compute by ONNX Runtime, and a decoder that
FFmpeg's rule about contexts holds for: a primary context that somebody has made is entered, never claimed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from appliance.base.errors import MissingDependency

TESTS = Path(__file__).parents[2] / "tests"


class _Modules:
    """The part of pytest's monkeypatch that is used."""

    def setitem(self, modules: dict[str, Any], name: str, module: Any) -> None:
        modules[name] = module


def install() -> None:
    """Let this process find them. Raise MissingDependency: this is no checkout."""
    if not (TESTS / "contract" / "fake_nvidia.py").exists():
        raise MissingDependency("--rehearse needs a checkout: its stand-ins are in tests/")
    sys.path[:0] = [str(TESTS.parent), str(TESTS / "contract")]
    import fake_nvidia

    from appliance.detect.accelerators import Accelerator
    from appliance.media import hardware_codec
    from benchmarks.gpu import steps
    from tests.support.decode_devices import Device

    gpu = fake_nvidia.install(_Modules())
    device = Device(filters=True, has_context=lambda: gpu.streams > 0)
    # No option of the product, which knows nothing of rehearsals.
    hardware_codec.Libav = device.libav  # type: ignore[misc, assignment]
    steps.P99_MS_MAX = float("inf")  # of a GPU, which this is not
    steps.accelerators = lambda: (Accelerator("cuda", "a stand-in"),)  # type: ignore[attr-defined]
