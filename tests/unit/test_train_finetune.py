"""Fine-tuning on a site's answers: what was rejected goes, only the head changes, and sets stay in their folder."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from appliance.bundle.manifest import read_manifest
from appliance.detect.bundle_maker import describe_file, install_files
from appliance.detect.model_files import accurate_precisions, bundle_store

pytest.importorskip("torch", reason="training needs PyTorch: pip install '.[train]'")

from models.train import dataset, finetune, sources
from models.train.dataset import Entry, IndexFault, Label
from models.train.finetune import CLIPS, OWN, OWN_INT8, Start, TrainingPicture


def pictures(name: str, every: int) -> list[TrainingPicture]:
    """Frames of a rendered clip with people that are seen well."""
    found = sources.rendered_pictures(CLIPS / "clips" / f"{name}.mp4", every)
    return [
        TrainingPicture(pixels, tuple(box for box in boxes if box.cls == 0 and box.y2 - box.y1 > 0.2))
        for _, pixels, boxes, _ in found
    ]


def weights(path: Path) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}


@pytest.fixture(scope="module")
def start() -> Start:
    return Start(OWN)


@pytest.fixture(scope="module")
def written(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The network that was told that nobody in the yard is a person."""
    right = [each for each in pictures("yard", 60) if each.right]
    wrong = [TrainingPicture(each.pixels, rejected=each.right) for each in right]
    heads = finetune.fine_tune(start, wrong, pictures("gate", 90), epochs=30, seed=0)
    before, after = (finetune.answers(start, each, wrong) for each in (start.heads, heads))
    assert before.still_reported >= 0.8 * before.rejected > 3
    assert after.still_reported <= 0.2 * before.still_reported
    return finetune.save(start, heads, tmp_path_factory.mktemp("out") / "vedette-nano.onnx", OWN_INT8)


def test_nothing_but_the_head_changes_and_only_its_blobs_are_moved(written: list[Path], tmp_path: Path) -> None:
    for old, new in zip((OWN, OWN_INT8), written, strict=True):
        before, after = weights(old), weights(new)
        changed = {name for name in before if not np.array_equal(before[name], after[name])}
        assert changed
        assert before.keys() == after.keys()
        assert all(name.startswith("network.branches.") for name in changed)
    described = [describe_file(path.name, path.read_bytes()) for path in (OWN, written[0])]
    parts = [{blob.stage: blob for blob in each.blobs} for each in described]
    moved = {stage for stage in parts[0] if parts[0][stage].sha256 != parts[1][stage].sha256}
    assert moved == {"head"}
    finetune.write_bundle(written, tmp_path / "bundle", pictures=9)
    assert read_manifest(tmp_path / "bundle").model.variants == {"int8": "vedette-nano-int8"}
    with pytest.raises(IndexFault, match="not empty"):
        finetune.write_bundle(written, tmp_path / "bundle", pictures=9)
    assert parts[1]["head"].bytes <= 0.1 * written[0].stat().st_size


def test_the_integers_answer_as_the_floats_do(start: Start, written: list[Path]) -> None:
    lesson = next(each for each in pictures("gate", 30) if each.right)
    floats, integers = (scores_of(path, start, lesson) for path in written)
    assert np.abs(floats - integers).max() < 0.15
    assert scores_of(OWN, start, lesson).max() > 0.5


def test_the_integers_stand_in_where_they_are_measured_to_be_as_accurate(
    written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path))
    figures = finetune.measured(OWN, written, [*pictures("gate", 60), *pictures("yard", 90)])
    assert figures[0] == pytest.approx(figures[1], abs=0.01)
    assert finetune.measured(OWN, [OWN], pictures("gate", 60)) == [1.0]
    assert finetune.measured(OWN, [OWN], [TrainingPicture(np.zeros((64, 64, 3), np.uint8))]) == []
    for measured, runs in ((figures, ("fp32", "int8")), ([0.9, 0.88], ("fp32",)), ([], ("fp32",))):
        folder = tmp_path / f"bundle-{measured}"
        manifest = finetune.write_bundle(written, folder, 9, measured)
        install_files(bundle_store(), manifest, {name: (folder / name).read_bytes() for name in manifest.files})
        assert accurate_precisions(str(manifest.ref)) == runs
        bundle_store().remove(manifest.ref)


def scores_of(path: Path, start: Start, lesson: TrainingPicture) -> np.ndarray:
    """Scores (classes, cells) of a file for a picture."""
    laid = start.box.lay(lesson.pixels)[:, :, ::-1].transpose(2, 0, 1)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {"images": np.ascontiguousarray(laid, np.float32)[None] / 255}
    return np.asarray(session.run(None, feed)[0])[0, 4:]


def test_a_mirrored_picture_has_its_boxes_where_the_objects_are() -> None:
    lesson = TrainingPicture(np.zeros((4, 8, 3), np.uint8), right=(Label(0, 0.1, 0.2, 0.3, 0.4),))
    assert dataclasses.astuple(lesson.mirrored().right[0])[1:5] == pytest.approx((0.7, 0.2, 0.9, 0.4))


def test_a_set_that_names_a_picture_elsewhere_or_another_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    cv2.imwrite(str(tmp_path / "secret.png"), np.zeros((8, 8, 3), np.uint8))
    digest = hashlib.sha256((tmp_path / "secret.png").read_bytes()).hexdigest()
    entry = Entry("../secret.png", digest, "", 8, 8, (), (), "site", "train", rejected=(Label(0, 0.1, 0.1, 0.5, 0.5),))
    dataset.write(folder, [entry])
    assert dataset.read(folder) == [entry]
    with pytest.raises(IndexFault, match="which is outside"):
        finetune.site_lessons(folder, "train")
    (folder / "a.png").write_bytes((tmp_path / "secret.png").read_bytes())
    dataset.write(folder, [dataclasses.replace(entry, image="a.png", sha256="0" * 64)])
    with pytest.raises(IndexFault, match="not the picture of the index"):
        finetune.site_lessons(folder, "train")


def test_another_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match=r"none\.onnx: cannot be read as ONNX"):
        Start(tmp_path / "none.onnx")
    other = tmp_path / "other.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), str(other))
    with pytest.raises(IndexFault, match="not one of our networks"):
        Start(other)
