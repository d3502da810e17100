"""OpenVINO where it is installed, and the skip of a test that asks for a precision that this CPU does not have."""

from __future__ import annotations

from types import ModuleType

import pytest


def openvino_runtime(precision: str = "") -> ModuleType:
    """Return the module `appliance.detect.openvino_runtime`; skip the test without OpenVINO, or without bf16."""
    module: ModuleType = pytest.importorskip("appliance.detect.openvino_runtime", reason="needs the extra `openvino`")
    if precision == "bf16" and not multiplies_bf16():
        pytest.skip("this CPU does not multiply in bfloat16")
    return module


def multiplies_bf16() -> bool:
    """Return whether OpenVINO multiplies in bfloat16 on this CPU (AVX512_BF16, AMX, or arm64 with FEAT_BF16)."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
