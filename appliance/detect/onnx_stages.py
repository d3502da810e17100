"""Cuts an .onnx file into the stages of its network, so that who re-trains the head sends the head alone.

The stage is read off the names of the weights, as exporters write them. All that is no weight, or of a name that tells
nothing, is `graph`. Nothing is parsed to put the file together again: its bytes are the pieces in their order.
"""

from __future__ import annotations

import hashlib
import re

from appliance.bundle.manifest import Blob, BundleFile, Stage, whole_file
from appliance.detect.protobuf_reader import protobuf_spans

STAGE_BYTES_MIN = 4096  # a smaller file, or one with less of weights by stage, is moved whole
_GRAPH, _INITIALIZER, _NAME = 7, 5, 8  # field numbers of onnx.proto
_STAGES: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    ("head", re.compile(r"(^|[./_])(head|branches|detect|cls|bbox|class_embed|bbox_embed|decoder)([./_]|$)")),
    ("neck", re.compile(r"(^|[./_])(neck|fpn|pan|pafpn|lateral|encoder)([./_]|$)")),
    ("backbone", re.compile(r"(^|[./_])(backbone|stem|stages|body|darknet)([./_]|$)")),
)


def describe_file(name: str, data: bytes) -> BundleFile:
    """Return how a file of a bundle is cut into blobs; what is not an .onnx with stages is one blob."""
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


def _runs(data: bytes) -> list[tuple[Stage, int]]:
    """Return stages with the number of bytes, in the order of the file; neighbours differ."""
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
