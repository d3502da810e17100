"""The pictures of fixed cameras: the table in the repository, and how they are brought from clones."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
from collections import Counter
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.evaluation import cameras, public
from models.evaluation.sets import SetFault
from models.train import assemble, gather, sources
from models.train.dataset import as_hex, phash


def scene(seed: int) -> NDArray[np.uint8]:
    rough = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(rough, (160, 120), interpolation=cv2.INTER_CUBIC), np.uint8)


def clip() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=5)
        stream.width, stream.height = 160, 120
        for seed in range(4):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene(seed), format="bgr24")))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Path, str]:
    """A repository with a still and a clip of four scenes; the commit."""
    folder = tmp_path / "clones" / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "clip.mp4").write_bytes(clip())
    cv2.imwrite(str(folder / "still.png"), scene(9))
    run = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-C", str(folder)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*run, *arguments], check=True, capture_output=True)
    commit = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return tmp_path / "clones", commit


def row(clones: tuple[Path, str], path: str, frame: int | None, look: int, **changes: object) -> str:
    content = (clones[0] / "owner" / "name" / path).read_bytes()
    line: dict[str, object] = {
        "repository": "owner/name", "commit": clones[1], "path": path, "frame": frame,
        "sha256": hashlib.sha256(content).hexdigest(), "phash": as_hex(look), "kind": "above", "site": "yard",
        "boxes": [[0.1, 0.2, 0.3, 0.9]], "ignored": [[0.5, 0.0, 1.0, 0.5]], "by_eye": True, "proposals": {},
    }  # fmt: skip
    return json.dumps({**line, **changes})


def test_stills_and_frames_of_clips_come_with_their_labels(clones: tuple[Path, str], tmp_path: Path) -> None:
    table = tmp_path / "cameras.jsonl"
    lines = [row(clones, "still.png", None, phash(scene(9)))]
    lines += [row(clones, "clip.mp4", number, phash(scene(number))) for number in (1, 3)]
    table.write_text("\n".join(lines))
    rows = list(cameras.bring(cameras.table(table), clones[0], tmp_path / "out"))
    (tmp_path / "out" / cameras.NAME).write_text("".join(each.line() + "\n" for each in rows))
    assert public.read(tmp_path / "out", cameras.NAME) == rows
    pictures = list(public.labelled(tmp_path / "out", rows))
    for picture, seed in zip(pictures, (9, 1, 3), strict=True):
        assert picture.boxes.tolist() == [[16.0, 24.0, 48.0, 108.0], [80.0, 0.0, 160.0, 60.0]]
        assert (picture.names, picture.crowd.tolist()) == (("person", ""), [False, True])
        assert np.abs(picture.pixels.astype(int) - scene(seed)).mean() < 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "another file"),
        ({"phash": as_hex(~phash(scene(9)) & (2**64 - 1))}, "looks unlike"),
        ({"boxes": [[0.3, 0.2, 0.1, 0.9]]}, "line 1"),
        ({"by_eye": False}, "not labelled by eye"),
    ],
)
def test_what_is_not_the_labelled_picture_is_refused(
    clones: tuple[Path, str], tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    table = tmp_path / "cameras.jsonl"
    table.write_text(row(clones, "still.png", None, phash(scene(9)), **changes))
    with pytest.raises(SetFault, match=message):
        list(cameras.bring(cameras.table(table), clones[0], tmp_path / "out"))


def test_a_film_that_ends_before_a_labelled_frame_is_refused(clones: tuple[Path, str], tmp_path: Path) -> None:
    table = tmp_path / "cameras.jsonl"
    table.write_text("\n".join(row(clones, "clip.mp4", number, phash(scene(1))) for number in (1, 1000)))
    with pytest.raises(SetFault, match=r"clip\.mp4: the film ends before frame 1000"):
        list(cameras.bring(cameras.table(table), clones[0], tmp_path / "out"))


def test_the_set_is_broad_enough_and_none_of_it_is_learnt_from() -> None:
    pictures = cameras.table()
    assert len(pictures) >= 300
    assert len({picture.site for picture in pictures}) >= 8
    assert {picture.kind for picture in pictures} == set(public.CAMERA_KINDS)
    assert min(Counter(picture.kind for picture in pictures).values()) >= 14
    learnt = {each.repository for each in gather.PUBLIC} | {each.path for each in sources.FOOTAGE}
    judged = {source.repository for source in public.SOURCES}
    assert not {picture.repository for picture in pictures} & (learnt | judged)


def test_every_picture_is_behind_the_fence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "FENCED_FILMS", ())
    guard = assemble.build_fence(tmp_path)
    assert all(guard.forbids("", picture.look) for picture in cameras.table())
