"""A publisher of small bundles, and an appliance that trusts it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from appliance.base.clock import Clock, ManualClock
from appliance.bundle.bundle_fetch import BundleFetch
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import Blob, BundleFile, BundleManifest, BundleRef, ModelEntry, whole_file
from appliance.bundle.publisher import Publisher
from appliance.bundle.repositories import Repository
from appliance.bundle.trust import TrustedRepository, trust_folder

NAME = "night"


def weights(seed: int, count: int = 3000) -> bytes:
    return random.Random(seed).randbytes(count)


def bundle(version: str, backbone: bytes, head: bytes) -> tuple[BundleManifest, bytes]:
    """A bundle of one file, head and backbone interleaved, and that file."""
    half = len(backbone) // 2
    data = backbone[:half] + head + backbone[half:]
    parts = (("backbone", backbone), ("head", head))
    blobs = tuple(Blob(stage=stage, **whole_file(part).blobs[0].model_dump(exclude={"stage"})) for stage, part in parts)
    file = BundleFile(
        sha256=whole_file(data).sha256, bytes=len(data), blobs=blobs,
        pieces=((0, half), (1, len(head)), (0, len(backbone) - half)),
    )  # fmt: skip
    entry = ModelEntry(file="night.onnx", sha256=file.sha256, licence="MIT", labels=("person",), input=(64, 64))
    return BundleManifest(name=NAME, version=version, entries={NAME: entry}, files={"night.onnx": file}), data


@dataclass
class ModelPublisher:
    """Publishes versions of one model into a folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.signer = Publisher(self.folder / "repository", self.folder / "keys")
        if not (self.folder / "keys").is_dir():
            self.signer.create()

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def publish(self, version: str, head: int = 0, backbone: int = 0, backbone_bytes: int = 3000) -> int:
        manifest, data = bundle(version, weights(backbone, backbone_bytes), weights(1000 + head, 200))
        return self.signer.publish(manifest, manifest.to_bytes(), {"night.onnx": data})


@dataclass
class TrustingSite:
    """An appliance's folder of bundles."""

    folder: Path

    @property
    def store(self) -> BundleStore:
        return BundleStore(self.folder)

    def trust(self, publisher: ModelPublisher, address: str = "") -> None:
        root = (publisher.repository / "metadata" / "1.root.json").read_bytes()
        TrustedRepository.trust(trust_folder(self.folder), root, address or str(publisher.repository))

    def install(self, version: str, repository: Repository | None = None, clock: Clock | None = None) -> BundleRef:
        ref = BundleRef(NAME, version)
        trusted = TrustedRepository(trust_folder(self.folder), repository, clock)
        genuine = trusted.genuine(ref)
        BundleFetch(self.store, trusted.repository, clock=ManualClock()).install(genuine)
        return ref
