"""Ultralytics `track` at a few frames a second, as its users run it: one model and one thread a camera.

Started by the benchmark with a Python that has the package `ultralytics`, in a process of its own. That package is
AGPL-3.0: nothing of Vedette imports it, and this file imports nothing of Vedette. Its results carry no frame number, so
a box counts for the time at which it came, less the mean time of its making. The CPU time of its network alone cannot
be measured: several threads take part, and its own figures are wall time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from typing import Any

CAMERA_FPS = 15
SCORE_MIN = 0.2
# Nothing is fetched, installed or reported, and the settings of whoever runs this are left alone.
QUIET = {"YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}
_LOCK = threading.Lock()
_KEPT: list[Any] = []  # what ends with its last reference


def main() -> None:
    threading.excepthook = end_all
    plan = json.loads(sys.stdin.readline())
    os.environ.update(QUIET, YOLO_CONFIG_DIR=plan["dir"])
    mend_torchvision()
    model, size = plan["model_path"], plan["size"]
    for name, url in plan["cameras"].items():
        arguments = (name, url, model, size, round(CAMERA_FPS / plan["fps"]))
        threading.Thread(target=watch, args=arguments, name=f"camera-{name}", daemon=True).start()
    sys.stdin.read()


def mend_torchvision() -> None:
    """Make torchvision importable beside PyTorch's CPU build, where it lacks its own operators.

    Declare those that its import looks for, and let Ultralytics use the NMS of its own that it has for such machines.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]

    try:
        import torchvision  # type: ignore[import-not-found,unused-ignore]
    except RuntimeError:
        for name in [each for each in sys.modules if each.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _KEPT.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _KEPT[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # type: ignore[import-not-found,unused-ignore]
        from ultralytics.utils.nms import TorchNMS  # type: ignore[import-not-found,unused-ignore]

        torchvision.ops.nms = TorchNMS.nms


def end_all(failed: threading.ExceptHookArgs) -> None:
    """End the process when a camera cannot be read: half a contender is not compared."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    os._exit(1)


def watch(name: str, url: str, path: str, size: int, stride: int) -> None:
    """Track one camera for ever, printing each result as a line."""
    from ultralytics import YOLO  # type: ignore[import-not-found,unused-ignore]  # AGPL-3.0, optional

    model = YOLO(path, task="detect")
    results = model.track(
        source=url, stream=True, imgsz=size, vid_stride=stride, conf=SCORE_MIN, verbose=False, device="cpu"
    )
    for n, result in enumerate(results):
        took_s = sum(result.speed.values()) / 1000
        rows = zip(result.boxes.cls.tolist(), result.boxes.xyxyn.tolist(), strict=True)
        boxes = [[result.names[int(label)], *(round(side, 4) for side in box)] for label, box in rows]
        result_line = {"camera": name, "t": time.time() - took_s, "boxes": boxes}
        with _LOCK:
            print(json.dumps({**result_line, "decoded": (n + 1) * stride}), flush=True)


if __name__ == "__main__":
    main()
