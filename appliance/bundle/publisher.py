"""Publishes bundles: makes keys, signs a repository in a folder, and fills a registry from it.

The keys are Ed25519, one PEM file each in a folder of the publisher's: three of `root`, two of which sign (they belong
off this machine when nothing is signed with them), and one each of `targets`, `snapshot` and `timestamp`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_fetch import cut
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest
from appliance.bundle.repositories import MANIFEST_TYPE, METADATA_TAG, TIMEOUT_S, TITLE, OciRepository

ROLES = (Root.type, Targets.type, Snapshot.type, Timestamp.type)
ROOT_KEYS, ROOT_THRESHOLD = 3, 2  # one key may be lost, and one stolen key signs nothing
EXPIRES_D = {Root.type: 730, Targets.type: 365, Snapshot.type: 90, Timestamp.type: 30}
"""Days. The timestamp's is for how long an appliance may be shown an old state without noticing; sign it monthly."""
_EMPTY = b"{}"


class Publisher:
    """Owns the folder of a repository, and signs with the keys of another folder."""

    def __init__(self, repository: Path, keys: Path, clock: Clock | None = None) -> None:
        self._metadata = repository / "metadata"
        self._repository = repository
        self._keys = keys
        self._clock = clock or SystemClock()

    def create(self) -> Path:
        """Make new keys and an empty repository; return its root.json. Raise PreconditionError: there is one."""
        if self._metadata.is_dir() or any(self._keys.glob("*.pem")):
            raise PreconditionError(f"{self._metadata} or {self._keys} has something in it: nothing is written over")
        self._metadata.mkdir(parents=True)
        self._keys.mkdir(parents=True, exist_ok=True)
        root = Root(expires=self._expires(Root.type), consistent_snapshot=True)
        for role in ROLES:
            for number in range(ROOT_KEYS if role == Root.type else 1):
                root.add_key(self._new_key(role, number).public_key, role)
        root.roles[Root.type].threshold = ROOT_THRESHOLD
        self._write(Metadata(root), self._signers(root, Root.type))
        self._sign_all(Targets(expires=self._expires(Targets.type)))
        return self._metadata / "1.root.json"

    def publish(self, manifest: BundleManifest, data: bytes, files: Mapping[str, bytes]) -> int:
        """Sign a bundle and put it into the repository. Return the bytes of blobs that were not in it before.

        data: the bytes of the manifest. files: what it lists, by name. Raise ModelError: a version that is there with
        another content, or files that are not what the manifest says.
        """
        target = f"{manifest.name}/{manifest.version}/{MANIFEST_FILE}"
        known = self._targets().targets.get(target)
        info = TargetFile.from_data(target, data)
        if known is not None and known.hashes != info.hashes:
            raise ModelError(f"{manifest.ref} is published with another content: give it another version")
        new_bytes = 0
        for name, file in manifest.files.items():
            if hashlib.sha256(files[name]).hexdigest() != file.sha256:
                raise ModelError(f"{name} is not the file that the manifest of {manifest.ref} describes")
            for sha256, blob in cut(file, files[name]).items():
                path = self._repository / "blobs" / "sha256" / sha256
                if not path.is_file() or path.read_bytes() != blob:  # a kill left a part of it
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(blob)
                    new_bytes += len(blob)
        path = self._repository / "targets" / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        targets = self._targets()
        targets.targets[target] = info
        self._sign_all(targets)
        return new_bytes

    def refresh(self) -> None:
        """Sign the same state anew, before its signatures expire."""
        self._sign_all(self._targets())

    def rotate(self, role: str) -> None:
        """Replace a key of `role` by a new one; a new root says so, signed by the old keys and the new.

        The first key whose file is not here goes, as a lost one; if all are here, the first.
        """
        root = Metadata[Root].from_file(str(self._newest(Root.type)))
        old = self._signers(root.signed, Root.type)
        paths = {signer.public_key.keyid: path for path, signer in self._all_signers().items()}
        known = root.signed.roles[role].keyids
        leaving = next((each for each in known if each not in paths), known[0])
        root.signed.revoke_key(leaving, role)
        root.signed.add_key(self._new_key(role, root.signed.version + ROOT_KEYS).public_key, role)
        root.signed.version += 1
        root.signed.expires = self._expires(Root.type)
        new = self._signers(root.signed, Root.type)
        known_ids = {each.public_key.keyid for each in old}
        self._write(root, [*old, *(each for each in new if each.public_key.keyid not in known_ids)])
        if leaving in paths:
            paths[leaving].rename(paths[leaving].with_suffix(".old"))  # after a kill before here it still signs
        self._sign_all(self._targets())

    def _sign_all(self, targets: Targets) -> None:
        """Sign targets, snapshot and timestamp, in this order: whoever reads in between sees the old state."""
        root = Metadata[Root].from_file(str(self._newest(Root.type))).signed
        there = self._metadata / "timestamp.json"
        version = Metadata[Timestamp].from_file(str(there)).signed.version + 1 if there.is_file() else 1
        targets.version, targets.expires = version, self._expires(Targets.type)
        snapshot = Snapshot(version, expires=self._expires(Snapshot.type))
        timestamp = Timestamp(version, expires=self._expires(Timestamp.type))
        snapshot.meta = {"targets.json": self._write(Metadata(targets), self._signers(root, Targets.type))}
        timestamp.snapshot_meta = self._write(Metadata(snapshot), self._signers(root, Snapshot.type))
        self._write(Metadata(timestamp), self._signers(root, Timestamp.type))

    def _targets(self) -> Targets:
        return Metadata[Targets].from_file(str(self._newest(Targets.type))).signed

    def _newest(self, role: str) -> Path:
        found = {int(path.name.partition(".")[0]): path for path in self._metadata.glob(f"*.{role}.json")}
        if not found:
            raise PreconditionError(f"{self._repository} is no repository of models: vedette models publish --new")
        return found[max(found)]

    def _write(self, metadata: Metadata[Any], signers: Iterable[CryptoSigner]) -> MetaFile:
        """Sign and write a role's file; return what the next role says of it."""
        role, version = metadata.signed.type, metadata.signed.version
        metadata.signatures.clear()
        for signer in signers:
            metadata.sign(signer, append=True)
        name = f"{role}.json" if role == Timestamp.type else f"{version}.{role}.json"
        part = self._metadata / f".{name}.part"
        data = metadata.to_bytes()
        part.write_bytes(data)
        part.replace(self._metadata / name)
        return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})

    def _signers(self, root: Root, role: str) -> list[CryptoSigner]:
        wanted = root.roles[role]
        found = [each for each in self._all_signers().values() if each.public_key.keyid in wanted.keyids]
        if len(found) < wanted.threshold:
            raise PreconditionError(
                f"{self._keys} has {len(found)} of the {wanted.threshold} keys that sign `{role}`: put them there"
            )
        return found

    def _all_signers(self) -> dict[Path, CryptoSigner]:
        return {path: _load(path) for path in sorted(self._keys.glob("*.pem"))}

    def _new_key(self, role: str, number: int) -> CryptoSigner:
        signer = CryptoSigner.generate_ed25519()
        path = self._keys / f"{role}-{number}.pem"
        path.touch(mode=0o600)
        path.write_bytes(signer.private_bytes)
        return signer

    def _expires(self, role: str) -> datetime:
        begin = datetime.fromtimestamp(int(self._clock.now()), timezone.utc)
        return begin + timedelta(days=EXPIRES_D[role])


