"""The renderer's geometry and truth, and the clips it shipped."""

from __future__ import annotations

import json
import wave
from dataclasses import astuple, replace
from pathlib import Path

import av
import numpy as np
import pytest

from appliance.base.box_arrays import iou_matrix
from fixtures.render import judge
from fixtures.render.camera import Camera, Sensor, Window, see
from fixtures.render.clip import Row, read_rows, seen_rows, write_rows
from fixtures.render.film import Stage
from fixtures.render.human import walking
from fixtures.render.judge import Found, _judged
from fixtures.render.mesh import Mesh, Paint, box, plain
from fixtures.render.scene import PERSON, Mover, Scene, Stretch, Track
from fixtures.render.yard import yard

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
NAMES = ("yard", "gate")
SIZE_MAX = 2_500_000


@pytest.fixture(scope="module")
def scene() -> Scene:
    """The yard without its greenery and at a quarter of the size, for speed."""
    whole = yard(7)
    small = {n: replace(c, focal_px=c.focal_px / 4, width=240, height=136) for n, c in whole.cameras.items()}
    return replace(whole, cameras=small, solids=box((-9.0, 14.5, 0.0), (3.6, 20.0, 3.9), Paint(plain(0.4, 0.4, 0.4))))


@pytest.fixture(scope="module")
def stage(scene: Scene) -> Stage:
    return Stage(scene, scene.cameras["yard"])


def test_a_point_ahead_lands_in_the_middle() -> None:
    camera = Camera((0.0, 0.0, 4.0), 90.0, 0.0, 800.0)
    xy, depth = camera.project(np.array([[10.0, 0.0, 4.0], [10.0, -1.0, 5.0]]))
    assert xy[0] == pytest.approx((480, 270))
    assert xy[1] == pytest.approx((480 + 80, 270 - 80))  # south is to the right of a camera that looks east
    assert depth == pytest.approx((10, 10))


def test_rays_meet_the_points_they_came_from() -> None:
    camera = Camera((1.0, 2.0, 4.3), 37.0, 12.0, 900.0, 64, 48)
    rays = camera.rays().reshape(-1, 3)
    xy, depth = camera.project(rays * 7.0 + np.array(camera.position))
    y, x = np.mgrid[:48, :64]
    assert xy == pytest.approx(np.stack([x.ravel() + 0.5, y.ravel() + 0.5], axis=1))
    assert depth == pytest.approx(np.full(len(rays), 7.0))


def test_the_nearer_of_two_boxes_is_seen() -> None:
    camera = Camera((0.0, 0.0, 0.0), 0.0, 0.0, 100.0, 40, 40)
    far = box((-2, 8, -2), (2, 9, 2), Paint(plain(0, 0, 0)))
    near = box((-0.5, 4, -0.5), (0.5, 5, 0.5), Paint(plain(1, 1, 1)))
    both = Mesh(*(np.concatenate([getattr(far, n), getattr(near, n)]) for n in ("vertices", "normals", "local")),
                np.concatenate([far.faces, near.faces + len(far.vertices)]),
                np.concatenate([far.paint_of, near.paint_of + 1]), (*far.paints, *near.paints))  # fmt: skip
    surface = see(both, camera, Window(0, 0, 40, 40))
    paint = np.full((40, 40), -1)
    paint[surface.hit] = surface.paint_of
    assert paint[20, 20] == 1
    assert paint[3, 3] == 0
    assert 1 / surface.nearness[20, 20] == pytest.approx(4.0, rel=1e-4)


def test_a_step_follows_the_other_by_half_a_stride() -> None:
    now, later = walking(0.2, 1.0), walking(0.7, 1.0)
    assert astuple(now.legs[0]) == pytest.approx(astuple(later.legs[1]))
    assert now.shoulders[0] == pytest.approx(later.shoulders[1])


