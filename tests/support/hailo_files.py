"""HEF files for the fake Hailo device of tests/contract/fake_hailo, and a Python that finds it."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.tiny_networks import SIDE, Thing

FAKE = Path(__file__).parents[1] / "contract" / "fake_hailo"
BY_CLASS, BY_SCORE = "HAILO_NMS_BY_CLASS", "HAILO_NMS_BY_SCORE"
NAMES = ["person", "car"]
MOST = 20  # boxes of a class


class FakeDevice:
    """What the fake device is like, for processes that are started from now on and at every call of those that run."""

    def __init__(self, folder: Path, **state: Any) -> None:
        """state: see `set`."""
        self.python = folder / "python3"
        # `-I` hides PYTHONPATH, as it should; this stands for a Python whose site-packages hold the bindings.
        code = (
            f"import runpy, sys; sys.path.insert(0, '{FAKE}'); script = sys.argv[0] = sys.argv.pop(1); "
            "runpy.run_path(script, run_name='__main__')"
        )
        self._state = folder / "device.json"
        start = f'HAILO_FAKE="{self._state}" exec "{sys.executable}" -B -c "{code}" "$@"'
        self.python.write_text(f"#!/bin/sh\nshift\n{start}\n")
        self.python.chmod(0o755)
        self.set(**state)

    def set(self, **state: Any) -> None:
        """`devices`, `library`, `firmware`, `architecture`, `import`, `fail`, `hang`: see the fake. {}: all is well."""
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self._state)

    def settings(self, model: Path | str, **others: Any) -> dict[str, Any]:
        """For DetectorConfig."""
        hailo = {"python": str(self.python), **others.pop("hailo", {})}
        return {"backend": "hailo", "model": str(model), "hailo": hailo, **others}


def nms(path: Path, things: Sequence[Thing], *, order: str = BY_CLASS, nv12: bool = False, **others: Any) -> Path:
    """A network of 128x128 with HailoRT's NMS behind it."""
    count = len(NAMES) * (1 + 5 * MOST) if order == BY_CLASS else 2 + 22 * MOST * len(NAMES)
    output = {"name": "yard/nms", "shape": [count], "order": order, "classes": len(NAMES), "most": MOST}
    rows = [([t.box[1] / SIDE, t.box[0] / SIDE, t.box[3] / SIDE, t.box[2] / SIDE], t.score, t.class_id) for t in things]
    shape = [SIDE // 2, SIDE, 3] if nv12 else [SIDE, SIDE, 3]
    source = {"name": "yard/input_layer1", "shape": shape, "order": "NV12" if nv12 else "NHWC"}
    return write(path, {"input": source, "outputs": [output], "things": rows}, **others)


def write(
    path: Path, network: dict[str, Any], *, architecture: int = 3, names: Sequence[str] | None = NAMES, **notes: Any
) -> Path:
    """A header as the Dataflow Compiler 3.31 writes it, the network for the fake, and the notes beside it."""
    compiler = b"3.31.0"
    header = bytes([0x08, architecture, 0x1A, len(compiler)]) + compiler
    proto = bytes([0x0A, len(header)]) + header
    path.write_bytes(struct.pack(">III", 0x01484546, 0, len(proto)) + bytes(20) + proto + json.dumps(network).encode())
    if names is not None or notes:
        reported = {"names": list(names)} if names is not None else {}
        path.with_name(f"{path.name}.json").write_text(json.dumps({**reported, **notes}))
    return path
