"""The part of `vedette check` that loads the networks.

Estimates how busy the detector will be, and which known network would find more on this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from appliance.base import machine, yamlfile
from appliance.base.clock import process_cpu_s
from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.config import CameraConfig, IngestConfig
from appliance.config.values import Finding
from appliance.detect import detector_loader, runtime_choice
from appliance.detect.detector import ObjectDetector
from appliance.detect.detector_loader import recheck_settings
from appliance.detect.model_advice import DetectorLoad, better_models, inferences_wanted, variant_advice
from appliance.detect.model_files import model_bundles
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.runtime_choice import RuntimeOption
from appliance.rules.engine import unknown_labels

Lines = Mapping[tuple[str | int, ...], int]
RUNS = 5  # the median counts; one more before them is for memory and caches
MEMORY_LEFT_BYTES = 64_000_000  # with all networks loaded: for segments, pages and peaks of frames
FRAME_SIZE = (1280, 720)  # of a usual camera; the detector asks for it smaller
GREY = 114  # letterbox padding of YOLO networks, 0..255


def measure_load(detector: ObjectDetector, cameras: Mapping[str, CameraConfig]) -> DetectorLoad | None:
    """Measure an inference; None: the detector does not answer."""
    width, height = detector.preferred_size(*FRAME_SIZE)
    frame = np.full((height, width, 3), GREY, np.uint8)
    took = []
    try:
        for _ in range(RUNS + 1):
            began = process_cpu_s()
            detector.detect([frame])
            took.append(process_cpu_s() - began)
    except DetectorError:
        return None
    return DetectorLoad(statistics.median(took[1:]), inferences_wanted(cameras))


def detector_findings(
    site: IngestConfig, lines: Lines, loads: list[DetectorLoad], options: Sequence[RuntimeOption]
) -> Iterator[Finding]:
    """Find what the networks of the site do on this machine. loads: gets how busy the detector will be."""
    try:
        loaded = detector_loader.load(runtime_choice.with_remembered_runtime(site.detector, site.storage.dir))
    except (ModelError, MissingDependency) as error:
        yield Finding("detector", "wrong", str(error))
        return
    if loaded.warning:
        yield Finding("detector.model", "warning", loaded.warning)
    else:
        yield Finding("detector.model", "ok", f"{loaded.name}, {len(loaded.labels)} classes")
    yield from _variant(site, loaded)
    yield from _runtime(site, options)
    yield from _recheck_model(site)
    yield from _load(site, loaded, loads)
    own: dict[str, tuple[str, ...]] = {}
    yield from _own_networks(site, own)
    for name, camera in site.cameras.items():
        for unknown in unknown_labels(camera.rules, own.get(camera.model or "", loaded.labels)):
            place = ("cameras", name, "rules", unknown.rule, "labels", unknown.label)
            yield Finding(yamlfile.place_in_file(place, lines), "wrong", unknown.text)


def _own_networks(site: IngestConfig, labels: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Find whether networks that cameras have for themselves load beside the other. labels: gets theirs, by name."""
    for settings in site.own_networks():
        place = f"cameras.*.model {settings.model}"
        try:
            network = detector_loader.load(runtime_choice.with_remembered_runtime(settings, site.storage.dir))
        except (ModelError, MissingDependency) as error:
            yield Finding(place, "wrong", str(error))
            continue
        labels[settings.model] = network.labels
        known = machine.memory_bytes()
        if known is not None and known[1] < MEMORY_LEFT_BYTES:
            text = f"with both networks {known[1] / 1e6:.0f} MB of memory are left: take `model` out of the cameras"
            yield Finding(place, "wrong", text)
        else:
            yield Finding(place, "ok", f"{network.name}, {len(network.labels)} classes, beside the network of all")


def _variant(site: IngestConfig, loaded: ObjectDetector) -> Iterator[Finding]:
    """Find whether a variant of a network was measured on scenarios; nothing where models.toml knows it."""
    found = detector_loader.locate(site.detector)
    if found is not None and not found.labels and isinstance(loaded, NetworkDetector):
        advice = variant_advice(found.path, loaded.runtime.metadata)
        if advice is not None:
            yield Finding("detector.model", "ok" if advice[0] else "warning", advice[1])


def _recheck_model(site: IngestConfig) -> Iterator[Finding]:
    if not site.second_look.enabled or site.second_look.model is None:
        return
    try:
        found = detector_loader.load(recheck_settings(site.second_look.model, site.detector))
    except (ModelError, MissingDependency) as error:
        yield Finding("second_look.model", "wrong", str(error))
    else:
        yield Finding("second_look.model", "ok", found.name)


def _load(site: IngestConfig, loaded: ObjectDetector, loads: list[DetectorLoad]) -> Iterator[Finding]:
    """Find how busy the detector will be, and what would find more here. loads: gets what was measured."""
    load = measure_load(loaded, site.cameras)
    if load is None or not load.wanted:
        return
    loads.append(load)
    text = (
        f"{load.wanted:g} inferences a second when every camera moves, {load.inference_s * 1e3:.0f} ms each: "
        f"{load.share:.0%} of one core"
    )
    if load.share > 1:
        text += "; cameras will be overloaded: lower detect.fps, take a quicker network, or fewer cameras"
    yield Finding("detector", "warning" if load.share > 1 else "ok", text)
    better = better_models(site.detector.model, model_bundles(), site.cameras, load)
    if better:
        best = better[0]
        yield Finding(
            "detector.model",
            "ok",
            f"{best.name} finds more on pictures that no network here was tuned to (AP50 {best.ap50:.2f} against "
            f"{best.ap50_now:.2f}) at {best.cost:.1f} times the cost, {best.load:.0%} of one core here: "
            f"vedette models pull {best.name}",
        )


def _runtime(site: IngestConfig, options: Sequence[RuntimeOption]) -> Iterator[Finding]:
    """Report what `auto` chose on this machine and what failed to start; nothing if there is no choice."""
    known = runtime_choice.remembered_choice(site.detector, site.storage.dir)
    if known is not None:
        yield Finding("detector.backend", "ok", known.summary)
    elif len(found := runtime_choice.candidates_for(site.detector)) > 1:
        names = ", ".join(map(str, found))
        yield Finding("detector.backend", "ok", f"the first start measures which is fastest: {names}")
    for each in options:
        if each.state == "refused":
            yield Finding("detector.backend", "warning", f"{each.way} does not come up: {each.reason}")
