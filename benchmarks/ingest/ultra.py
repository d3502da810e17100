"""Ultralytics `track` at a few frames a second, as its users run it: one model and one thread a camera.

Started by the benchmark with a Python that has the package `ultralytics`, in a process of its own. That package is
AGPL-3.0: nothing of Vedette imports it, and this file imports nothing of Vedette. It says when it was told of a result,
not which frame it was made from, so a box counts for the time at which it came, less the mean time of its making.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback

CAMERA_FPS = 15
SCORE_MIN = 0.2
_LOCK = threading.Lock()


def main() -> None:
    threading.excepthook = end_all
    plan = json.loads(sys.stdin.readline())
    model, size = plan["model_path"], plan["size"]
    for name, url in plan["cameras"].items():
        arguments = (name, url, model, size, round(CAMERA_FPS / plan["fps"]))
        threading.Thread(target=watch, args=arguments, name=f"camera-{name}", daemon=True).start()
    sys.stdin.read()


def end_all(failed: threading.ExceptHookArgs) -> None:
    """A camera that cannot be watched ends the whole: half a contender is not compared."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(1)


def watch(name: str, url: str, path: str, size: int, stride: int) -> None:
    """Track one camera for ever, telling each result as a line."""
    from ultralytics import YOLO  # type: ignore[import-not-found,unused-ignore]  # AGPL-3.0, optional

    model = YOLO(path, task="detect")
    results = model.track(
        source=url, stream=True, imgsz=size, vid_stride=stride, conf=SCORE_MIN, verbose=False, device="cpu"
    )
    spent_s = 0.0
    for n, result in enumerate(results):
        took_s = sum(result.speed.values()) / 1000
        spent_s += took_s
        rows = zip(result.boxes.cls.tolist(), result.boxes.xyxyn.tolist(), strict=True)
        boxes = [[result.names[int(label)], *(round(side, 4) for side in box)] for label, box in rows]
        told = {"camera": name, "t": time.time() - took_s, "boxes": boxes}
        line = {**told, "detector_s": spent_s, "decoded": (n + 1) * stride}
        with _LOCK:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
