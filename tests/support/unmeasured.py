"""Settings of a detector that leave nothing open: where they do, ingest and replay measure what is fastest here first.

That takes three times the rest of their start. The measurement is tried by tests/unit/test_runtime_choice.py.
"""

from __future__ import annotations

UNMEASURED = {"backend": "onnx", "device": "cpu", "precision": "int8"}
