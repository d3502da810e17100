"""Pictures out of public repositories, and what several teachers make of them."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.train import assemble, gather, sources
from models.train.assemble import Fence
from models.train.dataset import IndexFault, Label, as_hex, mirrored, phash
from models.train.gather import Gathering, Public, labels_path, yolo
from models.train.pseudo_labels import Opinion, alone, fuse, with_drawn
from models.train.sources import find


def scene(seed: int) -> NDArray[np.uint8]:
    rough = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(rough, (320, 240), interpolation=cv2.INTER_CUBIC), np.uint8)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Path, str]:
    """A folder of clones with one repository of six pictures, two of them alike; and its commit."""
    folder = tmp_path / "clones" / "owner" / "name"
    for part in ("images", "labels"):
        (folder / "train" / part).mkdir(parents=True)
    for number in range(6):
        cv2.imwrite(str(folder / "train" / "images" / f"{number}.png"), scene(min(number, 4)))
        (folder / "train" / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.4\n3 0.1 0.1 0.1 0.1\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "pictures")
    commit = git(folder, "rev-parse", "HEAD")
    (folder / "train" / "images" / "0.png").unlink()  # the work tree does not count
    return tmp_path / "clones", commit


class Nobody:
    """Teachers who see one car in every picture, and a person where people drew one."""

    def label(self, picture: NDArray[np.uint8]) -> Opinion:
        return Opinion((Label(2, 0.0, 0.0, 0.2, 0.2, 0.5), Label(0, 0.41, 0.3, 0.6, 0.7, 0.6)), ())


def gathering(out: Path, guard: Fence, known: list[int]) -> Gathering:
    return Gathering(out, guard, known, Nobody())  # type: ignore[arg-type]


def test_pictures_come_from_a_commit_and_each_is_taken_once(clones: tuple[Path, str], tmp_path: Path) -> None:
    source = Public("made", "owner/name", clones[1], r"^train/images/", "CC0", {0: "person"})
    repository = find(clones[0], source.repository, source.commit)
    guard = Fence(looks=np.array([phash(scene(1))], np.uint64))
    work = gathering(tmp_path / "out", guard, [phash(scene(2))])
    # Six pictures: one is an evaluation picture, one is known already, two are alike.
    assert work.take(source, repository) == 3
    work.write()
    shots = list(sources.photographs(tmp_path / "out"))
    assert len(shots) == 3
    # People drew the person; the car is the teachers'. What they drew of a class that does not count is passed over.
    assert [[(box.cls, box.score) for box in shot.boxes] for shot in shots] == [[(0, 1.0), (2, 0.5)]] * 3
    with (tmp_path / "out" / "provenance.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["repository"], row["commit"], row["licence"]) for row in rows} == {("owner/name", clones[1], "CC0")}
    assert {row["phash"] for row in rows} == {as_hex(phash(scene(seed))) for seed in (0, 3, 4)}


def test_a_source_gives_no_more_than_it_may(clones: tuple[Path, str], tmp_path: Path) -> None:
    source = Public("made", "owner/name", clones[1], r"^train/images/", "CC0", most=2)
    work = gathering(tmp_path / "out", Fence(), [])
    assert work.take(source, find(clones[0], "owner/name", clones[1])) == 2


def test_a_commit_that_is_not_there_is_named(clones: tuple[Path, str]) -> None:
    with pytest.raises(IndexFault, match="cat-file"):
        find(clones[0], "owner/name", "0" * 40)


def test_yolo_lines_may_be_boxes_or_polygons_or_rubbish() -> None:
    text = "0 0.5 0.5 0.2 0.4\n0 0.1 0.1 0.3 0.1 0.3 0.2 0.1 0.2\nx y\n0 0.5\n1 0.5 0.5 0.2 0.2\n0 0.5 0.5 0 0\n"
    found = [label.row() for label in yolo(text, {0: "person", 1: "unicorn"})]
    assert found == [[0, 0.4, 0.3, 0.6, 0.7, 1.0], [0, 0.1, 0.1, 0.3, 0.2, 1.0]]
    assert labels_path("train/images/a.b.jpg") == "train/labels/a.b.txt"


def test_two_of_three_teachers_are_believed() -> None:
    one = [Label(0, 0.1, 0.1, 0.3, 0.5, 0.9), Label(7, 0.6, 0.6, 0.8, 0.8, 0.5)]
    two = [Label(0, 0.1, 0.1, 0.3, 0.54, 0.6), Label(2, 0.0, 0.6, 0.2, 0.8, 0.3)]
    three = [Label(0, 0.1, 0.1, 0.3, 0.5, 0.3), Label(2, 0.0, 0.6, 0.2, 0.8, 0.3)]
    said = fuse([one, two, three])
    assert [(label.cls, round(label.score, 3)) for label in said.boxes] == [(0, 0.6)]
    assert said.boxes[0].y2 == pytest.approx((0.5 * 0.9 + 0.54 * 0.6 + 0.5 * 0.3) / 1.8)
    # A dog that one alone sees, and a car of which two are unsure, teach nothing either way.
    assert sorted((label.cls, round(label.score, 3)) for label in said.ignore) == [(2, 0.3), (7, 0.5)]


def test_one_teacher_alone_is_believed_where_it_is_sure() -> None:
    sure, doubtful, guess = (Label(0, 0.0, 0.0, 0.2, 0.2, score) for score in (0.5, 0.49, 0.2))
    assert alone([sure, doubtful, guess]) == Opinion((sure,), (doubtful,))


def test_one_thing_is_not_learnt_as_two_classes() -> None:
    van = [Label(2, 0.1, 0.1, 0.5, 0.5, 0.8), Label(5, 0.1, 0.1, 0.5, 0.5, 0.5)]
    said = fuse([van, van])
    assert [label.cls for label in said.boxes] == [2]
    assert [label.cls for label in said.ignore] == [5]


def test_people_have_the_last_word() -> None:
    drawn = [Label(0, 0.1, 0.1, 0.3, 0.5)]
    said = Opinion(
        (Label(0, 0.1, 0.12, 0.3, 0.5, 0.7), Label(0, 0.6, 0.1, 0.8, 0.5, 0.7)), (Label(0, 0.1, 0.1, 0.3, 0.4),)
    )
    both = with_drawn(drawn, said)
    assert [round(label.x1, 2) for label in both.boxes] == [0.1, 0.6]
    assert both.boxes[0].score == 1.0
    assert both.ignore == ()


def test_the_fence_knows_pictures_by_a_list_of_hashes_mirrored_or_not(tmp_path: Path) -> None:
    (tmp_path / "hashes.txt").write_text(as_hex(phash(scene(1))) + "\n\n")
    guard = Fence().wider(assemble.hashes_of(tmp_path / "hashes.txt"))
    turned = np.ascontiguousarray(scene(1)[:, ::-1])
    assert guard.forbids("", phash(scene(1)), mirrored(scene(1)))
    assert guard.forbids("", phash(turned), mirrored(turned))
    assert not guard.forbids("", phash(scene(2)), mirrored(scene(2)))
    (tmp_path / "hashes.txt").write_text("not a hash\n")
    with pytest.raises(IndexFault, match=r"hashes\.txt"):
        assemble.hashes_of(tmp_path / "hashes.txt")


def test_every_public_source_names_commit_and_licence() -> None:
    assert all(len(source.commit) == 40 and source.licence for source in gather.PUBLIC)
    assert len({source.name for source in gather.PUBLIC}) == len(gather.PUBLIC)
