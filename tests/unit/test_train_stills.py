"""Practice stills on their way into the training set."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.train import assemble, dataset, sources
from models.train.assemble import Fence
from models.train.dataset import CLASSES, IndexFault, Label, mirrored, phash


def picture(number: int) -> np.ndarray:
    rough = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(rough, (64, 48), interpolation=cv2.INTER_CUBIC), np.uint8)


def folder_of(path: Path, count: int = 2) -> Path:
    """A folder as the renderer writes it, with one person, one who is hidden, one too thin and a van on each still."""
    boxes = [
        ["person", 8, 12, 20, 36, 0.9],
        ["person", 30, 12, 42, 36, sources.SEEN_MIN - 0.01],
        ["person", 50, 12, 50 + sources.SIDE_MIN - 1, 36, 1.0],
        ["van", 40, 20, 64.2, 40, 0.5],
    ]
    (path / "images").mkdir(parents=True)
    lines = []
    for number in range(count):
        cv2.imwrite(str(path / "images" / f"1-{number}.jpg"), picture(number))
        row = {"image": f"images/1-{number}.jpg", "width": 64, "height": 48, "boxes": boxes, "light": "day", "seed": 1}
        lines.append(json.dumps(row))
    (path / sources.STILLS).write_text("\n".join(lines) + "\n")
    return path


def test_what_is_hidden_or_thin_is_ignored(tmp_path: Path) -> None:
    first, second = sources.stills(folder_of(tmp_path / "a"))
    assert first.path == tmp_path / "a" / "images" / "1-0.jpg"
    assert first.boxes == (
        Label(0, 8 / 64, 12 / 48, 20 / 64, 36 / 48),
        Label(CLASSES.index("car"), 40 / 64, 20 / 48, 1.0, 40 / 48),
    )
    assert [label.x1 for label in second.ignore] == [30 / 64, 50 / 64]


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        ("{", "line 3: not a still"),
        ('{"image": "a.jpg", "width": 9, "height": 9, "boxes": [["ghost", 1, 1, 8, 8, 1]]}', "line 3.*ghost"),
        ('{"image": "a.jpg", "width": 9, "height": 9, "boxes": [["person", 1, 1, 8]]}', "line 3: not a still"),
        ('{"image": "a.jpg", "width": 9, "height": 9, "boxes": 4}', "line 3.*not a list"),
    ],
)
def test_a_spoilt_line_is_named(tmp_path: Path, spoilt: str, fault: str) -> None:
    folder = folder_of(tmp_path / "a")
    with (folder / sources.STILLS).open("a") as file:
        file.write(spoilt + "\n")
    with pytest.raises(IndexFault, match=fault):
        list(sources.stills(folder))


def test_a_folder_without_stills_is_named(tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match=r"stills\.jsonl"):
        list(sources.stills(tmp_path))


def options(out: Path, *stills: Path) -> Namespace:
    """What the command line would be: nothing but stills."""
    return Namespace(
        data=out / "data", out=out, clips=[], every=6, unclear_licences=False, no_footage=True, stills=list(stills),
        photographs=[],
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output folder beside a data folder without photographs, whose fence forbids the look of picture 1."""
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    (train / "merged.jsonl").write_text("")
    (train / "sources.json").write_text("{}")
    guard = Fence(looks=np.array([phash(picture(1))], np.uint64), mirrored=np.array([mirrored(picture(1))], np.uint64))
    monkeypatch.setattr(assemble, "build_fence", lambda folder: guard)
    return tmp_path


def test_stills_enter_the_set_as_their_own_groups_past_the_fence(data: Path) -> None:
    one, two = folder_of(data / "a", 2), folder_of(data / "b", 3)
    assembly = assemble.assemble(options(data, one, two))
    entries = dataset.read(data)
    assert [entry.image for entry in entries] == ["images/practice/a-1-0.jpg", "images/practice/b-1-2.jpg"]
    assert assembly.counts["practice: twice"] == 1  # b's first is a's first
    assert assembly.counts["practice: looks like an evaluation picture"] == 2
    assert {(entry.source, entry.licence) for entry in entries} == {("practice", "Apache-2.0")}
    assert [entry.group for entry in entries] == ["practice/a-1-0", "practice/b-1-2"]
    assert (data / entries[0].image).read_bytes() == (one / "images" / "1-0.jpg").read_bytes()
    assert (entries[0].width, entries[0].height) == (64, 48)


def test_photographs_that_would_overwrite_each_other_are_refused_and_an_empty_file_is_counted(data: Path) -> None:
    folders = [data / "data" / "train", data / "more"]
    for number, folder in enumerate(folders, 2):
        (folder / "images").mkdir(parents=True)
        cv2.imwrite(str(folder / "images" / "1.jpg"), picture(number))
        (folder / "images" / "0.jpg").touch()
        rows = [{"image": f"images/{name}.jpg", "source": "yard", "boxes": [], "ignore": []} for name in (0, 1)]
        (folder / "merged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "sources.json").write_text(json.dumps({"yard": {"use": "good", "licence": "CC0"}}))
    asked = options(data)
    assert assemble.assemble(asked).counts == {"yard: not a picture": 1, "yard: train": 1}
    asked.photographs = folders[1:]
    with pytest.raises(IndexFault, match=r"images/yard/1\.jpg: two pictures have this name"):
        assemble.assemble(asked)


def test_two_folders_of_one_name_are_refused(data: Path) -> None:
    with pytest.raises(IndexFault, match="two folders are named a"):
        assemble.assemble(options(data, folder_of(data / "x" / "a"), folder_of(data / "y" / "a")))