def push(repository: Path, registry: OciRepository) -> int:
    """Copy a signed repository into a registry; return the bytes sent. Blobs that it has are not sent again.

    A manifest goes before the metadata that name it, so that a reader in between sees the old state whole.
    """
    import httpx

    sent = 0
    with httpx.Client(timeout=TIMEOUT_S) as client:
        for path in sorted((repository / "targets").rglob("*.json")):
            layers = {path.name: path.read_bytes()}
            manifest = json.loads(layers[path.name]) if path.name == MANIFEST_FILE else {}
            for file in manifest.get("files", {}).values():
                for blob in file["blobs"]:
                    layers[blob["sha256"]] = (repository / "blobs" / "sha256" / blob["sha256"]).read_bytes()
            tag = "-".join(path.relative_to(repository / "targets").parent.parts)
            sent += _push_artifact(client, registry, tag, layers)
        metadata = {path.name: path.read_bytes() for path in sorted((repository / "metadata").glob("*.json"))}
        sent += _push_artifact(client, registry, METADATA_TAG, metadata)
    return sent


def _push_artifact(client: Any, registry: OciRepository, tag: str, layers: Mapping[str, bytes]) -> int:
    sent, listed = 0, []
    for data in (_EMPTY, *layers.values()):
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if client.head(f"{registry.base}/blobs/{digest}").status_code != 200:
            begun = _accepted(client.post(f"{registry.base}/blobs/uploads/"), registry)
            where = begun.url.join(begun.headers["Location"]).copy_merge_params({"digest": digest})
            _accepted(client.put(where, content=data, headers={"Content-Type": "application/octet-stream"}), registry)
            sent += len(data)
    for title, data in layers.items():
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        kind = "application/vnd.vedette.model.v1"
        listed.append({"mediaType": kind, "digest": digest, "size": len(data), "annotations": {TITLE: title}})
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": "application/vnd.vedette.model.v1",
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json", "size": len(_EMPTY),
            "digest": f"sha256:{hashlib.sha256(_EMPTY).hexdigest()}",
        },
        "layers": listed,
    }  # fmt: skip
    put = client.put(
        f"{registry.base}/manifests/{tag}", content=json.dumps(manifest), headers={"Content-Type": MANIFEST_TYPE}
    )
    _accepted(put, registry)
    return sent


def _accepted(answer: Any, registry: OciRepository) -> Any:
    if answer.status_code not in (200, 201, 202):
        raise ModelError(f"{registry.address}: the registry answered {answer.status_code}: push with the oras program")
    return answer


def _load(path: Path) -> CryptoSigner:
    try:
        return CryptoSigner(load_pem_private_key(path.read_bytes(), None))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is no private key without a password: {error}") from None
