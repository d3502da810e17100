"""From what a site file calls a model to a file that may be trusted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from appliance.base.errors import ModelError
from appliance.detect import model_files

CONTENT = b"weights"
ENTRY = """
[{name}]
file = "{name}.onnx"
url = "https://example.org/{name}.onnx"
sha256 = "{sha256}"
licence = "Apache-2.0"
labels = ["person", "forklift"]
head = "yolox"
input = [416, 416]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "models.toml").write_text(ENTRY.format(name="yard", sha256=hashlib.sha256(CONTENT).hexdigest()))
    (tmp_path / "yard.onnx").write_bytes(CONTENT)
    return tmp_path


def test_a_bundle_brings_its_labels_and_head(place: Path) -> None:
    assert model_files.find_model("yard", (place,)) == model_files.ModelFile(
        place / "yard.onnx", ("person", "forklift"), "yolox"
    )


def test_a_path_to_a_known_file_is_recognised_by_its_content(place: Path) -> None:
    renamed = place / "other.onnx"
    renamed.write_bytes(CONTENT)
    assert model_files.find_model(str(renamed), (place,)) == model_files.ModelFile(
        renamed, ("person", "forklift"), "yolox"
    )


def test_a_bare_file_name_is_looked_for_where_models_lie(place: Path) -> None:
    (place / "mine.onnx").write_bytes(b"unknown")
    assert model_files.find_model("mine.onnx", (place,)) == model_files.ModelFile(place / "mine.onnx")


def test_an_absent_file_comes_with_the_folders_tried_and_the_command(place: Path) -> None:
    (place / "yard.onnx").unlink()
    with pytest.raises(ModelError) as caught:
        model_files.find_model("yard", (place,))
    message = str(caught.value)
    assert f"looked in {place}" in message
    assert f"curl -fL --create-dirs -o {place}/yard.onnx https://example.org/yard.onnx" in message


def test_what_comes_with_vedette_is_not_fetched(place: Path) -> None:
    manifest = place / "models.toml"
    manifest.write_text("\n".join(line for line in manifest.read_text().splitlines() if not line.startswith("url")))
    (place / "yard.onnx").write_bytes(b"other weights")
    with pytest.raises(ModelError, match=r"sha256 differs\); it comes with Vedette: install it again"):
        model_files.find_model("yard", (place,))


def test_a_changed_file_is_not_loaded(place: Path) -> None:
    (place / "yard.onnx").write_bytes(b"other weights")
    with pytest.raises(ModelError, match="sha256 differs"):
        model_files.find_model("yard", (place,))


def test_an_unknown_name_is_answered_with_the_known_ones(place: Path) -> None:
    with pytest.raises(ModelError, match=r"no model `yrad`.*auto, builtin:hog, yard"):
        model_files.find_model("yrad", (place,))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[yard", "cannot be read"),
        ('[yard]\nfile = "../../etc/x.onnx"', "yard|file"),
        ('[a]\nurl = "ftp://x"', "file|url"),
    ],
)
def test_a_broken_manifest_is_named(place: Path, text: str, problem: str) -> None:
    (place / "models.toml").write_text(text)
    with pytest.raises(ModelError, match=rf"models\.toml.*({problem})"):
        model_files.find_model("yard", (place,))


def test_the_named_folder_comes_first(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEDETTE_MODELS", str(place))
    monkeypatch.chdir(tmp_path)
    found = model_files.model_folders()
    assert found[:2] == (place.resolve(), (tmp_path / "models").resolve())
    assert (found[2] / "models.toml").is_file()


def test_a_user_without_a_home_finds_what_comes_with_vedette(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("VEDETTE_MODELS", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert model_files.find_model("vedette-nano").path.is_file()
    assert model_files.pull_folder() == Path("models").resolve()


def test_every_bundle_of_the_repository_is_complete() -> None:
    with pytest.raises(
        ModelError,
        match="auto, builtin:hog, deimv2-atto, deimv2-femto, fastestdet, nanodet-m, picodet-s, "
        "vedette-nano, vedette-nano-bf16, vedette-nano-int8, yolox",
    ):
        model_files.find_model("nothing", (Path(__file__).parents[2] / "models",))


def test_a_folder_here_does_not_redefine_what_comes_with_vedette(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """./models/models.toml had made another file, with its own sha256, the default network."""
    here = tmp_path / "models"
    here.mkdir()
    (here / "vedette-nano.onnx").write_bytes(b"another network")
    sha256 = hashlib.sha256(b"another network").hexdigest()
    (here / "models.toml").write_text(
        '[vedette-nano]\nfile = "vedette-nano.onnx"\n'
        f'sha256 = "{sha256}"\nlicence = "x"\nlabels = ["person"]\ninput = [416, 416]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VEDETTE_MODELS", raising=False)
    found = model_files.find_model("vedette-nano")
    assert found.path.parent != here
    assert "which comes with Vedette: give that network another name" in caplog.text
    (here / "models.toml").unlink()
    assert model_files.find_model("vedette-nano").path.parent != here, "the file that is as promised counts"


def test_a_working_folder_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path("models").resolve()
    assert here in model_files.model_folders()
    monkeypatch.setattr(model_files.os, "access", lambda path, mode: path != ".")
    assert here not in model_files.model_folders()
    assert model_files.model_folders()