def test_a_walker_waits_as_long_as_told_and_is_gone_after() -> None:
    track = Track(2.0, [Stretch(((0, 0), (0, 5)), 1.0, hold_s=3.0), Stretch(((0, 5), (4, 5)), 1.0)])
    assert track.at(1.9) is None
    assert track.at(track.end_s) is None
    held = [p for p in (track.at(t / 30) for t in range(900)) if p is not None and p.held_s > 0]
    assert len(held) / 30 == pytest.approx(3.0, abs=0.1)


def test_box_is_the_silhouette_drawn(stage: Stage) -> None:
    """What changes in the picture when a mover without a shadow is added is its box."""
    ghost = _alone(stage)
    empty = ghost.plate.ambient + ghost.plate.direct
    picture, (sight,) = ghost.frame(0)
    assert sight.seen is not None
    x, y, w, h = sight.seen
    changed = np.abs(picture - empty).max(axis=2) > 0.02
    inner = changed[y : y + h, x : x + w]
    assert inner[0].any()
    assert inner[-1].any()
    assert inner[:, 0].any()
    assert inner[:, -1].any()
    changed[max(y - 1, 0) : y + h + 1, max(x - 1, 0) : x + w + 1] = False
    assert not changed.any()


def _alone(stage: Stage) -> Stage:
    """The stage with a floating cube as its only mover, without a sun and too high to darken the floor."""
    cube = box((-0.4, -0.4, 1.2), (0.4, 0.4, 2.6), Paint(plain(0.9, 0.1, 0.1)))
    track = Track(0.0, [Stretch(((0.3, 11.0), (1.3, 11.0)), 0.2)])
    dark = replace(stage.scene.light, sun=(0.0, 0.0, 0.0))
    return Stage(
        replace(stage.scene, light=dark, movers=(Mover(1, "cube", PERSON, track, lambda *_: cube),)), stage.camera
    )


def test_hidden_parts_lower_visibility(scene: Scene) -> None:
    cube = box((-0.4, -0.4, 0.0), (0.4, 0.4, 1.8), Paint(plain(0.9, 0.1, 0.1)))
    tracks = [Track(0.0, [Stretch(((x, y), (x + 1, y)), 0.2)]) for x, y in ((0.0, 11.0), (0.0, 9.6))]
    movers = tuple(Mover(n, "cube", PERSON, t, lambda *_: cube) for n, t in enumerate(tracks, 1))
    _, (behind, before) = Stage(replace(scene, movers=movers), scene.cameras["yard"]).frame(0)
    assert before.visibility == 1.0
    assert before.seen == before.full
    assert 0.1 < behind.visibility < 0.8
    assert behind.seen is not None
    assert behind.seen[2] * behind.seen[3] < behind.full[2] * behind.full[3]


def test_truth_does_not_change_between_runs(scene: Scene, stage: Stage, tmp_path: Path) -> None:
    frames = (14 * 15, 37 * 15, 51 * 15)
    files = []
    for name, film in (
        ("a", stage),
        ("b", Stage(replace(yard(7), cameras=scene.cameras, solids=scene.solids), stage.camera)),
    ):
        path = tmp_path / name
        write_rows(path, [row for k in frames for row in seen_rows(k, film.frame(k)[1])])
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert len(files[0].splitlines()) >= 5


def test_pictures_do_not_change_between_runs(stage: Stage) -> None:
    light, _ = stage.frame(200)
    assert np.array_equal(Sensor().develop(light, 200, 7), Sensor().develop(light, 200, 7))
    assert not np.array_equal(Sensor().develop(light, 200, 7), Sensor().develop(light, 201, 7))


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_there_at_either_end(scene: Scene, name: str) -> None:
    film = Stage(scene, scene.cameras[name])
    for index in (0, scene.frames - 1):
        _, sights = film.frame(index)
        assert not seen_rows(index, sights)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    rows = [Row(1, 2, 10, 20, 30, 60, 1, 0.5), Row(2, 5, 0, 0, 200, 100, 2, 1.0)]
    write_rows(tmp_path / "gt.txt", rows)
    assert read_rows(tmp_path / "gt.txt") == rows


