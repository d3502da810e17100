"""HailoRT as a NetworkRuntime: a compiled network (.hef) on a Hailo device, which a process of its own holds."""

from __future__ import annotations

import json
import logging
import re
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.base.clock import Clock, SystemClock
from appliance.base.config_model import HailoConfig
from appliance.base.errors import DetectorError, ModelError
from appliance.detect import hef_file
from appliance.detect.accelerators import python_with_bindings
from appliance.detect.hailo_client import HailoDescription, HailoProcess, HailoStream, HelperFailed
from appliance.detect.hef_file import HefHeader, HefNotes
from appliance.detect.network_runtime import CLOSED, Array, TensorSpec

OTHERWISE = "or set detector.backend to auto"
INSTALL = (
    "Raspberry Pi OS: sudo apt install hailo-all && sudo reboot (AI HAT+ 2: hailo-h10-all); elsewhere the packages of "
    "Hailo's developer zone, all of one version"
)
SAME_VERSION = (
    "library, driver and firmware must be of one version: sudo apt update && sudo apt full-upgrade && sudo reboot; "
    "in a container: an image with exactly the host's HailoRT"
)
SERVICE = "sudo systemctl enable --now hailort.service, or set detector.hailo.multi_process_service to false"
DEVICE_NODES = ("/dev/hailo0", "/dev/h1x-0")
# github.com/hailo-ai/hailort, hailort.h: HAILO_STATUS_VARIABLES.
VERSIONS_DIFFER = (15, 16, 76, 85, 86)
NO_DRIVER, IN_USE, WRONG_DEVICE = (64,), (73, 74), (75, 93)  # HailoRT 4.23, hailo_status in hailort.h
NO_SERVICE = (62, 77, 78, 89)  # likewise
DAMAGED, TOO_NEW = (26, 91), (92,)  # likewise
WRONG_SIZE = (2, 5)  # likewise
NV12 = "NV12"
BATCH_SIZES = (1, 2, 4)  # HailoRT compiles nothing for a size; more frames wait for each other

log = logging.getLogger(__name__)


