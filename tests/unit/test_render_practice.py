"""Practice stills: a picture is its number's alone, its boxes lie on what was drawn, and all kinds of light occur."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import cv2
import numpy as np
import pytest

from fixtures.render.__main__ import main
from fixtures.render.animals import animal
from fixtures.render.camera import Camera
from fixtures.render.landscape import CONCRETE, Floor
from fixtures.render.light import Lamp, lamp_lit
from fixtures.render.look import Thing, look
from fixtures.render.mesh import Array, Noise, Paint, box, plain
from fixtures.render.people import NOBODY_SHARE, person
from fixtures.render.practice import FINE, NAME, Draw, boxes, clarity, developed, draw, exposed, fill, rendered
from fixtures.render.practice import Box as Label
from fixtures.render.quadruped import HIP_Z, STANCES, stance
from fixtures.render.sites import Patch, Plot, distance_of, shown
from fixtures.render.vehicles import CAR_SHAPES, CarShape, car

SEED, DRAWS = 11, 28


@cache
def drawn(number: int) -> Draw:
    return draw(SEED, number)


def people(scene: Draw) -> int:
    return sum(thing.name == "person" for thing in scene.things)


def small(scene: Draw) -> Draw:
    """The scene through a lens of half the pixels, for speed."""
    camera = scene.camera
    size = {"width": camera.width // 2, "height": camera.height // 2}
    return replace(scene, camera=replace(camera, focal_px=camera.focal_px / 2, **size))


def test_a_folder_resumes_and_a_picture_is_its_numbers_alone(tmp_path: Path) -> None:
    whole, late = tmp_path / "whole", tmp_path / "late"
    assert fill(late, SEED, range(1, 2)) == 1
    whole.mkdir()
    (whole / NAME).write_text((late / NAME).read_text()[:40])  # killed while it wrote
    assert fill(whole, SEED, range(2)) == 2
    first, second = (whole / NAME).read_text().splitlines(keepends=True)
    image = f"images/{SEED}-000001.jpg"
    assert (late / image).read_bytes() == (whole / image).read_bytes()
    assert (late / NAME).read_text() == second
    assert fill(whole, SEED, range(2)) == 0
    assert (whole / NAME).read_text() == first + second
    row = json.loads(first)
    assert cv2.imread(str(whole / row["image"])).shape == (row["height"], row["width"], 3)
    assert set(row) == {"image", "width", "height", "boxes", "light", "seed"}


def test_a_spoilt_index_is_named_and_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_text("nonsense\n")
    assert main(["practice", "--out", str(tmp_path), "--pictures", "1"]) == 1
    assert "line 1 is not a picture's" in capsys.readouterr().err
    assert (tmp_path / NAME).read_text() == "nonsense\n"


def test_an_unknown_argument_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["practice", "--out", str(tmp_path), "--pictures", "1", "--sed", "3"]) == 2
    assert "did you mean --seed?" in capsys.readouterr().err


def test_all_lights_and_empty_places_occur() -> None:
    crowds = [people(drawn(number)) for number in range(DRAWS)]
    assert NOBODY_SHARE >= 0.15
    assert 2 < crowds.count(0) < DRAWS * 0.4
    assert max(crowds) > 5
    lights = Counter(drawn(number).weather.name for number in range(DRAWS))
    assert {"day", "overcast", "dusk", "infrared"} < set(lights)
    names = {thing.name for number in range(DRAWS) for thing in drawn(number).things}
    assert names == {"", "person", "car", "van", "dog", "cat"}


def test_infrared_is_grey_and_daylight_is_not() -> None:
    dark = next(number for number in count() if drawn(number).weather.grey)
    day = next(number for number in count() if drawn(number).weather.name == "day")
    assert spread(dark) == 0
    assert spread(day) > 20


def spread(number: int) -> int:
    """The greatest difference between a pixel's red, green and blue; infrared light has none from the start."""
    scene, rng = small(drawn(number)), np.random.default_rng(1)
    light = rendered(scene)[0]
    assert (np.ptp(light, axis=2).max() == 0) == scene.weather.grey
    picture = developed(exposed(light, scene.weather), scene.weather, rng)
    return int(np.ptp(picture.astype(int), axis=2).max())


def test_a_box_lies_on_what_a_person_changes() -> None:
    """The colours of the picture with and without each person differ inside the box only, and on all its sides."""
    scene = small(next(drawn(number) for number in count() if 2 <= people(drawn(number)) <= 5))
    size = {"width": int(scene.camera.width * FINE), "height": int(scene.camera.height * FINE)}
    fine = replace(scene.camera, focal_px=scene.camera.focal_px * FINE, **size)
    everyone = colours(scene.things, scene, fine)
    seen, _ = look(scene.things, scene.floor, fine, scene.noise)
    found = [label for label in boxes(scene.things, seen, fine) if label.name == "person"]
    assert found
    for label in found:
        others = tuple(t for number, t in enumerate(scene.things) if number != label.thing)
        changed = np.abs(everyone - colours(others, scene, fine)).max(axis=2) > 1e-6
        rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        around = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert np.array(around) / FINE == pytest.approx((label.x1, label.y1, label.x2, label.y2), abs=0.06)


def colours(things: tuple[Thing, ...], scene: Draw, camera: Camera) -> Array:
    seen, _ = look(things, scene.floor, camera, scene.noise)
    picture = np.zeros((camera.height, camera.width, 3), np.float32)
    seen.spread(seen.albedo, picture)
    return picture


