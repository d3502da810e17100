"""Installed bundles and the pointers to them: what may be put in force, and what is gone back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_store import BundleStore, InForce
from appliance.bundle.manifest import BundleManifest, BundleRef, ModelEntry, whole_file
from appliance.bundle.rollout import advance_rollout, begin_rollout


def bundle(version: str, data: bytes, name: str = "night") -> BundleManifest:
    file = whole_file(data)
    entry = ModelEntry(file="night.onnx", sha256=file.sha256, licence="Apache-2.0", labels=("person",), input=(64, 64))
    return BundleManifest(name=name, version=version, entries={name: entry}, files={"night.onnx": file})


def install(store: BundleStore, version: str, data: bytes = b"") -> BundleRef:
    data = data or version.encode()
    manifest = bundle(version, data)
    store.add(manifest, manifest.to_bytes(), lambda folder: (folder / "night.onnx").write_bytes(data) and None)
    return manifest.ref


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    ref = install(BundleStore(tmp_path), "1")
    assert BundleStore(tmp_path).check(ref) == bundle("1", b"1")
    assert BundleRef.parse(str(ref)) == ref
    for text in ("../../etc@1", f"{ref}\n"):
        with pytest.raises(ModelError, match="NAME@VERSION"):
            BundleRef.parse(text)


def test_the_way_back_is_the_last_one_that_was_proven(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    first, second, third = (install(store, each) for each in "123")
    store.put_in_force(first)
    store.put_in_force(second, state="probation")
    store.put_in_force(third, state="probation")
    assert store.in_force().of("gate") == InForce(third, first, "probation")
    assert store.roll_back() == InForce(first)
    store.put_in_force(second, state="probation")
    store.settle(proven=True)
    store.put_in_force(third, "gate", state="probation")
    assert store.in_force().of("gate") == InForce(third, second, "probation")
    store.quarantine(third, "hung while it was loaded")
    assert store.in_force().of("gate") == InForce(second, first)
    assert store.in_force().of("yard") == InForce(second, first)
    with pytest.raises(PreconditionError, match="hung while"):
        store.put_in_force(third)


def test_what_is_pinned_or_in_force_stays(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    first, second = install(store, "1"), install(store, "2")
    store.put_in_force(first)
    store.settle(pinned=True)
    with pytest.raises(PreconditionError, match="pinned"):
        store.put_in_force(second)
    with pytest.raises(PreconditionError, match="in force"):
        store.remove(first)
    store.remove(second)
    assert set(store.installed()) == {first}


def test_a_damaged_bundle_is_not_put_in_force_and_is_installed_again(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    ref = install(store, "1")
    (store.folder(ref) / "night.onnx").write_bytes(b"something else")
    with pytest.raises(ModelError, match="damaged"):
        store.put_in_force(ref)
    install(store, "1")
    store.put_in_force(ref)
    with pytest.raises(ModelError, match="never changes"):
        install(store, "1", b"another network under the same version")
    with pytest.raises(ModelError, match="not the file"):
        store.add(
            bundle("2", b"2"), bundle("2", b"2").to_bytes(), lambda to: (to / "night.onnx").write_bytes(b"3") and None
        )
    assert set(store.installed()) == {ref}


def test_a_camera_whose_own_network_left_follows_that_of_all_cameras_again(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    first, second, third, fourth = (install(store, each) for each in "1234")
    store.put_in_force(first)
    for camera, leave in (
        ("gate", lambda: store.quarantine(second, "it is blind")),
        ("yard", lambda: store.roll_back("yard")),
    ):
        store.put_in_force(second if camera == "gate" else third, camera, state="probation")
        leave()
        assert store.in_force().cameras == {}
    store.put_in_force(fourth)
    assert {camera: store.in_force().of(camera).bundle for camera in ("gate", "yard")} == {
        "gate": fourth,
        "yard": fourth,
    }  # type: ignore[union-attr]


def test_cameras_that_join_a_rollout_later_take_nobody_out_of_it(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    ref = install(store, "1")
    begin_rollout(store, ref, ["gate"])
    begin_rollout(store, ref, ["yard"])
    for camera in ("gate", "yard"):
        store.settle(camera, proven=True)
    assert "gate, yard" in advance_rollout(store)
    table = store.in_force()
    assert table.everywhere == InForce(ref, None, "probation")
    assert table.cameras == {}, "none keeps a pointer of its own, which the next version would not replace"
