"""What of an alert may leave the site, and how images that leave are redacted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from test_escalation_evidence import asked, last_word, media, state, wants
from test_evidence import Site

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError
from appliance.config import CameraConfig, SiteConfig, load
from appliance.evidence.privacy import PeopleInFrame, PrivacyEgressPolicy, PrivacyRules, Redactor, people_in_frame
from appliance.media.stills import CELLS, GREY, redact
from appliance.replay.replay_routing import router_context_of
from appliance.router.escalation_planner import EscalationPlanner
from appliance.rules.weekly_hours import LocalTime
from appliance.store.audit import AuditKind, AuditRow, AuditStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.types import Alert, AlertChange, Box, Event, FrameBoxes, StreamHeader, TrackedObject
from tests.support.sample_rows import BOX, T0, best, opened, sample_escalation

LEFT = [[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [0.0, 1.0]]
MONDAY_NOON, MONDAY_NIGHT = (0, 12 * 60), (0, 23 * 60)
OTHER: Box = (0.7, 0.2, 0.9, 0.9)


def rules_of(config: SiteConfig, local_time: LocalTime | None) -> PrivacyRules:
    return PrivacyRules(config.site, config.cameras, local_time)


def site(**camera: Any) -> SiteConfig:
    section = {"url": "file:clip.mp4", "zones": {"left": LEFT, "z": LEFT}, **camera}
    return SiteConfig.model_validate({"cameras": {"yard": section}, "uplink": {"url": "nats://127.0.0.1:4222"}})


def at(x: float, zone: str = "all") -> Event:
    """Somebody whose feet are at (x, 0.8)."""
    return Event(
        camera="yard",
        rule="r",
        kind="enter",
        track=1,
        label="person",
        t=T0,
        zone=zone,
        box=(x - 0.1, 0.2, x + 0.1, 0.8),
    )


class TestNever:
    def test_without_rules_everything_may_leave(self) -> None:
        assert rules_of(site(), None).level(at(0.2)) == "free"

    def test_true_means_the_camera_always(self) -> None:
        rules = rules_of(site(privacy={"never": True}), lambda t: MONDAY_NOON)
        assert rules.level(at(0.9)) == "never"

    def test_a_zone_forbids_who_stands_in_it_whatever_rule_fired(self) -> None:
        rules = rules_of(site(privacy={"never": [{"zones": ["left"]}]}), None)
        assert rules.level(at(0.2, zone="other")) == "never"
        assert rules.level(at(0.9, zone="left")) == "never", "the event itself names the zone"
        assert rules.level(at(0.9, zone="other")) == "free"

    def test_an_object_whose_place_is_not_known_is_forbidden(self) -> None:
        rules = rules_of(site(privacy={"never": [{"zones": ["left"]}]}), None)
        nowhere = Event(camera="yard", rule="r", kind="line", track=1, label="person", t=T0, line="door")
        assert rules.level(nowhere) == "never"

    def test_hours_are_local_time(self) -> None:
        config = site(privacy={"never": [{"hours": ["22:00-06:00"]}]})
        assert rules_of(config, lambda t: MONDAY_NIGHT).level(at(0.2)) == "never"
        assert rules_of(config, lambda t: MONDAY_NOON).level(at(0.2)) == "free"
        assert rules_of(config, None).level(at(0.2)) == "never", "a clip without a time of day"

    def test_never_comes_before_image_free(self) -> None:
        assert rules_of(site(privacy={"never": True}, image_free=True), None).level(at(0.2)) == "never"
        assert rules_of(site(image_free=True), None).level(at(0.2)) == "image_free"

    def test_of_a_camera_that_is_gone_from_the_site_file_nothing_leaves(self) -> None:
        gone = Event(camera="old", rule="r", kind="enter", track=1, label="person", t=T0)
        assert rules_of(site(), None).level(gone) == "never"

    def test_a_zone_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "site.yaml"
        for key, said in (("mask", ["door"]), ("never", [{"zones": ["door"]}])):
            path.write_text(yaml.safe_dump({"cameras": {"yard": {"url": "file:x", "privacy": {key: said}}}}))
            with pytest.raises(ConfigError) as error:
                load(path)
            assert f"privacy.{key}: there is no zone `door`" in " ".join(map(str, error.value.problems))

    def test_the_router_escalates_nothing_and_gives_the_reason(self) -> None:
        rule = {"name": "r", "kind": "enter", "zone": "left", "severity": "alert"}
        config = site(privacy={"never": [{"zones": ["left"]}]}, rules=[rule])
        planner = EscalationPlanner("yard", config.cameras["yard"].rules, router_context_of(config.for_decisions()))
        planner.begin(StreamHeader(camera="yard", clip="", model="m", size=(640, 480), run="r1"))
        alert = Alert(
            camera="yard",
            id="a",
            rules=("r",),
            severity="alert",
            t_start=T0,
            t_end=None,
            tracks=(1,),
            labels=("person",),
        )
        plan = planner.plan(AlertChange("opened", alert, at(0.2, zone="left")), T0)
        assert plan is not None
        assert (plan.route.ask, plan.escalation) == (False, None)
        assert (plan.route.inputs.privacy, "privacy" in plan.route.reason) == ("never", True)


def veil(**privacy: Any) -> Redactor:
    return Redactor(CameraConfig.model_validate({"url": "file:x", "zones": {"left": LEFT}, "privacy": privacy}))


def redacted(privacy: dict[str, Any], image: NDArray[np.uint8], found: PeopleInFrame) -> NDArray[np.uint8]:
    hidden = veil(**privacy).redaction(found)
    assert hidden is not None
    return redact(image, hidden)


def picture() -> NDArray[np.uint8]:
    """Detail in every pixel."""
    return np.random.default_rng(1).integers(0, 255, (180, 320, 3), np.uint8)


def part(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    return image[round(box[1] * height) : round(box[3] * height), round(box[0] * width) : round(box[2] * width)]


def colours(image: NDArray[np.uint8]) -> int:
    return len(np.unique(image.reshape(-1, 3), axis=0))


class TestVeil:
    def test_without_rules_nothing_is_redacted(self) -> None:
        assert veil().redaction(PeopleInFrame((OTHER,), (BOX,))) is None

    def test_other_people_become_a_few_squares_and_the_rest_stays(self) -> None:
        image = picture()
        before = image.copy()
        shown = redacted({"blur": "people"}, image, PeopleInFrame((OTHER,), (BOX,)))
        assert colours(part(shown, OTHER)) <= (CELLS + 1) * 4 * CELLS, "no pixel of them is left"
        assert not np.array_equal(part(shown, OTHER), part(before, OTHER))
        assert np.array_equal(part(shown, BOX), part(before, BOX))
        assert np.array_equal(shown[:20, :20], before[:20, :20])
        assert np.array_equal(image, before), "the picture for the people of the house is not touched"

    def test_without_an_examined_frame_all_but_the_alert_s_own_is_hidden(self) -> None:
        image = picture()
        shown = redacted({"blur": "people"}, image, PeopleInFrame(None, (BOX,)))
        assert np.array_equal(part(shown, BOX), part(image, BOX))
        assert colours(shown[:, 200:]) <= 4 * CELLS * CELLS

    def test_where_not_even_that_is_known_all_of_it(self) -> None:
        assert colours(redacted({"blur": "people"}, picture(), PeopleInFrame(None, ()))) <= 4 * CELLS * CELLS

    def test_surroundings_hides_what_no_detector_found(self) -> None:
        image = picture()
        shown = redacted({"blur": "surroundings"}, image, PeopleInFrame((), (BOX,)))
        assert np.array_equal(part(shown, BOX), part(image, BOX))
        assert colours(part(shown, OTHER)) <= 4 * CELLS * CELLS

    def test_a_mask_hides_even_the_alert_s_own(self) -> None:
        shown = redacted({"mask": ["left"]}, picture(), PeopleInFrame((), (BOX,)))
        assert np.all(shown[:, :158] == GREY)
        assert colours(shown[:, 170:]) > 1000

    def test_the_digest_distinguishes_rules(self) -> None:
        marks = [veil(**said).digest for said in ({}, {"blur": "people"}, {"blur": "surroundings"}, {"mask": ["left"]})]
        assert marks[0] == ""
        assert len(set(marks)) == 4

    def test_a_mosaic_has_no_square_smaller_than_a_quarter(self) -> None:
        """What a face would need to be known again."""
        flat = redacted({"blur": "surroundings"}, picture(), PeopleInFrame((), ()))
        edges = np.flatnonzero(np.any(np.diff(flat.astype(int), axis=1) != 0, axis=(0, 2)))
        assert np.diff(edges).min() >= 180 // CELLS


class TestCompany:
    def look(self, t: float, *people: tuple[int, Box, str]) -> FrameBoxes:
        objects = tuple(TrackedObject(track=n, label=label, score=0.9, box=box) for n, box, label in people)
        return FrameBoxes(camera="yard", seq=0, frame=0, t=t, looked=True, objects=objects)

    def test_others_are_people_who_are_not_the_alert_s_in_any_frame_near_it(self) -> None:
        seen = [
            self.look(T0 - 5, (3, (0, 0, 0.1, 0.1), "person")),
            self.look(T0 - 0.2, (1, BOX, "person"), (2, OTHER, "person"), (4, OTHER, "car")),
            self.look(T0, (1, BOX, "person")),
        ]
        assert people_in_frame(T0, seen, (1,), None) == PeopleInFrame((OTHER,), (BOX,))

    def test_a_frame_that_was_not_examined_is_none(self) -> None:
        silent = FrameBoxes(camera="yard", seq=0, frame=0, t=T0, looked=False)
        assert people_in_frame(T0, [silent], (1,), BOX) == PeopleInFrame(None, (BOX,))


@pytest.fixture
def make_site(tmp_path: Path) -> Any:
    sites: list[Site] = []

    def make(**camera: Any) -> Site:
        sites.append(Site(tmp_path, {"first": "crops"}, **camera))
        return sites[-1]

    yield make
    for each in sites:
        each.db.close()


class TestWhatIsSent:
    def test_a_bystander_is_hidden_in_the_frame_that_leaves_and_not_in_the_still(self, make_site: Any) -> None:
        site = make_site(privacy={"blur": "people"})
        site.record()
        people = (
            TrackedObject(track=7, label="person", score=0.8, box=BOX),
            TrackedObject(track=8, label="person", score=0.8, box=OTHER),
        )
        frames = [
            FrameBoxes(camera="yard", seq=n, frame=n, t=T0 + n / 5, looked=True, objects=people) for n in range(60)
        ]
        BoxStore(site.db).append("yard", "r1", frames)
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
        site.maker.run_once()
        assert state(site) == ("ready", 0, ("frame",)), "no clip is offered: its packets are copied"
        wants(site, "frame", 0)
        frame = media(site)[-1]
        mark = Redactor(site.config.cameras["yard"]).digest
        assert frame.path.endswith(f".{mark}.webp")
        still = cv2.imread(str(site.root / site.detail().piece("still").path))
        sent = cv2.resize(cv2.imread(str(site.root / frame.path)), (still.shape[1], still.shape[0]))
        own, other = (np.abs(part(sent, box).astype(int) - part(still, box)).mean() for box in (BOX, OTHER))
        assert other > 2 * own

    def test_a_worker_that_needs_the_clip_gets_the_reason_why_there_is_none(self, make_site: Any) -> None:
        site = asked(make_site(privacy={"blur": "surroundings"}))
        wants(site, "clip", 0)
        assert last_word(site)[1].endswith("but this camera sends no clips: its pictures are veiled.")

    def test_an_escalation_that_would_begin_with_a_clip_begins_with_crops(self, make_site: Any) -> None:
        site = make_site(privacy={"mask": ["left"]}, zones={"left": LEFT})
        site.config.escalation.__dict__["first"] = "clip"
        asked(site)
        assert {row.ref.kind for row in media(site)} == {"crop"}


class TestEgress:
    @pytest.fixture
    def site_file(self, tmp_path: Path) -> Path:
        path = tmp_path / "site.yaml"
        path.write_text(f"storage: {{dir: {tmp_path}}}\ncameras: {{gate: {{url: 'file:x'}}}}\n")
        db = Database(tmp_path / "vedette.db", ManualClock(T0))
        kinds: tuple[AuditKind, ...] = ("facts", "crop", "clip")
        for n, kind in enumerate(kinds):
            camera = "gate" if n else "yard"
            AuditStore(db).write(
                AuditRow(
                    t=T0 + n,
                    camera=camera,
                    escalation="q",
                    kind=kind,
                    bytes=1000 * (n + 1),
                    sha256=f"{n}" * 64,
                    why="w",
                )
            )
        db.close()
        return path

    def test_each_thing_that_left_is_a_line_and_the_sum_is_printed(
        self, site_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["egress", "--config", str(site_file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[2] for line in lines[:3]] == ["facts", "crop", "clip"]
        assert lines[3].startswith("3 things left: 1 clip (3.0 kB), 1 crop (2.0 kB), 1 facts (1.0 kB); 6.0 kB in all")

    def test_pixels_alone_of_one_camera_as_json(self, site_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["egress", "--config", str(site_file), "--pictures", "--camera", "gate", "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["kind"], row["bytes"]) for row in rows] == [("crop", 2000), ("clip", 3000)]

    def test_an_empty_span_is_reported_and_one_that_ends_before_it_begins_is_refused(
        self, site_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["egress", "--config", str(site_file), "--from", "2026-01-01T00:00Z"]) == 0
        assert capsys.readouterr().out == "nothing left in that time\n"
        span = ["--from", "2026-01-02T00:00Z", "--to", "2026-01-01T00:00Z"]
        assert main(["egress", "--config", str(site_file), *span]) == 2


class TestBorder:
    """The rules as they stand when a question's turn comes; it may have been made under others."""

    def border(self, *events: Event, **camera: Any) -> PrivacyEgressPolicy:
        config = site(**camera)
        return PrivacyEgressPolicy(rules_of(config, None), config.cameras, lambda alert: events)

    def asked(self, **changes: Any) -> Any:
        return sample_escalation(camera="yard").model_copy(update=changes)

    def test_an_escalation_of_a_camera_that_became_private_stays(self) -> None:
        assert not self.border().forbids(self.asked())
        assert self.border(privacy={"never": True}).forbids(self.asked())
        assert self.border().forbids(self.asked(camera="old")), "the site file no longer knows it"

    def test_where_its_object_stood_is_read_from_the_alert(self) -> None:
        never = {"never": [{"zones": ["left"]}]}
        inside, outside = replace(at(0.2), rule="intruder"), replace(at(0.9), rule="intruder")
        assert self.border(inside, privacy=never).forbids(self.asked())
        assert not self.border(outside, privacy=never).forbids(self.asked())
        assert self.border(privacy=never).forbids(self.asked()), "nobody knows"

    def test_an_image_made_under_other_rules_stays(self) -> None:
        mark = veil(blur="people").digest
        border = self.border(privacy={"blur": "people"})
        assert not border.withholds("yard", f"evidence/a/crop-1.{mark}.webp")
        assert border.withholds("yard", "evidence/a/crop-1.webp")
        assert border.withholds("yard", f"evidence/a/crop-1.{veil(blur='surroundings').digest}.webp")
        assert not self.border().withholds("yard", f"evidence/a/crop-1.{mark}.webp"), "veiled though it need not be"
        assert self.border(image_free=True).withholds("yard", f"evidence/a/crop-1.{mark}.webp")
        assert border.withholds("old", f"evidence/a/crop-1.{mark}.webp")
