"""Describe a model: one entry a file, as models.toml and a bundle's manifest hold it, and the manifest.

A bundle is a folder: `manifest.json`, the files of its variants (the same network by precision and runtime), and its
card. It is named `NAME@VERSION`, and what stands under one such name never changes. A file is moved as blobs, one a
stage of the network, of which it is put together byte by byte: who has the old version fetches what differs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from appliance.base import local_files
from appliance.base.config_model import ConfigModel, HeadName, Precision
from appliance.base.errors import ModelError, unreadable_model

MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 1 << 20  # one with three files and their stages takes 20 KB
FILE_BYTES_MAX = 1 << 30  # what is larger is no detector
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
SCORE_KINDS: Mapping[str, tuple[str, ...]] = {"person": ("person",), "vehicle": ("car", "bus", "truck", "van")}
"""The labels that are calibrated together."""
ScoreLines = Mapping[str, tuple[float, float]]
"""Kind to (slope, offset): logit of the share of answers that are right = slope * logit(score) + offset (Platt)."""
LINE_MAX = 20.0  # slopes and offsets beyond it make every score 0 or 1
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Stage = Literal["whole", "graph", "backbone", "neck", "head"]


def sha256_of(path: Path) -> str:
    """sha256 of the file in hex. Raises ModelError."""
    try:
        return local_files.sha256_of(path)
    except OSError as error:
        raise unreadable_model(f"{path}: the model file", error) from None


def checked_lines(lines: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the lines. Raise ValueError with the fault."""
    for kind, (slope, offset) in lines.items():
        if kind not in SCORE_KINDS:
            raise ValueError(f"`{kind}` is no kind that scores are calibrated for ({', '.join(SCORE_KINDS)})")
        if not 0 < slope <= LINE_MAX or not abs(offset) <= LINE_MAX:
            raise ValueError(f"{kind}: a slope above 0 and two numbers of at most {LINE_MAX:g}, not {slope}, {offset}")
    return dict(lines)


class ModelEntry(ConfigModel):
    """One model file: a `[name]` of models.toml, or an entry of a bundle's manifest.

    sha256: empty where nobody could check one against the file; such a file is neither pulled nor loaded by this name.
    variants: the same network in other precisions, by the names of their entries. accuracy: figures 0..1, more is
    better, measured alike for all of them; loss_max: how much lower each may be for a variant to count as as accurate.
    """

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+\.(onnx|hef)$")]
    url: Annotated[str, Field(pattern=r"^(https://|$)")] = ""  # "": it comes with Vedette
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64}|)$")] = ""
    licence: str
    labels: Literal["coco-80"] | tuple[str, ...]
    head: HeadName = "auto"
    input: tuple[int, int]
    source: str = ""
    precision: Precision = "fp32"
    variants: dict[Precision, str] = {}
    accuracy: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    loss_max: Annotated[float, Field(ge=0, le=1)] = 0.01
    bytes: Annotated[int, Field(ge=0)] = 0  # of the file; 0: not given
    note: str = ""  # what a person should know before choosing it
    cost: Annotated[float, Field(ge=0)] = 0.0  # CPU time of an inference against vedette-nano; 0: not measured
    calibration: Annotated[dict[str, tuple[float, float]], AfterValidator(checked_lines)] = {}  # see ScoreLines
    recall: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}  # found at a score of 0.5, on the judging set
    unseen: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}  # AP50 on images that none was tuned to, by view_class


