"""The process that holds a Hailo device.

`python3 -I hailo_helper.py FD` speaks lines of JSON with `hailo_process`. `python3 -I hailo_helper.py temperatures`
says how hot the chips are, while another process infers on them.

It is run by the Python that has HailoRT's bindings, so it imports nothing of Vedette. Names and signatures are those of
`hailo_platform` 4.23.0 (github.com/hailo-ai/hailort, branch hailo8, MIT). Frames and answers lie in the shared memory
FD, one slot for each inference that is under way:

    stdin   {"hef": …, "score_min": …, …}         {"slots": [{"input": offset, "outputs": [offset, …]}, …]}   0   1 …
    stdout  {"ready": {…}} or {"error": {…}}                                                  {"slot": 0}   {"slot": 1}

    stdin   (empty line)                                              stdout  {"celsius": [55.0, …]} or {"error": {…}}

After an error of an inference HailoRT's pipeline is down: the helper says so and ends, and its parent starts another.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

CHIPS_MAX = 16  # Hailo's Century cards have up to 16
READY_MS = 1000  # until the device takes another frame
DRIVERS = ("hailo_pci", "hailo1x_pci")  # of Hailo-8 and of Hailo-10H
BY_CLASS, BY_SCORE = "HAILO_NMS_BY_CLASS", "HAILO_NMS_BY_SCORE"
_lock = threading.Lock()


class StepFailed(Exception):
    """Something did not work. step: what; status: HailoRT's number, 0 where there is none."""

    def __init__(self, step: str, error: Exception) -> None:
        text = (str(error).strip().splitlines() or [""])[0]
        # hailo_platform says `libhailort failed with error: 76 (HAILO_…)`, the C extension the bare number.
        number = re.search(r"error: (\d+)", text) or re.fullmatch(r"(\d+)", text)
        self.report = {
            "step": step, "kind": type(error).__name__, "status": int(number[1]) if number else 0, "text": text[:300],
        }  # fmt: skip
        super().__init__(text)


def driver_version(modules: Path = Path("/sys/module")) -> str:
    """Return the version of the loaded kernel driver, `?` where it does not tell, "" where none is loaded."""
    for name in DRIVERS:
        if (modules / name).is_dir():
            try:
                return (modules / name / "version").read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                return "?"
    return ""


