"""The rendered fixture family: planted feet, the same pixels every time, light that changes, and what is shipped."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from fixtures.render.__main__ import main
from fixtures.render.animals import DOGS, dog_hide
from fixtures.render.clip import read_rows, seen_rows
from fixtures.render.family.bodies import STRIDE_M, Dog, Person
from fixtures.render.family.held_back import HELD_BACK
from fixtures.render.family.make import SCENES, film
from fixtures.render.family.staging import CLASSES, Take
from fixtures.render.family.studio import SETTLING, Studio, developed
from fixtures.render.human import NOMINAL_M, Build
from fixtures.render.mesh import Mesh, Noise
from fixtures.render.people import Outfit, dressed
from fixtures.render.scene import Place

FAMILY = Path(__file__).parents[2] / "fixtures" / "family"
SIZE_MAX, ALL_MAX = 330_000, 3_000_000
NAMES = tuple(SCENES)
SLIP_MAX_M = 0.004


def small(take: Take) -> Take:
    """A quarter of the pixels each way and no greenery, for speed."""
    camera = take.camera
    size = {"width": camera.width // 4, "height": camera.height // 4, "focal_px": camera.focal_px / 4}
    things = tuple(each for number, each in enumerate(take.things) if number != 3)
    return replace(take, camera=replace(camera, **size), things=things)


def slips(earlier: Mesh, later: Mesh, moved_m: float, low_m: float) -> list[float]:
    """How far each vertex that is on the ground at both moments has slid, in metres."""
    on = (earlier.vertices[:, 2] < low_m) & (later.vertices[:, 2] < low_m)
    return [float(each) for each in np.abs(later.vertices[on, 1] - earlier.vertices[on, 1] + moved_m)]


def test_a_foot_that_carries_does_not_slide() -> None:
    body = Person(Build(NOMINAL_M), dressed(Outfit(*[(0.2, 0.2, 0.2)] * 5), Noise(1), 3.0))
    step = STRIDE_M / 40
    walk = [body(Place(0, 0, 0, k * step, 1.3, 0), 0.0) for k in range(41)]
    for earlier, later in itertools.pairwise(walk):
        # The swinging foot comes near the ground too: those that carry are the ones lowest in both.
        slid = slips(earlier, later, step, 0.004)
        assert slid, "nobody floats"
        assert float(np.median(slid)) < SLIP_MAX_M
    assert np.ptp(np.stack([each.vertices[:, 2].max() for each in walk])) < 0.08


def test_a_dog_does_not_slide() -> None:
    dog = Dog(DOGS[8], dog_hide(Noise(1), np.random.default_rng(1)))
    step = 0.02
    walk = [dog(Place(0, 0, 0, k * step, 1.2, 0), 0.0) for k in range(30)]
    for earlier, later in itertools.pairwise(walk):
        slid = slips(earlier, later, step, 0.012)
        assert slid
        assert float(np.median(slid)) < SLIP_MAX_M


def test_a_frame_is_its_number_alone() -> None:
    """Two studios, other frames before it: the same pixels before they are coded."""
    take, frames = small(SCENES["dusk"]()), [70, 71]
    one = [(index, picture.tobytes(), seen_rows(index, sights)) for index, picture, sights in film(take, frames)]
    (other,) = [
        (index, picture.tobytes(), seen_rows(index, sights))
        for index, picture, sights in film(small(SCENES["dusk"]()), [71])
    ]
    assert one[1] == other
    assert one[0][1] != one[1][1]
    assert {row.kind for row in other[2]} >= {1, 3}


def test_the_switch_to_infrared_goes_dark_then_bright_then_grey_and_then_it_rains() -> None:
    take = replace(small(SCENES["ir_rain"]()), actors=())
    studio = Studio(take)
    level, colour = {}, {}
    for index in (38, 40, 42, 52, 54, 80):
        picture = developed(take, studio.frame(index)[0], index)[10:]
        level[index], colour[index] = float(picture.mean()), int(np.ptp(picture.astype(int), axis=2).max())
    assert colour[38] > 20
    assert max(colour[index] for index in (40, 42, 52, 80)) == 0
    assert level[40] < 0.6 * level[52] < 0.6 * level[42]
    assert level[52] == pytest.approx(level[54], rel=0.05)
    assert take.spell(5.4).rain == 0
    assert take.spell(8.0).rain > 0
    assert len(SETTLING) < take.fps


def test_a_parked_car_is_in_the_truth_of_every_frame() -> None:
    take = small(SCENES["parked"]())
    for _, _, sights in film(take, [0, 90]):
        parked = [sight for sight in sights if sight.mover.number > 100]
        assert len(parked) == 5
        assert all(sight.visibility > 0.3 for sight in parked)


def test_a_wrong_name_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["family", "dask"]) == 2
    assert "did you mean dusk?" in capsys.readouterr().err
    assert main(["family", "--list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(NAMES) + len(HELD_BACK)


def test_a_car_of_the_held_back_car_park_stands_there_from_the_first_frame_and_moves_off() -> None:
    leaves = HELD_BACK["car_park"]().actors[0].mover.track
    places = [leaves.at(t) for t in (0.0, 2.0, 4.5, 6.5)]
    first, still, waiting, gone = [(place.x, place.y) for place in places if place is not None]
    assert first == pytest.approx(still, abs=0.1)
    assert first == pytest.approx(waiting, abs=0.1)
    assert gone[1] > first[1] + 2


def test_every_scene_is_shipped_and_they_are_small() -> None:
    assert {path.stem for path in FAMILY.glob("*.mp4")} == set(NAMES)
    sizes = {path.name: path.stat().st_size for path in FAMILY.iterdir()}
    assert max(sizes.values()) <= SIZE_MAX
    assert sum(sizes.values()) <= ALL_MAX


@pytest.mark.parametrize("name", NAMES)
def test_truth_fits_the_pictures(name: str) -> None:
    story = json.loads((FAMILY / f"{name}.truth.json").read_text())
    rows = read_rows(FAMILY / f"{name}.gt.txt")
    with av.open(str(FAMILY / f"{name}.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", story["width"], story["height"])
        packets = [packet for packet in container.demux(stream) if packet.size]
    assert len(packets) == story["frames"]
    assert [k for k, packet in enumerate(packets) if packet.is_keyframe] == list(range(0, len(packets), 20))
    assert {row.frame for row in rows} <= set(range(1, story["frames"] + 1))
    assert all(r.x >= 0 and r.y >= 0 and r.x + r.w <= story["width"] and r.y + r.h <= story["height"] for r in rows)
    assert {row.number for row in rows} == {each["id"] for each in story["objects"]}
    assert {str(row.kind) for row in rows} == set(story["classes"])
    assert all(CLASSES[int(kind)] == label for kind, label in story["classes"].items())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_shipped_is_what_is_rendered(name: str) -> None:
    take = SCENES[name]()
    frames = [take.frames // 2, take.frames - 20]
    shipped = read_rows(FAMILY / f"{name}.gt.txt")
    with av.open(str(FAMILY / f"{name}.mp4")) as container:
        coded = {
            k: frame.to_ndarray(format="rgb24") for k, frame in enumerate(container.decode(video=0)) if k in frames
        }
    for index, picture, sights in film(take, frames):
        assert [row.line() for row in seen_rows(index, sights)] == [r.line() for r in shipped if r.frame == index + 1]
        assert float(np.abs(picture.astype(int) - coded[index]).mean()) < 8