@dataclass(frozen=True, slots=True, order=True)
class BundleRef:
    """Names one version of one model for ever: `vedette-nano@8`."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> BundleRef:
        """Return the reference that `NAME@VERSION` stands for. Raise ModelError."""
        name, at, version = text.partition("@")
        if not at or not re.fullmatch(NAME_PATTERN, name) or not re.fullmatch(VERSION_PATTERN, version):
            raise ModelError(f"`{text}` is no version of a model: write NAME@VERSION, as in vedette-nano@8")
        return cls(name, version)


class Blob(ConfigModel):
    """Bytes that are moved together, named by their hash. stage: of the network; graph: what belongs to none."""

    stage: Stage
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0, le=FILE_BYTES_MAX)]


class BundleFile(ConfigModel):
    """A file of a bundle. pieces: (index of the blob, bytes) in the order of the file; each blob is read in order."""

    sha256: Sha256
    bytes: Annotated[int, Field(ge=0, le=FILE_BYTES_MAX)]
    blobs: Annotated[tuple[Blob, ...], Field(min_length=1)]
    pieces: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], ...]

    @model_validator(mode="after")
    def _pieces_are_the_blobs(self) -> BundleFile:
        used = [0] * len(self.blobs)
        for blob, count in self.pieces:
            if blob >= len(used):
                raise ValueError(f"a piece is of blob {blob}, there are {len(used)}")
            used[blob] += count
        if used != [each.bytes for each in self.blobs] or sum(used) != self.bytes:
            raise ValueError("its pieces do not add up to its blobs and its size")
        return self


def whole_file(data: bytes) -> BundleFile:
    """Describe a file that is moved as one blob."""
    sha256 = hashlib.sha256(data).hexdigest()
    blob = Blob(stage="whole", sha256=sha256, bytes=len(data))
    return BundleFile(sha256=sha256, bytes=len(data), blobs=(blob,), pieces=((0, len(data)),))


class MinimumAppliance(ConfigModel):
    """Needs of a bundle. memory_mb: free, while the network runs; 0: not measured."""

    version: str = ""  # of Vedette; "": any
    memory_mb: Annotated[int, Field(ge=0)] = 0


class BundleManifest(ConfigModel):
    """A bundle's description of itself; its bytes are what a publisher signs.

    entries: the model's files by the names that `detector.model` and `variants` use; the one called `name` is the
    model. files: everything in the folder but the manifest, by name. card: the file that tells a person what it was
    trained on and what it is good for. score_scale: `common` if `calibration` puts its scores on the scale of the
    default thresholds, else `own`. parent: `NAME@VERSION` of the bundle that it was trained from; "": none.
    """

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    version: Annotated[str, Field(pattern=VERSION_PATTERN)]
    entries: Annotated[dict[str, ModelEntry], Field(min_length=1)]
    files: dict[Annotated[str, Field(pattern=FILE_PATTERN)], BundleFile]
    card: str = ""
    minimum: MinimumAppliance = MinimumAppliance()
    score_scale: Literal["common", "own"] = "own"
    parent: str = ""

    @model_validator(mode="after")
    def _entries_have_their_files(self) -> BundleManifest:
        if self.name not in self.entries:
            raise ValueError(f"it has no entry `{self.name}`")
        if MANIFEST_FILE in self.files:
            raise ValueError(f"{MANIFEST_FILE} cannot be one of its files")
        for name, entry in self.entries.items():
            file = self.files.get(entry.file)
            if file is None or file.sha256 != entry.sha256:
                raise ValueError(f"{name}: {entry.file} is not among its files with that sha256")
        if self.card and self.card not in self.files:
            raise ValueError(f"its card {self.card} is not among its files")
        return self

    @property
    def ref(self) -> BundleRef:
        """Its name and version."""
        return BundleRef(self.name, self.version)

    @property
    def model(self) -> ModelEntry:
        """The entry that the bundle is named after."""
        return self.entries[self.name]

    @property
    def total_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(each.bytes for each in self.files.values())

    def to_bytes(self) -> bytes:
        """Write out manifest.json."""
        return (self.model_dump_json(exclude_defaults=True) + "\n").encode()


def version_order(version: str) -> list[tuple[int, str]]:
    """Return what versions are sorted by: numbers in them count as numbers."""
    return [(int(each), "") if each.isdigit() else (-1, each) for each in re.split(r"(\d+)", version) if each]


def check_minimum(manifest: BundleManifest, vedette: str) -> None:
    """Raise ModelError if this version of Vedette is older than the bundle needs. vedette: "": not known."""
    wanted = manifest.minimum.version
    if wanted and vedette and version_order(vedette) < version_order(wanted):
        raise ModelError(f"{manifest.ref} needs Vedette {wanted}, this is {vedette}: upgrade it first")


def parse_manifest(data: bytes, source: str) -> BundleManifest:
    """Read a manifest from the bytes of its file. Raise ModelError that names `source` and the first fault."""
    try:
        return BundleManifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ModelError(f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def read_manifest(folder: Path) -> BundleManifest:
    """Read the manifest of the bundle in `folder`; its files are not looked at. Raise ModelError."""
    path = folder / MANIFEST_FILE
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise unreadable_model(str(path), error) from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise ModelError(f"{path} has more than {MANIFEST_BYTES_MAX} bytes: it is no manifest")
    return parse_manifest(data, str(path))
