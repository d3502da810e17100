"""What goes into the training set, what may not, and what teachers are believed."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.train import assemble, dataset, provenance, remote, sources
from models.train.assemble import Fence
from models.train.dataset import Entry, IndexFault, Label, as_hex, distances, from_hex, mirrored, phash
from models.train.pseudo_labels import agree

ROOT = Path(__file__).parents[2]


def scene(seed: int, width: int = 320, height: int = 240) -> NDArray[np.uint8]:
    """A smooth random picture: such as differ in their low frequencies, as photographs do."""
    rough = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def small_set(folder: Path, count: int = 6) -> list[Entry]:
    entries = []
    for number in range(count):
        picture = scene(number)
        (folder / "images").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "images" / f"{number}.jpg"), picture)
        box = Label(0, 0.1, 0.2, 0.3, 0.8)
        entries.append(
            Entry(f"images/{number}.jpg", str(number), as_hex(phash(picture)), 320, 240, (box,), (), "made", "train")
        )
    dataset.write(folder, entries)
    return entries


def test_alike_pictures_have_like_hashes() -> None:
    picture = scene(1)
    small = np.asarray(cv2.resize(picture, (100, 75), interpolation=cv2.INTER_AREA), np.uint8)
    coded = cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 30])[1], cv2.IMREAD_COLOR)
    bright = np.clip(picture.astype(int) + 20, 0, 255).astype(np.uint8)
    own = np.array([phash(picture)], np.uint64)
    near = np.array([phash(small), phash(np.asarray(coded, np.uint8)), phash(bright)], np.uint64)
    far = np.array([phash(scene(seed)) for seed in range(2, 40)], np.uint64)
    assert distances(own, near).max() <= assemble.NEAR_MAX
    assert distances(own, far).min() > assemble.NEAR_MAX
    assert mirrored(picture) == phash(np.ascontiguousarray(picture[:, ::-1]))
    assert from_hex(as_hex(phash(picture))) == phash(picture)


def test_the_fence_knows_a_picture_again_small_coded_or_mirrored() -> None:
    picture = scene(3)
    guard = Fence(frozenset({"ab"}), np.array([phash(picture)], np.uint64), np.array([mirrored(picture)], np.uint64))
    small = np.asarray(cv2.resize(picture, (160, 120)), np.uint8)
    assert guard.forbids("ab", 0)
    assert guard.forbids("cd", phash(small))
    assert guard.forbids("cd", mirrored(picture))
    assert not guard.forbids("cd", phash(scene(4)))


def test_evaluation_footage_is_not_on_the_list() -> None:
    assert not [clip for clip in sources.FOOTAGE if assemble.barred(Path(clip.path))]
    assert assemble.barred(Path("footage/PETS09_s2l1.mp4"))
    assert not assemble.barred(Path("images/oi_people_pets/a.jpg")), "people with their pets"
    assert assemble.barred(Path("groundtruth/atl_traffic/a.jpg"))
    assert assemble.barred(Path("footage/intel_one-by-one-person.mp4"))


def test_an_evaluation_picture_among_the_photographs_is_left_out(tmp_path: Path) -> None:
    train = tmp_path / "train"
    (train / "images" / "street").mkdir(parents=True)
    for number in range(3):
        cv2.imwrite(str(train / "images" / "street" / f"{number}.jpg"), scene(number))
    rows = [
        {
            "image": f"images/street/{number}.jpg",
            "source": "street",
            "boxes": [[0, 0.1, 0.1, 0.4, 0.9, 1.0]],
            "ignore": [],
        }
        for number in range(3)
    ]
    (train / "merged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (train / "sources.json").write_text(json.dumps({"street": {"use": "good", "licence": "CC BY 4.0"}}))
    guard = Fence(looks=np.array([phash(scene(1))], np.uint64), mirrored=np.array([mirrored(scene(1))], np.uint64))
    assembly = assemble.Assembly(tmp_path / "out", guard)
    for shot in sources.photographs(train):
        assembly.photograph(shot)
    assert sorted(Path(entry.image).stem for entry in assembly.entries) == ["0", "2"]
    assert assembly.counts["street: looks like an evaluation picture"] == 1
    assert {entry.licence for entry in assembly.entries} == {"CC BY 4.0"}


def test_sources_of_unclear_licence_need_to_be_asked_for(tmp_path: Path) -> None:
    uses = {"a": "good", "b": "check", "c": "unclear", "d": "good (inferred)"}
    (tmp_path / "sources.json").write_text(json.dumps({k: {"use": v, "licence": ""} for k, v in uses.items()}))
    lines = [{"image": f"images/{name}/0.jpg", "source": name, "boxes": [], "ignore": []} for name in uses]
    (tmp_path / "merged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [shot.source.name for shot in sources.photographs(tmp_path)] == ["a", "d"]
    assert [shot.source.name for shot in sources.photographs(tmp_path, unclear=True)] == ["a", "b", "c", "d"]


def test_teachers_are_believed_where_they_agree() -> None:
    one = [Label(0, 0.1, 0.1, 0.2, 0.5, 0.8), Label(2, 0.5, 0.5, 0.7, 0.7, 0.9), Label(0, 0.8, 0.1, 0.9, 0.3, 0.2)]
    two = [Label(0, 0.1, 0.1, 0.2, 0.52, 0.4), Label(5, 0.5, 0.5, 0.7, 0.7, 0.5), Label(0, 0.8, 0.1, 0.9, 0.3, 0.3)]
    said = agree(one, two)
    assert [(label.cls, round(label.score, 3)) for label in said.boxes] == [(0, 0.6)]
    assert said.boxes[0].y2 == pytest.approx((0.5 * 0.8 + 0.52 * 0.4) / 1.2)
    # A lorry that the other calls a car, and a person neither is sure of, teach nothing either way.
    assert sorted((label.cls, round(label.score, 3)) for label in said.ignore) == [(0, 0.25), (2, 0.9), (5, 0.5)]


def test_rendered_boxes_lie_on_what_was_rendered() -> None:
    clip = ROOT / "fixtures" / "clips" / "yard.mp4"
    seen = [row for row in sources.rendered_pictures(clip, 60) if row[2]]
    assert len(seen) >= 5
    assert {label.cls for row in seen for label in row[2]} == {0, 2}
    assert all(0 <= label.x1 < label.x2 <= 1 for row in seen for label in (*row[2], *row[3]))


def test_an_index_is_read_as_it_was_written_and_says_what_is_wrong(tmp_path: Path) -> None:
    entries = small_set(tmp_path)
    assert dataset.read(tmp_path) == entries
    lines = (tmp_path / dataset.NAME).read_text().splitlines()
    lines[2] = lines[2].replace("[[0,0.1,", "[[8,0.1,")
    (tmp_path / dataset.NAME).write_text("\n".join(lines))
    with pytest.raises(IndexFault, match=r"line 3.*no class 8"):
        dataset.read(tmp_path)


def test_decoded_pictures_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    entries = small_set(tmp_path)
    first = dataset.decoded(tmp_path, entries, tmp_path / "pictures.bin")
    wanted = cv2.imread(str(tmp_path / "images" / "3.jpg"))
    assert np.array_equal(first[3], wanted)
    before = (tmp_path / "pictures.bin").stat().st_mtime_ns
    (tmp_path / "images" / "3.jpg").unlink()
    again = dataset.decoded(tmp_path, entries, tmp_path / "pictures.bin")
    assert np.array_equal(again[3], wanted)
    assert (tmp_path / "pictures.bin").stat().st_mtime_ns == before
    with pytest.raises(IndexFault, match=r"3\.jpg: missing"):
        dataset.decoded(tmp_path, entries[:4], tmp_path / "pictures.bin")


def test_a_kill_between_pictures_and_note_leaves_no_note_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, cache = small_set(tmp_path), tmp_path / "pictures.bin"
    dataset.decoded(tmp_path, entries, cache)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dataset.decoded(tmp_path, entries[::-1], cache)
    assert np.array_equal(dataset.decoded(tmp_path, entries, cache)[3], cv2.imread(str(tmp_path / "images" / "3.jpg")))


def test_a_pack_keeps_to_its_budget_and_trains_elsewhere(tmp_path: Path) -> None:
    entries = small_set(tmp_path / "here", 12)
    large = remote.packed_set(tmp_path / "here", entries, tmp_path / "large.zip", 10_000_000)
    packed = remote.packed_set(tmp_path / "here", entries, tmp_path / "small.zip", large.size * 3 // 4)
    assert (large.side, large.quality) == (416, 80)
    assert packed.size == (tmp_path / "small.zip").stat().st_size <= large.size * 3 // 4
    with zipfile.ZipFile(tmp_path / "small.zip") as box:
        box.extractall(tmp_path / "there")
    arrived = dataset.read(tmp_path / "there" / "set")
    assert [entry.boxes for entry in arrived] == [entry.boxes for entry in entries]
    pictures = dataset.decoded(tmp_path / "there" / "set", arrived, tmp_path / "there" / "pictures.bin")
    assert pictures[0].shape == (arrived[0].height, arrived[0].width, 3)
    with pytest.raises(IndexFault, match="do not fit"):
        remote.packed_set(tmp_path / "here", entries, tmp_path / "none.zip", 1000)


def test_a_set_that_is_too_large_travels_in_parts(tmp_path: Path) -> None:
    entries = small_set(tmp_path / "here")
    out, settings = tmp_path / "carry", ["--steps", "10", "--warmup", "1"]
    assert (
        remote.main(["pack", "--index", str(tmp_path / "here"), "--out", str(out), "--parts", "2", "--", *settings])
        == 0
    )
    for number in (1, 2):
        with zipfile.ZipFile(out / f"set-{number}.zip") as box:
            box.extractall(tmp_path / "there")
    parts = sorted((tmp_path / "there" / "set").glob("index-*.jsonl"))
    assert len(parts) == 2
    (tmp_path / "there" / "set" / dataset.NAME).write_text("".join(path.read_text() for path in parts))
    arrived = dataset.read(tmp_path / "there" / "set")
    assert sorted(entry.phash for entry in arrived) == sorted(entry.phash for entry in entries)
    assert all((tmp_path / "there" / "set" / entry.image).is_file() for entry in arrived)


@pytest.fixture(scope="module")
def guard(shared_data: Path) -> Fence:
    return assemble.build_fence(shared_data)


def assert_beyond(guard: Fence, sha256: list[str], looks: list[str]) -> None:
    """None of the pictures is, or looks like, an evaluation picture, mirrored or not."""
    assert len(guard.looks) > 159 * 2 + 278 + 30
    assert not guard.sha256 & set(sha256)
    for own in np.array_split(np.array([from_hex(text) for text in looks], np.uint64), 16):
        assert distances(own, guard.looks).min() > assemble.NEAR_MAX
        assert distances(own, guard.mirrored).min() > assemble.NEAR_MIRRORED_MAX


@pytest.mark.shared
def test_the_network_that_we_ship_has_learnt_from_no_evaluation_picture(guard: Fence) -> None:
    rows = list(provenance.read(ROOT / "models" / "vedette-nano.pictures.csv.gz"))
    assert {row["split"] for row in rows} == {"train", "val"}
    assert len(rows) > 4000
    # The list of hashes is younger than this network: 12 frames of footage that it learnt from are on it.
    late = [row for row in rows if guard.forbids("", from_hex(row["phash"]))]
    assert len(late) <= 12
    assert {row["source"] for row in late} <= {"footage"}
    rest = [row for row in rows if row not in late]
    assert_beyond(guard, [row["sha256"] for row in rest], [row["phash"] for row in rest])


@pytest.mark.slow
@pytest.mark.shared
def test_no_evaluation_picture_is_in_the_assembled_set(guard: Fence, shared_data: Path, tmp_path: Path) -> None:
    """By hash and by looks, also mirrored, of the index alone: the assembly's own filter is not asked."""
    given = os.environ.get("VEDETTE_TRAIN_SET")
    if given is None:
        arguments = ["--data", str(shared_data), "--out", str(tmp_path), "--no-footage", "--every", "30"]
        assert assemble.main(arguments) == 0
    entries = dataset.read(Path(given) if given else tmp_path)
    assert_beyond(guard, [entry.sha256 for entry in entries], [entry.phash for entry in entries])
    assert not [entry.image for entry in entries if assemble.barred(Path(entry.image))]
    groups: dict[str, set[str]] = {}
    for entry in entries:
        groups.setdefault(entry.group, set()).add(entry.split)
    assert all(len(sides) == 1 for sides in groups.values())
    assert {entry.split for entry in entries} == {"train", "val"}


def test_the_logs_of_runs_name_no_folder_of_the_machine_they_ran_on() -> None:
    logs = sorted((ROOT / "models" / "runs").glob("*.jsonl"))
    assert logs
    for log in logs:
        for line in log.read_text().splitlines():
            settings = json.loads(line).get("settings", {})
            absolute = {name: value for name, value in settings.items() if str(value).startswith("/")}
            assert not absolute, f"{log.name}: say it as the README would: {absolute}"