def test_who_stands_behind_a_wall_is_less_seen() -> None:
    camera, noise = Camera((0.0, 0.0, 3.0), 0.0, 10.0, 400.0, 240, 180), Noise(1)
    body = person(np.random.default_rng(4), noise, walks=False).moved(np.array([0.0, 8.0, 0.0]))
    wall = box((-1.0, 7.2, 0.0), (1.0, 7.3, 0.9), Paint(plain(0.3, 0.3, 0.3)))
    shares = []
    for things in ((Thing(body, name="person"),), (Thing(body, name="person"), Thing(wall))):
        seen, _ = look(things, Floor(CONCRETE), camera, noise)
        (label,) = boxes(things, seen, camera)
        shares.append(label.seen)
    assert shares[0] == pytest.approx(1.0, abs=0.01)
    assert 0.15 < shares[1] < 0.8


def test_who_cannot_be_told_from_the_dark_counts_as_less_seen() -> None:
    owner = np.full((60, 40), -1, np.int16)
    owner[20:40, 15:25] = 3
    label = Label(3, "person", 15, 20, 25, 40, 1.0)
    night, clear = np.full((60, 40, 3), 8, np.uint8), np.full((60, 40, 3), 8, np.uint8)
    night[20:40, 15:25], clear[20:40, 15:25] = 10, 60
    assert clarity(night, owner, label) < 0.2
    assert clarity(clear, owner, label) == 1.0


def test_people_are_as_tall_as_the_draw_wants() -> None:
    camera = Camera((0.0, 0.0, 4.0), 0.0, 12.0, 700.0, 640, 480)
    for tall in (20.0, 60.0, 120.0):
        away = distance_of(camera, tall)
        (_, foot), (_, top) = camera.project(np.array([[0, away, 0], [0, away, 1.7]]))[0]
        assert foot - top == pytest.approx(tall, rel=0.12)
        assert shown(camera, 0.0, away, 1.7)
    assert not shown(camera, 30.0, 20.0, 1.7)


@pytest.mark.parametrize("shape", CAR_SHAPES)
def test_a_car_stands_on_its_wheels(shape: CarShape) -> None:
    mesh = car(shape, (0.4, 0.1, 0.1))
    size = np.ptp(mesh.vertices, axis=0)
    assert mesh.vertices[:, 2].min() == pytest.approx(0.0, abs=0.02)
    assert size[1] == pytest.approx(shape.length, abs=0.05)
    assert size[2] == pytest.approx(shape.roof, abs=0.08)


def test_a_lamp_falls_off_and_casts_a_shadow() -> None:
    lamp = Lamp((0.0, 0.0, 5.0), (1.0, 1.0, 1.0), soft_m=0.0)
    up = np.tile(np.array([[0.0, 0.0, 1.0]], np.float32), (2, 1))
    near, far = lamp.shine(np.array([[0, 0, 3], [0, 0, 1]], np.float32), up)
    assert near[0] == pytest.approx(4 * far[0], rel=1e-3)
    lid = box((-0.5, -0.5, 2.0), (0.5, 0.5, 2.2), Paint(plain(0.3, 0.3, 0.3)))
    assert lamp_lit(lamp, lid, np.array([[0, 0, 0], [3, 0, 0]], np.float32), up) == pytest.approx((0.0, 1.0))


def animals(scene: Draw) -> int:
    return sum(thing.name in ("dog", "cat") for thing in scene.things)


@pytest.mark.parametrize("kind", ["dog", "cat"])
def test_an_animal_stands_on_the_ground_and_is_of_its_size(kind: str) -> None:
    low, high = {"dog": (0.3, 1.3), "cat": (0.2, 0.6)}[kind]
    for seed in range(24):
        mesh = animal(kind, Noise(1), np.random.default_rng(seed), walks=True)
        assert mesh.vertices[:, 2].min() == pytest.approx(0.0, abs=0.01)
        assert low < mesh.vertices[:, 2].max() < high
        assert np.isfinite(mesh.vertices).all()
        assert np.isfinite(mesh.normals).all()


@pytest.mark.parametrize("kind", STANCES)
def test_feet_that_carry_touch_the_ground(kind: str) -> None:
    feet = stance(kind, HIP_Z, 0.8, False, np.random.default_rng(3)).feet
    assert sum(foot.up == 0 for foot in feet) >= 2
    assert all(0 <= foot.up < 0.2 for foot in feet)


def test_animals_alter_no_picture_that_has_none() -> None:
    """The share decides how many pictures have animals, and nothing else; some of those have no people."""
    alone = 0
    for number in range(8):
        none, some, every = (draw(SEED, number, share) for share in (0.0, 0.25, 1.0))
        assert animals(none) == 0
        assert animals(every) <= 4
        same = every if animals(some) else none
        assert [thing.name for thing in some.things] == [thing.name for thing in same.things]
        assert some.camera == same.camera
        alone += animals(every) > 0 and people(every) == 0
    assert alone > 0


@pytest.mark.parametrize("option", ["--animals", "--empty"])
def test_a_share_is_between_none_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main(["practice", "--out", str(tmp_path), "--pictures", "1", option, "2"]) == 2
    assert f"{option} is a share" in capsys.readouterr().err


def test_an_empty_picture_is_the_same_place_without_anybody() -> None:
    for number in range(4):
        full, empty = draw(SEED, number), draw(SEED, number, empty=1.0)
        assert (people(empty), animals(empty)) == (0, 0)
        assert [each.name for each in empty.things] == [each.name for each in full.things][: len(empty.things)]
        assert (empty.camera, empty.weather.name) == (full.camera, full.weather.name)


def test_ground_is_taken_once() -> None:
    plot = Plot()
    assert plot.take(Patch(0.0, 10.0, np.pi / 2, 1.0, 3.0))
    assert not plot.stand(2.5, 10.5, 0.3)  # turned east: it lies along x
    assert not plot.take(Patch(3.5, 10.0, 0.0, 1.0, 1.0))
    assert plot.stand(0.0, 12.0, 0.3)