class HailoRuntime:
    """A network on a Hailo device, behind a helper process (see `hailo_process`).

    Frames are integers, rows of RGB or NV12; what the network was trained with is done on the chip. A device that is
    lost raises DetectorError until the helper has it again. `close`, or the end of the object, gives the device back.
    """

    def __init__(
        self,
        path: Path,
        settings: HailoConfig | None = None,
        *,
        score_min: float = 0.1,
        labels: tuple[str, ...] = (),
        labels_otherwise: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        """Start the helper process with the HEF. Raises ModelError.

        score_min: a HEF with NMS leaves out scores below it. labels: they replace those in the file beside the HEF.
        labels_otherwise: they are used where that file names none.
        """
        settings = settings or HailoConfig()
        header, notes = hef_file.read_header(path), hef_file.read_notes(path)
        names = labels or notes.labels or labels_otherwise
        if not names:
            raise _nameless(path)
        python = python_with_bindings(settings)
        asked = {
            "hef": str(path.resolve()),
            "score_min": score_min,
            "multi_process_service": settings.multi_process_service,
            "scheduler_timeout_ms": settings.scheduler_timeout_ms,
            "scheduler_threshold": settings.scheduler_threshold,
        }
        try:
            self.process = HailoProcess(python, asked, clock or SystemClock(), settings.answer_s)
        except HelperFailed as failure:
            words = cure(failure, python, header, service=settings.multi_process_service)
            raise ModelError(f"{path}: detector.backend hailo: {words}") from None
        self._finalizer = weakref.finalize(self, self.process.close)
        found = self.process.description
        if wrong := check_description(found, header):
            self.close()
            raise ModelError(f"{path}: detector.backend hailo: {wrong}")
        if slow := advice(found, header):
            log.warning("%s: %s", path, slow)
        self.version = f"hailort {found.library}, {found.architecture}"
        self.mark = found.architecture or "hailo"
        self.takes_any_shape = False
        self.input_sizes: tuple[tuple[int, int], ...] = ()
        # Frames of one run are under way together, so that the device need not wait for the bus and for us.
        most = 1 if found.input.order == NV12 else self.process.slots
        self.batch_sizes = tuple(each for each in BATCH_SIZES if each == 1 or each <= most)
        self.inputs = (_frame_input(found.input),)
        self.metadata: Mapping[str, str] = _metadata(found, notes, names)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Nothing: the one shape was compiled."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network. Raises DetectorError if no answer comes in time, or the device is lost."""
        if not self._finalizer.alive:
            raise DetectorError(CLOSED)
        frame, wanted = feed[self.inputs[0].name], self.inputs[0]
        if tuple(frame.shape[1:]) != wanted.shape[1:] or frame.dtype != wanted.dtype or not len(frame):
            raise DetectorError(f"the network takes {wanted}, not {frame.dtype} {list(frame.shape)}")
        if len(frame) > self.process.slots:
            raise DetectorError(f"{len(frame)} frames are more than the {self.process.slots} that one run may hold")
        return self.process.infer(frame.reshape(len(frame), *self.process.description.input.shape))

    def close(self) -> None:
        """See NetworkRuntime."""
        self._finalizer()


def _nameless(path: Path) -> ModelError:
    return ModelError(
        f"{path}: a HEF does not name its classes: write {hef_file.notes_file(path).name} beside it "
        '({"names": ["person", "car"]}, or {"names": "coco-80"}), or set detector.labels to a file with one name a line'
    )


def _frame_input(stream: HailoStream) -> TensorSpec:
    """[n, height, width, 3]; of NV12, whose rows are one plane over the other, [1, height * 3 / 2, width].

    HailoRT gives NV12 the shape [height / 2, width, 3] (transform__h2d_NV12_to_NV12).
    """
    height, width, features = (*stream.shape, 0, 0, 0)[:3]
    if stream.order == NV12:
        return TensorSpec(stream.name, stream.dtype, (1, height * features, width))
    return TensorSpec(stream.name, stream.dtype, (None, height, width, features))


def _metadata(found: HailoDescription, notes: HefNotes, names: tuple[str, ...]) -> dict[str, str]:
    """In the words of an exporter, so that what reads ONNX files reads these."""
    streams = {each.name: {"order": each.order, "classes": each.classes} for each in found.outputs}
    return {
        "names": str(dict(enumerate(names))),
        "placing": notes.placing,
        "pixels": "nv12" if found.input.order == NV12 else notes.pixels,
        "hailo": json.dumps({"outputs": streams, "scores": notes.scores, "sides": notes.sides}),
    }


def cure(failure: HelperFailed, python: Path, hef: HefHeader, *, service: bool) -> str:
    """One sentence or two: what is wrong, and what to do. python: that ran the helper."""
    step, status, known = failure.error.get("step", ""), int(failure.error.get("status", 0)), failure.known
    if step == "python":
        return f"{failure}: set detector.hailo.python to the Python that has HailoRT's bindings, {OTHERWISE}"
    if step == "start":
        return f"{failure}: try hailortcli fw-control identify; a device that hangs needs the power taken away"
    if step == "import":
        return _no_bindings(failure, python)
    if step == "scan" and known.get("devices") == 0:
        return _no_device(known)
    says = f"HailoRT says `{failure}`"
    if status in NO_DRIVER:
        return _no_device(known)
    if status in VERSIONS_DIFFER:
        return f"{versions(known)} ({says}): {SAME_VERSION}"
    if status in NO_SERVICE and service:
        return f"HailoRT's service does not answer ({says}): {SERVICE}"
    if status in IN_USE:
        return (
            f"another process has the device ({says}; vedette run, or rpicam-apps?): stop it, or set "
            "detector.hailo.multi_process_service to true for all of them and start hailort.service"
        )
    if status in WRONG_DEVICE or failure.error.get("kind") == "HailoRTHEFNotCompatibleWithDevice":
        return wrong_architecture(hef, str(known.get("architecture", "")))
    if status in DAMAGED or failure.error.get("kind") == "HailoRTInvalidHEFException":
        return f"the file is damaged ({says}): download or compile it again"
    if status in TOO_NEW:
        return (
            f"it was compiled by Dataflow Compiler {hef.compiler or '?'}, which HailoRT {known.get('library', '?')} "
            f"does not know ({says}): update HailoRT, or compile it with an older one (Hailo-8 and 8L: 3.x)"
        )
    hint = ""
    if status in WRONG_SIZE and str(known.get("numpy", "")).startswith("2"):
        hint = f" Bindings that were built for numpy 1 misread arrays of numpy {known['numpy']}: use 1.26 there."
    return f"{says} at the step `{step}` ({versions(known)}): see hailortcli fw-control identify and dmesg.{hint}"


def check_description(found: HailoDescription, hef: HefHeader) -> str:
    """Return what is wrong with a device that came up, with its cure; '' if nothing is."""
    releases = {_release(each) for each in (found.library, found.driver, found.firmware)} - {""}
    if len(releases) > 1:
        return f"{versions(asdict(found))}: {SAME_VERSION}"
    if not hef_file.runs_on(hef.architecture, found.architecture):
        return wrong_architecture(hef, found.architecture)
    return ""


def advice(found: HailoDescription, hef: HefHeader) -> str:
    """Return advice on what costs speed or safety and is no reason to refuse, or ''."""
    if _release(found.library) == "4.21.0":
        return "the driver of HailoRT 4.21.0 is known to stop the kernel under load: update to 4.22 or later"
    if hef.architecture == "hailo8l" and found.architecture == "hailo8":
        return "the HEF was compiled for hailo8l and the device is a hailo8: compiled for that it would be faster"
    return ""


def wrong_architecture(hef: HefHeader, device: str) -> str:
    """For a HEF that was compiled for another device."""
    return (
        f"it was compiled for {hef.architecture or 'another device'}, and the device here is {device or 'another'}: "
        f"get or compile the one for {device or 'it'} (`hailomz compile --hw-arch {device or 'ARCHITECTURE'}`)"
    )


def versions(known: Mapping[str, Any]) -> str:
    """`HailoRT 4.23.0, driver 4.20.0, firmware 4.23.0, hailo8l`, as far as they are known."""
    named = [f"HailoRT {known['library']}"] if known.get("library") else []
    named += [f"{name} {known[name]}" for name in ("driver", "firmware") if known.get(name)]
    return ", ".join([*named, *filter(None, (known.get("architecture"),))]) or "nothing is known of library and device"


def _no_bindings(failure: HelperFailed, python: Path) -> str:
    if failure.error.get("kind") == "ModuleNotFoundError" and "hailo_platform" in str(failure):
        return (
            f"{python} has no HailoRT (hailo_platform): {INSTALL}, or set detector.hailo.python to the Python that has "
            f"it, {OTHERWISE}"
        )
    if "numpy" in str(failure):
        return f"HailoRT's bindings and the numpy of {python} do not fit ({failure}): they want numpy below 2"
    return f"HailoRT's bindings do not load in {python} ({failure}): {INSTALL}"


def _no_device(known: Mapping[str, Any]) -> str:
    if not known.get("driver"):
        return (
            f"no Hailo driver is loaded: {INSTALL}; `dkms status` and `lsmod | grep hailo` tell more; in a container: "
            "--device /dev/hailo0"
        )
    if not any(Path(each).exists() for each in DEVICE_NODES):
        return (
            f"driver {known['driver']} is loaded and finds no device: `lspci | grep Hailo`; is the HAT seated, PCIe "
            "enabled (dtparam=pciex1 in /boot/firmware/config.txt)? In a container: --device /dev/hailo0"
        )
    return (
        f"a device is there and HailoRT {known.get('library', '?')} finds none: may this user open "
        f"{' or '.join(DEVICE_NODES)}? HailoRT 4.x knows Hailo-8 and 8L, 5.x Hailo-10H"
    )


def _release(version: str) -> str:
    """`4.23.0` of `4.23.0-1 (release,app)`; '': it does not tell."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found[0] if found else ""
