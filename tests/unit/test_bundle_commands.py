"""`vedette models`: a network is exported, signed, installed, put in force, taken back, and what is unused removed."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from appliance.__main__ import main
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ModelError, PreconditionError, UsageError
from appliance.bundle.bundle_store import InForce
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest, BundleRef, ModelEntry, sha256_of
from appliance.bundle.rollout import shadow_of
from appliance.detect import detector_loader, model_files
from appliance.detect.bundle_maker import adopt_network, describe_file, describe_network, install_files
from appliance.detect.model_download import ModelDownload, model_status
from appliance.detect.model_files import OWN_MODEL, bundle_store, find_model
from appliance.sensors.linux_sensors import MemoryReading, MemorySensor

NANO = Path(__file__).parents[2] / "models" / "vedette-nano.onnx"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def vedette(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["models", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def retrained(version: str) -> tuple[BundleManifest, dict[str, bytes]]:
    """The network with every weight of its head changed, as fine-tuning does."""
    network = onnx.load(NANO)
    for tensor in network.graph.initializer:
        if ".branches." in tensor.name:
            tensor.raw_data = bytes(255 - each for each in tensor.raw_data)
    manifest, files = describe_network(OWN_MODEL, version)
    files = {NANO.name: network.SerializeToString(), "card.md": files["card.md"]}
    described = {name: describe_file(name, data) for name, data in files.items()}
    entry = manifest.model.model_copy(update={"sha256": described[NANO.name].sha256, "variants": {}})
    return manifest.model_copy(update={"entries": {OWN_MODEL: entry}, "files": described}), files


def test_a_bundle_goes_from_one_appliance_to_another_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signing = ("--repository", "signed", "--keys", "keys")
    vedette(capsys, "export", OWN_MODEL, "nano-8", "--version", "8")
    assert set(vedette(capsys, "publish", "nano-8", "--new", *signing)) == {"root", "vedette-nano@8"}

    first = vedette(capsys, "install", OWN_MODEL, "--from", "signed", "--root", "signed/metadata/1.root.json", "--use")
    assert first["bytes_fetched"] == first["bytes"] > NANO.stat().st_size
    assert find_model(OWN_MODEL).path == bundle_store().folder(BundleRef(OWN_MODEL, "8")) / NANO.name
    assert find_model(OWN_MODEL, precision="int8").path.parent == find_model("vedette-nano@8").path.parent

    assert bundle_store().settle(proven=True).bundle == BundleRef(OWN_MODEL, "8")

    manifest, files = retrained("9")
    (folder / "nano-9").mkdir()
    for name, data in {**files, MANIFEST_FILE: manifest.to_bytes()}.items():
        (folder / "nano-9" / name).write_bytes(data)
    vedette(capsys, "publish", "nano-9", *signing)

    second = vedette(capsys, "install", OWN_MODEL, "--use")  # the newest, from whom it trusts since then
    assert (second["bundle"], second["in_force"]["before"]) == ("vedette-nano@9", "vedette-nano@8")
    assert second["bytes_fetched"] <= 0.1 * second["bytes"]
    assert sha256_of(find_model(OWN_MODEL).path) == manifest.model.sha256

    assert main(["models", "list"]) == 0
    assert "in force for all cameras, probation" in capsys.readouterr().out
    vedette(capsys, "pin")
    with pytest.raises(PreconditionError, match="pinned"):
        bundle_store().put_in_force(BundleRef(OWN_MODEL, "8"))
    vedette(capsys, "pin", "--off")
    assert vedette(capsys, "rollback")["bundle"] == "vedette-nano@8"
    assert vedette(capsys, "prune")["removed"] == ["vedette-nano@9"]
    assert main(["models", "rollback"]) == 0
    assert "what comes with Vedette" in capsys.readouterr().out
    assert main(["models", "rollback"]) == 2
    assert find_model(OWN_MODEL).path == NANO


def test_what_comes_with_vedette_stands_in_for_a_damaged_bundle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manifest, files = retrained("9")
    install_files(bundle_store(), manifest, files)
    ref = bundle_store().put_in_force(manifest.ref).bundle
    file = bundle_store().folder(ref) / NANO.name
    assert find_model(OWN_MODEL).path == file
    file.write_bytes(b"a bad block of the card")
    assert find_model(OWN_MODEL).path == NANO
    assert "stands in" in caplog.text
    with pytest.raises(ModelError, match="differs"):
        find_model(str(ref))
    (bundle_store().root / "in_force.json").write_text("half of a fi")
    assert find_model(OWN_MODEL).path == NANO


def test_vedette_nano_stands_in_for_a_damaged_bundle_of_another_name_that_auto_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own, files = retrained("3")
    manifest = own.model_copy(update={"name": "night", "entries": {"night": own.entries[OWN_MODEL]}})
    install_files(bundle_store(), manifest, files)
    bundle_store().put_in_force(manifest.ref)
    file = bundle_store().folder(manifest.ref) / NANO.name
    located = detector_loader.locate(DetectorConfig())
    assert located is not None
    assert located.path == file
    file.write_bytes(b"a bad block of the card")
    located = detector_loader.locate(DetectorConfig())
    assert located is not None
    assert located.path == NANO
    assert "the vedette-nano that comes with Vedette stands in for the bundle in force" in caplog.text
    with pytest.raises(ModelError, match=r"vedette models install night@3\), or go back \(vedette models rollback"):
        detector_loader.locate(DetectorConfig(model="night"))


def test_what_an_older_version_reads_is_not_touched_by_what_is_kept(folder: Path) -> None:
    """An older Vedette knows models.toml and the files beside it: both are as they were, and it looks at no bundle."""
    (folder / "models").mkdir()
    (folder / "models" / NANO.name).write_bytes(NANO.read_bytes())
    before = {path.name: path.read_bytes() for path in (folder / "models").iterdir()}
    ref = adopt_network(OWN_MODEL)
    assert ref is not None
    assert adopt_network("auto") is None, "it is kept already"
    assert bundle_store().check(ref).model.labels == model_files.model_bundles()[OWN_MODEL].labels
    assert {path.name: path.read_bytes() for path in (folder / "models").iterdir() if path.is_file()} == before
    assert bundle_store().in_force().of() is None


def test_a_file_whose_hash_nobody_could_check_is_not_pulled(folder: Path) -> None:
    entry = ModelEntry(
        file="x.onnx", licence="MIT", labels=("person",), input=(64, 64), url="https://example.org/x.onnx"
    )
    assert model_status("x", entry, (folder,), folder).state == "hash missing"
    with pytest.raises(ModelError, match="hash missing"):
        ModelDownload(folder).pull(entry)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["install", "night"], "--root root.json"),
        (["install", "night", "--from", "nowhere", "--root", "root.json"], "there is no folder nowhere"),
        (["install", "night", "--camera", "gate"], "--use"),
        (["pin"], "has no bundle of its own"),
        (["export", "night", "out"], "is not here"),
        (["publish", "--repository", "signed", "--keys", "keys"], "--new"),
    ],
)
def test_errors_say_what_to_do(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_new_camera_pointer_counts_for_it_alone() -> None:
    ref = adopt_network("auto")
    assert ref is not None
    bundle_store().put_in_force(ref, "gate", state="probation")
    assert bundle_store().in_force().of("gate") == InForce(ref, None, "probation")
    assert bundle_store().in_force().of("yard") is None
    with pytest.raises(UsageError):
        bundle_store().roll_back()


def test_a_shadow_says_its_cost_before_it_begins_and_is_refused_without_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, files = retrained("31")
    install_files(bundle_store(), manifest, files)
    monkeypatch.setattr(MemorySensor, "read", lambda self: MemoryReading(available_bytes=90_000_000))
    assert main(["models", "shadow", "vedette-nano@31"]) == 2
    said = capsys.readouterr().err
    assert "90 MB are left" in said
    assert "raise the memory" in said
    assert shadow_of(bundle_store()) is None
    monkeypatch.setattr(MemorySensor, "read", lambda self: MemoryReading(available_bytes=400_000_000))
    found = vedette(capsys, "shadow", "vedette-nano@31")
    assert 40e6 < found["memory_bytes"] < 80e6
    assert shadow_of(bundle_store()) == manifest.ref
    vedette(capsys, "prune")
    assert manifest.ref in bundle_store().installed(), "it is at work"
    vedette(capsys, "shadow", "--off")
    assert shadow_of(bundle_store()) is None
    bundle_store().put_in_force(manifest.ref)
    assert main(["models", "shadow", "vedette-nano@31"]) == 2
    assert "is in force" in capsys.readouterr().err


def test_what_the_site_file_names_is_not_pruned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs = [describe_network(OWN_MODEL, version) for version in ("1", "2", "3")]
    for manifest, files in refs:
        install_files(bundle_store(), manifest, files)
    text = "detector: {model: vedette-nano@1}\ncameras: {gate: {url: 'rtsp://h/1', model: vedette-nano@2}}\n"
    (folder / "other.yaml").write_text(text)
    found = vedette(capsys, "prune", "--config", "other.yaml")
    assert found["removed"] == ["vedette-nano@3"]
    (folder / "site.yaml").write_text(text.replace("@1", "@2"))
    assert vedette(capsys, "prune")["removed"] == ["vedette-nano@1"], "the site file here is read without a word"


def test_the_network_of_the_second_look_is_not_pruned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in ("1", "2"):
        install_files(bundle_store(), *describe_network(OWN_MODEL, version))
    text = "second_look: {model: vedette-nano@1}\ncameras: {gate: {url: 'rtsp://h/1'}}\n"
    (folder / "site.yaml").write_text(text)
    assert vedette(capsys, "prune")["removed"] == ["vedette-nano@2"]


def test_a_folder_of_bundles_is_found_again_from_another_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vedette(capsys, "export", OWN_MODEL, "nano-8", "--version", "8")
    vedette(capsys, "publish", "nano-8", "--new", "--repository", "signed", "--keys", "keys")
    vedette(capsys, "install", OWN_MODEL, "--from", "signed", "--root", "signed/metadata/1.root.json")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert vedette(capsys, "install", OWN_MODEL)["bundle"] == "vedette-nano@8"


def test_a_camera_that_is_not_in_the_site_file_gets_no_network(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, files = describe_network(OWN_MODEL, "1")
    install_files(bundle_store(), manifest, files)
    (folder / "other.yaml").write_text("cameras: {gate: {url: 'rtsp://h/1'}}\n")
    named = ("--camera", "gaet", "--config", "other.yaml")
    for words in (["rollout", "vedette-nano@1", *named], ["install", "vedette-nano@1", "--use", *named]):
        assert main(["models", *words]) == 2
        assert "there is no camera `gaet` in the site file (there is: gate)" in capsys.readouterr().err
    assert bundle_store().in_force().cameras == {}
    vedette(capsys, "rollout", "vedette-nano@1", "--camera", "gate", "--config", "other.yaml")
    assert list(bundle_store().in_force().cameras) == ["gate"]
