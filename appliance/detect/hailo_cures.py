"""Cures for a Hailo device that does not come up: HailoRT's status, in words, with the commands that help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.detect import hef_file
from appliance.detect.hailo_process import HailoDescription, HelperFailed
from appliance.detect.hef_file import HefHeader

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
    told = {_release(each) for each in (found.library, found.driver, found.firmware)} - {""}
    if len(told) > 1:
        return f"{versions(vars_of(found))}: {SAME_VERSION}"
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


def vars_of(found: HailoDescription) -> dict[str, str]:
    """Return the fields that `versions` needs."""
    return {name: getattr(found, name) for name in ("library", "driver", "firmware", "architecture")}


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
