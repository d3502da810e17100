"""The appliance. Importing it switches off what libraries would tell their makers: docs/privacy.md.

Each process of ours imports this package before it imports any library, whichever command it is of, so this is the one
place for it. It imports nothing of ours: the cloud worker, which needs a few plain modules, never loads PyAV.
"""

import os
import sys

# ONNX Runtime reads it when it is loaded; disable_telemetry_events() comes after its first event and its device id.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO tells of every import through this package. Where that cannot be imported it takes a stub, which is silent.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