def test_judge_says_what_is_wrong_with_a_clip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, silent = tmp_path / "empty.mp4", tmp_path / "silent.wav"
    empty.touch()
    with wave.open(str(silent), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    truth = tmp_path / "gt.txt"
    write_rows(truth, [])
    for clip, said in (
        (empty, "empty.mp4"),
        (silent, "silent.wav: there is no picture"),
        (tmp_path / "x.mp4", "x.mp4"),
    ):
        assert judge.main([str(clip), "--gt", str(truth)]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        judge.main([str(empty), "--every", "0"])
    assert "`0` is no number of frames: write a whole number from 1" in capsys.readouterr().err


def test_judge_counts_a_miss_a_hit_and_a_false_alarm() -> None:
    rows = [Row(1, 1, 0, 0, 50, 150, 1, 1.0), Row(1, 2, 300, 0, 50, 150, 1, 1.0), Row(1, 3, 600, 0, 20, 60, 1, 1.0)]
    boxes = np.array([[2, 2, 50, 150], [450, 0, 500, 150], [600, 0, 620, 60]], np.float64)
    judged = _judged(Found(boxes, np.array([0.9, 0.8, 0.7]), np.zeros(3, np.int64)), rows, 0.4, 100, 0.5)
    assert (judged.persons, judged.found) == (2, 1)
    assert judged.right.tolist() == [1, 0, -1]
    assert iou_matrix(boxes[:1], boxes[:1]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", NAMES)
class TestShippedClip:
    def test_is_small(self, name: str) -> None:
        assert 100_000 < (CLIPS / f"{name}.mp4").stat().st_size <= SIZE_MAX

    def test_is_coded_as_cameras_do(self, name: str) -> None:
        with av.open(str(CLIPS / f"{name}.mp4")) as container:
            stream = container.streams.video[0]
            packets = [p for p in container.demux(stream) if p.size]
            assert stream.codec_context.name == "h264"
            assert (stream.width, stream.height, stream.pix_fmt) == (960, 540, "yuv420p")
        assert [k for k, p in enumerate(packets) if p.is_keyframe] == list(range(0, len(packets), 30))
        assert all(p.pts == p.dts for p in packets)

    def test_truth_fits_the_pictures(self, name: str) -> None:
        story = json.loads((CLIPS / f"{name}.truth.json").read_text())
        rows = read_rows(CLIPS / f"{name}.gt.txt")
        with av.open(str(CLIPS / f"{name}.mp4")) as container:
            assert sum(1 for _ in container.decode(video=0)) == story["frames"]
        assert {r.frame for r in rows} <= set(range(2, story["frames"]))
        assert all(r.x >= 0 and r.y >= 0 and r.x + r.w <= 960 and r.y + r.h <= 540 for r in rows)
        assert all(0 < r.visibility <= 1 for r in rows)
        assert {r.number for r in rows} <= {o["id"] for o in story["objects"]}

    def test_whole_boxes_hold_the_seen_ones(self, name: str) -> None:
        whole = {(r.frame, r.number): r for r in read_rows(CLIPS / f"{name}.full.txt")}
        for r in read_rows(CLIPS / f"{name}.gt.txt"):
            w = whole[r.frame, r.number]
            assert w.x <= r.x
            assert w.y <= r.y
            assert w.x + w.w >= r.x + r.w
            assert w.y + w.h >= r.y + r.h


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_shipped_truth_is_what_is_rendered(name: str) -> None:
    whole = yard(7)
    film = Stage(whole, whole.cameras[name])
    shipped = read_rows(CLIPS / f"{name}.gt.txt")
    for index in (10 * 15, 25 * 15, 37 * 15, 51 * 15):
        lines = [r.line() for r in seen_rows(index, film.frame(index)[1])]
        assert lines == [r.line() for r in shipped if r.frame == index + 1]