class HailoDevice:
    """The device, with one network on it.

    State: what was opened, in order, and one set of bindings for each slot. Owner: the main thread; answers come in on
    a thread of HailoRT. known: what is known of library, driver and device so far, for reports.
    """

    def __init__(self, asked: dict[str, Any], known: dict[str, Any]) -> None:
        """Open the device and load the network on it. Raises StepFailed."""
        self._asked = asked
        self._known = known
        self._open = contextlib.ExitStack()
        self._bindings: list[Any] = []
        self._hailo: Any = None
        self._numpy: Any = None
        self._device: Any = None
        self._model: Any = None
        self._network: Any = None
        self._step("import", self._import)
        self._step("scan", self._scan)
        self._step("device", self._open_device)
        self._step("hef", self._open_network)
        self._step("describe", self._describe)

    def _step(self, name: str, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  (whatever a foreign library raises is the parent's to explain)
            raise StepFailed(name, error) from None

    def _import(self) -> None:
        import hailo_platform  # whose absence is worth a report
        import numpy as np

        self._hailo, self._numpy = hailo_platform, np
        self._known |= {"library": hailo_platform.__version__, "numpy": np.__version__}

    def _scan(self) -> None:
        """Asks the first device what it is, before a virtual device takes it."""
        devices = self._hailo.Device.scan()
        self._known["devices"] = len(devices)
        if not devices:
            raise LookupError("no device found")
        with self._hailo.Device(devices[0]) as device:
            board = device.control.identify()
        self._known["architecture"] = str(board.device_architecture).rpartition(".")[2].lower()
        self._known["firmware"] = str(board.firmware_version).partition(" ")[0]

    def _open_device(self) -> None:
        params = self._hailo.VDevice.create_params()
        # The default of the Python bindings is NONE, with which one network at a time has to be activated by hand.
        params.scheduling_algorithm = self._hailo.HailoSchedulingAlgorithm.ROUND_ROBIN
        if self._asked["multi_process_service"]:
            params.multi_process_service = True
            params.group_id = "SHARED"
        self._device = self._open.enter_context(self._hailo.VDevice(params))

    def _open_network(self) -> None:
        self._model = self._prepared(with_threshold=True)
        try:
            configured = self._model.configure()
        except self._hailo.HailoRTException:
            # A threshold for a HEF whose NMS runs on the chip is only refused here: it then keeps the one of its
            # compilation.
            if not any(output.is_nms for output in self._model.outputs):
                raise
            self._model = self._prepared(with_threshold=False)
            configured = self._model.configure()
        self._network = self._open.enter_context(configured)
        self._network.set_scheduler_timeout(self._asked["scheduler_timeout_ms"])
        self._network.set_scheduler_threshold(self._asked["scheduler_threshold"])

    def _prepared(self, *, with_threshold: bool) -> Any:
        model = self._device.create_infer_model(self._asked["hef"])
        model.set_batch_size(1)
        model.input().set_format_type(self._hailo.FormatType.UINT8)
        for output in model.outputs:
            if output.is_nms and with_threshold:
                output.set_nms_score_threshold(self._asked["score_min"])
            if output.format.order.name != BY_SCORE:
                output.set_format_type(self._hailo.FormatType.FLOAT32)  # libhailort turns integers into numbers
        return model

    def _describe(self) -> None:
        nms = {each.name: each.nms_shape for each in self._model.hef.get_output_vstream_infos() if _is_nms(each)}
        self._known["inputs"] = [
            {"name": each.name, "shape": list(each.shape), "order": each.format.order.name, "dtype": "uint8"}
            for each in self._model.inputs
        ]
        self._known["outputs"] = [
            {
                "name": each.name,
                "shape": list(each.shape),
                "order": each.format.order.name,
                "dtype": "uint8" if each.format.order.name == BY_SCORE else "float32",
                "classes": nms[each.name].number_of_classes if each.name in nms else 0,
            }
            for each in self._model.outputs
        ]
        self._known["queue"] = self._network.get_async_queue_size()

    def bind(self, memory: mmap.mmap, slots: list[dict[str, Any]]) -> None:
        """One set of bindings a slot: `input` is the offset of the frame, `outputs` are those of the answers."""
        for slot in slots:
            source = self._view(memory, slot["input"], self._known["inputs"][0])
            targets = {
                output["name"]: self._view(memory, offset, output)
                for output, offset in zip(self._known["outputs"], slot["outputs"], strict=True)
            }
            bindings = self._network.create_bindings(output_buffers=targets)
            bindings.input().set_buffer(source)
            self._bindings.append(bindings)

    def _view(self, memory: mmap.mmap, offset: int, stream: dict[str, Any]) -> Any:
        count = int(self._numpy.prod(stream["shape"]))
        return self._numpy.frombuffer(memory, stream["dtype"], count, offset).reshape(stream["shape"])

    def start(self, slot: int, done: Any) -> None:
        """Begin an inference; `done(slot, error or None)` is called on a thread of HailoRT. Raises StepFailed."""

        def completed(completion_info: Any) -> None:
            done(slot, completion_info.exception)

        def begin() -> None:
            self._network.wait_for_async_ready(timeout_ms=READY_MS, frames_count=1)
            self._network.run_async([self._bindings[slot]], completed)

        self._step("infer", begin)


def _is_nms(info: Any) -> bool:
    return info.format.order.name in (BY_CLASS, BY_SCORE)


def chip_temperatures(requests: TextIO, send: Any) -> None:
    """Send the hotter of the two sensors of each chip, for each line of `requests`.

    A null stands for a chip that does not tell now. Raises StepFailed.
    """
    try:
        import hailo_platform

        devices = list(hailo_platform.Device.scan())[:CHIPS_MAX]
    except Exception as error:  # noqa: BLE001  (see HailoDevice)
        raise StepFailed("import", error) from None
    for _ in requests:
        send({"celsius": [_celsius(hailo_platform.Device, each) for each in devices]})


def _celsius(device_class: Any, device_id: str) -> float | None:
    try:
        with device_class(device_id) as device:
            temperature = device.control.get_chip_temperature()
        return max(float(temperature.ts0_temperature), float(temperature.ts1_temperature))
    except Exception:  # noqa: BLE001  (it is being reset, or taken by a process that shares with nobody)
        return None


def main() -> int:
    """Serve until standard input ends, which it does when the parent is gone. The exit status."""
    # libhailort writes to standard output what it has to say: ours is kept for the parent.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def send(line: dict[str, Any]) -> None:
        with _lock, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(line) + "\n")
            answers.flush()

    known: dict[str, Any] = {"driver": driver_version(), "python": sys.version.split()[0]}
    try:
        if sys.argv[1] == "temperatures":
            chip_temperatures(sys.stdin, send)
            return 0
        device = HailoDevice(json.loads(sys.stdin.readline()), known)
        send({"ready": known})
        serve(device, sys.stdin, send)
    except StepFailed as failure:
        send({"error": failure.report, "known": known})
        return 1
    return 0


def serve(device: HailoDevice, requests: TextIO, send: Any) -> None:
    """Inferences as they are asked for, until there are no more requests. Raises StepFailed."""
    ended = threading.Event()

    def done(slot: int, error: Exception | None) -> None:
        if error is None:
            send({"slot": slot})
        elif not ended.is_set():
            ended.set()
            send({"error": StepFailed("infer", error).report})
            os._exit(1)  # the pipeline is down; the main thread may wait for it for ever

    layout = requests.readline()
    if layout:
        device.bind(mmap.mmap(int(sys.argv[1]), 0), json.loads(layout)["slots"])
        for line in requests:
            device.start(int(line), done)


if __name__ == "__main__":
    # Without Python's own way out: giving up a device that is stuck may hang, and the driver takes it back anyway.
    os._exit(main())
