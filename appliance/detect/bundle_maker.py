"""Makes a bundle from a network whose files are on this machine.

A bundle is one version of a network: a folder with a manifest, the network's files (one for each precision), and a
model card. To keep updates small, each .onnx file is cut into parts, one for each stage of the network (backbone, neck,
head). An appliance downloads only the parts that it lacks: only the head, if only the head was re-trained.

The stage of a weight is known from its name, as exporters write it. Weights with other names, and everything that is
not a weight, form the part `graph`. To restore the file, an appliance joins the pieces in their order, without parsing
them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import ModelError
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import (
    Blob,
    BundleFile,
    BundleManifest,
    BundleRef,
    ModelEntry,
    Stage,
    sha256_of,
    whole_file,
)  # fmt: skip
from appliance.detect.model_files import bundle_store, file_of, model_folders, named_model, of_version, present_models
from appliance.detect.protobuf_reader import protobuf_spans

CARD_FILE = "card.md"

STAGE_BYTES_MIN = 4096  # a smaller file is not cut
_GRAPH, _INITIALIZER, _NAME = 7, 5, 8  # field numbers of onnx.proto
_STAGES: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    ("head", re.compile(r"(^|[./_])(head|branches|detect|cls|bbox|class_embed|bbox_embed|decoder)([./_]|$)")),
    ("neck", re.compile(r"(^|[./_])(neck|fpn|pan|pafpn|lateral|encoder)([./_]|$)")),
    ("backbone", re.compile(r"(^|[./_])(backbone|stem|stages|body|darknet)([./_]|$)")),
)


def describe_file(name: str, data: bytes) -> BundleFile:
    """Return how a file of a bundle is cut into blobs. A file that is no .onnx with stages is one blob."""
    if not name.endswith(".onnx") or len(data) < STAGE_BYTES_MIN:
        return whole_file(data)
    try:
        runs = _runs(data)
    except (ValueError, IndexError, UnicodeDecodeError):
        return whole_file(data)
    stages = list(dict.fromkeys(stage for stage, _ in runs))
    if stages == ["graph"]:
        return whole_file(data)
    parts: dict[Stage, list[bytes]] = {stage: [] for stage in stages}
    at = 0
    for stage, count in runs:
        parts[stage].append(data[at : at + count])
        at += count
    blobs = []
    for stage, pieces in parts.items():
        joined = b"".join(pieces)
        blobs.append(Blob(stage=stage, sha256=hashlib.sha256(joined).hexdigest(), bytes=len(joined)))
    pieces_of = tuple((stages.index(stage), count) for stage, count in runs)
    return BundleFile(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), blobs=tuple(blobs), pieces=pieces_of)


def describe_network(name: str, version: str = "") -> tuple[BundleManifest, dict[str, bytes]]:
    """Return the manifest and the files of a bundle made from the network `name` and its variants on this machine.

    version: "": made from the hash of the network's file, so that the same file has the same version everywhere. Raise
    ModelError.
    """
    places = model_folders()
    name, places = of_version(name, places)
    present = present_models(places)
    if name not in present:
        raise ModelError(f"`{name}` is not here; `vedette models list` shows what is, `vedette models pull` gets more")
    own = present[name]
    variants = {precision: other for precision, other in own.variants.items() if other in present}
    entries = {name: own.model_copy(update={"variants": variants})}
    entries |= {other: present[other] for other in variants.values()}
    files = {}
    for entry in entries.values():
        path = file_of(entry, places)
        if path is None or sha256_of(path) != entry.sha256:
            raise ModelError(f"{path}: its sha256 is not that of `{name}`; see `vedette models verify {name}`")
        files[entry.file] = path.read_bytes()
    files[CARD_FILE] = _card(name, own).encode()
    manifest = BundleManifest(
        name=name,
        version=version or f"sha-{own.sha256[:12]}",
        entries=entries,
        files={file: describe_file(file, data) for file, data in files.items()},
        card=CARD_FILE,
        score_scale="common" if own.calibration else "own",
    )
    return manifest, files


def install_files(store: BundleStore, manifest: BundleManifest, files: Mapping[str, bytes]) -> Path:
    """Install a bundle whose files are in memory; return its folder. Raise the errors of BundleStore.add."""

    def fill(folder: Path) -> None:
        for file, data in files.items():
            (folder / file).write_bytes(data)

    return store.add(manifest, manifest.to_bytes(), fill)


def adopt_network(model: str) -> BundleRef | None:
    """Keep a copy of the network of `detector.model` as a bundle, so that people can go back to it after an update.

    Nothing is put in force, and the files that an older Vedette reads stay as they are. Return None if there is a copy
    already, or if the network is a file without a name. Raise ModelError, PreconditionError.
    """
    name, store = named_model(model), bundle_store()
    entry = present_models().get(name)
    if entry is None or any(manifest.model.sha256 == entry.sha256 for manifest in store.installed().values()):
        return None
    manifest, files = describe_network(name)
    install_files(store, manifest, files)
    return manifest.ref


def _card(name: str, entry: ModelEntry) -> str:
    lines = [f"# {name}", "", f"Licence: {entry.licence}", f"Source: {entry.source or 'not given'}"]
    lines += [f"Note: {entry.note}"] if entry.note else []
    figures = [f"- {key}: {value:g}" for key, value in {**entry.accuracy, **entry.unseen}.items()]
    return "\n".join([*lines, *(["", "Measured (0..1, more is better):", *figures] if figures else []), ""])


def _runs(data: bytes) -> list[tuple[Stage, int]]:
    """Return the runs of bytes of one stage: stage and number of bytes, in the order of the file."""
    view = memoryview(data)
    marks: list[tuple[int, int, Stage]] = []
    for number, graph, begin, _ in protobuf_spans(view):
        if number == _GRAPH and isinstance(graph, memoryview):
            for field, tensor, start, end in protobuf_spans(graph):
                if field == _INITIALIZER and isinstance(tensor, memoryview):
                    marks.append((begin + start, begin + end, _stage(tensor)))
    runs: list[tuple[Stage, int]] = []
    at = 0
    for start, end, stage in [*marks, (len(data), len(data), "graph")]:
        for each, count in (("graph", start - at), (stage, end - start)):
            if count and runs and runs[-1][0] == each:
                runs[-1] = (runs[-1][0], runs[-1][1] + count)
            elif count:
                runs.append((stage if each != "graph" else "graph", count))
        at = end
    return runs


def _stage(tensor: memoryview) -> Stage:
    name = next((bytes(value).decode() for at, value, _, _ in protobuf_spans(tensor) if at == _NAME
                 and isinstance(value, memoryview)), "")  # fmt: skip
    return next((stage for stage, pattern in _STAGES if pattern.search(name.lower())), "graph")
