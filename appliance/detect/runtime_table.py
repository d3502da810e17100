"""The runtimes that this appliance has for the network, and why `auto` chose what it did, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import ModelError
from appliance.detect import model_files, runtime_choice
from appliance.detect.accelerators import KINDS, accelerators
from appliance.detect.runtime_choice import GAIN_MIN, PLACES, RuntimeCandidate, RuntimeChoice


@dataclass(frozen=True, slots=True)
class RuntimeOption:
    """A row of what this box has to run the network with, and what came of it. cost_ms: as in RuntimeChoice."""

    way: str
    state: Literal["chosen", "slower", "unmeasured", "refused", "left out", "absent"]
    cost_ms: float | None = None
    reason: str = ""


def runtime_options(settings: DetectorConfig, known: RuntimeChoice | None) -> tuple[RuntimeOption, ...]:
    """Return the runtimes that `auto` found here, best first, and why; () if the site file leaves nothing open.

    known: what was measured; None: nothing yet.
    """
    candidates = runtime_choice.candidates_for(settings)
    if not candidates or settings.backend != "auto":
        return ()
    rows = [_option(each, known, alone=len(candidates) == 1) for each in candidates]
    rows.sort(key=lambda row: (row.state != "chosen", row.cost_ms is None, row.cost_ms or 0.0))
    return (*rows, *_left_out(settings, candidates), *_absent(settings))


def _option(each: RuntimeCandidate, known: RuntimeChoice | None, *, alone: bool) -> RuntimeOption:
    if known is None:
        reason = "nothing else is as accurate here" if alone else "the first start measures it"
        return RuntimeOption(str(each), "chosen" if alone else "unmeasured", reason=reason)
    if str(each) in known.refused:
        return RuntimeOption(str(each), "refused", reason=known.refused[str(each)])
    ms = known.cost_ms.get(str(each))
    if each != known.chosen:
        gain = f"less than {GAIN_MIN:.0%} quicker than the file's own way"
        best = known.cost_ms[str(known.chosen)]
        return RuntimeOption(str(each), "slower", ms, gain if ms is not None and ms < best else "")
    return RuntimeOption(str(each), "chosen", ms, "the quickest of those that are as accurate")


def _left_out(settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> Iterator[RuntimeOption]:
    """Yield the runtimes that are here and would run the network if the site file named them."""
    model = model_files.OWN_MODEL if settings.model == model_files.AUTO_MODEL else settings.model
    here = {each.kind: each for each in accelerators()}
    for backend, places in PLACES.items():
        for device, precisions in places.items():
            if not runtime_choice.installed_version(backend) or (device != "cpu" and device not in here):
                continue
            for precision in precisions:
                able = _is_to_be_had(model, RuntimeCandidate(backend, precision, device))
                if able and RuntimeCandidate(backend, precision, device) not in candidates:
                    asked = f"backend: {backend}, " + (f"device: {device}, " if device != "cpu" else "")
                    yield RuntimeOption(
                        str(RuntimeCandidate(backend, precision, device)), "left out",
                        reason=f"not known to be as accurate; detector {{{asked}precision: {precision}}} takes it",
                    )  # fmt: skip
    if "hailo" in here:
        yield RuntimeOption("hailo", "left out", reason=f"{here['hailo'].node}: detector.backend: hailo takes it")


def _is_to_be_had(model: str, way: RuntimeCandidate) -> bool:
    """Return whether the network's file comes in this precision, or the runtime makes it of any file."""
    if way.precision in ("bf16", "fp16") and way.backend != "onnx":
        return way.precision != "bf16" or runtime_choice.openvino_multiplies_bf16()
    try:
        own = model_files.model_bundles()[model]
    except (KeyError, ModelError):
        return False  # a file of one's own: nothing is known of it in other precisions
    return way.precision == own.precision or (way.precision in own.variants and way.precision != "bf16")


def _absent(settings: DetectorConfig) -> Iterator[RuntimeOption]:
    """Yield the runtimes that cannot run here, and what they would take."""
    here = {each.kind: each for each in accelerators()}
    for backend, package in (("openvino", "pip install 'vedette[openvino]'"), ("tensorrt", "see docs/hardware.md")):
        if not runtime_choice.installed_version(backend) and (backend != "tensorrt" or "cuda" in here):
            yield RuntimeOption(backend, "absent", reason=f"its package is not installed: {package}")
    for kind, name in KINDS.items():
        if kind not in here:
            yield RuntimeOption(name.partition(" ")[2], "absent", reason="none in this box")
        elif settings.device not in ("auto", kind) and kind != "hailo":
            yield RuntimeOption(kind, "left out", reason=f"detector.device is {settings.device}: auto would measure it")


def table_lines(options: Sequence[RuntimeOption]) -> list[str]:
    """`chosen      onnx fp32        10.3 ms  the quickest of those that are as accurate`, one row each."""
    width = max((len(each.way) for each in options), default=0)
    return [
        f"{each.state:<10}  {each.way:<{width}}  {'' if each.cost_ms is None else f'{each.cost_ms:.1f} ms':>8}  "
        f"{each.reason}".rstrip()
        for each in options
    ]
