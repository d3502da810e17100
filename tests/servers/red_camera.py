"""A camera on which somebody is to be seen for 2 s of every 8, a site that raises an alert each time, and its store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.servers.appliance_process import ApplianceProcess
from tests.support.tiny_networks import Thing, yolo

SIDE = 128
FPS = 10
RED_S, DARK_S = 2, 6  # longer than a hidden person keeps the number (track.relink)
_SITE = """
detector: {{model: '{model}'}}
cameras:
  gate:
    url: '{url}'
    detect: {{fps: 5, heartbeat_s: 0.1}}
    zones: {{yard: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: intruder, kind: enter, zone: yard, severity: alert, at_start: report}}]
alerts: {{merge_s: 1, pre_roll_s: 1, post_roll_s: 1}}
uplink: {{url: '{nats}'}}
"""


def red_clip(path: Path, dark_s: int = DARK_S) -> Path:
    """The picture is red while somebody is there: see `tiny_networks`. dark_s: for how long nobody is."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=FPS)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = FPS
        stream.options = {"preset": "ultrafast", "bf": "0"}
        for n in range(FPS * (RED_S + dark_s)):
            image = np.zeros((SIDE, SIDE, 3), np.uint8)
            image[..., 0] = 255 if n < FPS * RED_S else 0
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def red_appliance(folder: Path, url: str, nats: str) -> ApplianceProcess:
    """The appliance that watches it; `with` starts it."""
    model = yolo(folder / "red.onnx", [Thing((40, 20, 70, 110), 0.9, 0)], ["person"])
    return ApplianceProcess(folder, _SITE.format(model=model, url=url, nats=nats))


def rows(appliance: ApplianceProcess, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{appliance.folder / 'data' / 'vedette.db'}?mode=ro", uri=True, timeout=10) as link:
        return link.execute(query).fetchall()


def one(appliance: ApplianceProcess, query: str) -> Any:
    return rows(appliance, query)[0][0]


def alerts(appliance: ApplianceProcess) -> set[str]:
    return {row[0] for row in rows(appliance, "SELECT id FROM alert")}


def ingest_of(core: int) -> int:
    """The ingest process of a core."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == core and b"appliance.ingest" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("there is no ingest process")
