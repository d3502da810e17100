"""The evidence of an escalation, step by step: crops that fit, the whole frame, the clip, and why there is no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from test_evidence import Site

from appliance import wire
from appliance.base.errors import EvidenceError
from appliance.config import EscalationConfig
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.evidence.evidence_selection import (
    CROP_SIDE_MAX,
    EncodedImage,
    EvidenceMoment,
    ImageSet,
    best_moment,
    box_in_region,
    encoded_image,
    order_image,
    plan_evidence,
)
from appliance.media.recording_reader import DirectReader
from appliance.media.stills import crop_region, encode_within, make_image
from appliance.store.alerts import AlertStore
from appliance.store.escalations import EscalationStore, MediaRow
from appliance.types import Box
from tests.support.numbered_footage import encoded_footage, number
from tests.support.sample_rows import BOX, T0, best, event, opened, sample_escalation, sample_frame, sample_verdict

SETTINGS = EscalationConfig()


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """What no codec can make small."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def scene(width: int = 1280, height: int = 720) -> NDArray[np.uint8]:
    """A frame with detail everywhere, and a person-sized white block at (0.5, 0.5)."""
    rough = cv2.resize(noise(width // 8, height // 8), (width, height), interpolation=cv2.INTER_CUBIC)
    rough[height // 2 - 60 : height // 2 + 60, width // 2 - 20 : width // 2 + 20] = 255
    return np.asarray(rough, np.uint8)


PERSON: Box = (0.5 - 20 / 1280, 0.5 - 60 / 720, 0.5 + 20 / 1280, 0.5 + 60 / 720)


def encode_image(
    images: ImageSet, settings: EscalationConfig, box: Box | None, image: NDArray[np.uint8]
) -> EncodedImage:
    moment = EvidenceMoment(T0, box)
    order = order_image(images, settings, moment)
    return encoded_image(order, T0, moment, make_image(image, order))


class TestEncodedImage:
    def test_a_crop_shows_the_object_with_its_surroundings_and_where_it_is_from(self) -> None:
        encoded = encode_image("crops", SETTINGS, PERSON, scene())
        assert (encoded.ref.kind, encoded.ref.mime, encoded.ref.width, encoded.ref.height) == (
            "crop", "image/webp", 300, 300,
        )  # fmt: skip
        assert encoded.ref.region == pytest.approx((490 / 1280, 210 / 720, 790 / 1280, 510 / 720), abs=1e-3)
        shown = cv2.imdecode(np.frombuffer(encoded.data, np.uint8), cv2.IMREAD_COLOR)
        assert encoded.ref.box == pytest.approx((130 / 300, 0.3, 170 / 300, 0.7), abs=0.01)
        x1, y1, x2, y2 = (round(side * 300) for side in encoded.ref.box or ())
        assert shown[y1 + 3 : y2 - 3, x1 + 3 : x2 - 3].mean() > 250, "the box is where the object is in this image"
        assert shown[:, :100].mean() < 200

    @pytest.mark.parametrize("bytes_max", [2048, 6000, 12 * 1024])
    def test_a_crop_is_bounded_whatever_it_shows(self, bytes_max: int) -> None:
        settings = SETTINGS.model_copy(update={"crop_bytes_max": bytes_max})
        for image in (scene(), noise(1280, 720), noise(64, 48)):
            for box in (PERSON, (0.0, 0.0, 1.0, 1.0), (0.9, 0.9, 1.0, 1.0), (0.5, 0.5, 0.5, 0.5)):
                encoded = encode_image("crops", settings, box, image)
                assert len(encoded.data) <= bytes_max
                assert max(encoded.ref.width, encoded.ref.height) <= CROP_SIDE_MAX
                assert encoded.ref.bytes == len(encoded.data)

    def test_the_quality_goes_first_and_then_the_size(self) -> None:
        image = noise(300, 300)
        sizes = [encode_within(image, 300, limit)[1].shape[0] for limit in (1_000_000, 30_000, 10_000)]
        assert sizes[0] == 300 > sizes[-1]
        assert sizes == sorted(sizes, reverse=True)
        with pytest.raises(EvidenceError, match="does not fit into 30 bytes"):
            encode_within(image, 300, 30)

    def test_no_image_is_enlarged(self) -> None:
        for cut in ("crops", "frame", "frames"):
            encoded = encode_image(cut, SETTINGS, (0.4, 0.4, 0.6, 0.6), scene(160, 90))  # type: ignore[arg-type]
            assert encoded.ref.width <= 160
            assert encoded.ref.height <= 90

    def test_without_a_box_the_whole_frame_goes_as_small(self) -> None:
        encoded = encode_image("crops", SETTINGS, None, scene())
        assert (encoded.ref.kind, encoded.ref.box, encoded.ref.region) == ("frame", None, None)
        assert encoded.ref.width <= CROP_SIDE_MAX
        assert encoded.ref.bytes <= SETTINGS.crop_bytes_max

    def test_the_whole_frame_is_bounded_too_and_holds_the_box(self) -> None:
        encoded = encode_image("frame", SETTINGS, PERSON, noise(1920, 1080))
        assert (encoded.ref.kind, encoded.ref.box, encoded.ref.region) == ("frame", PERSON, None)
        assert encoded.ref.bytes <= SETTINGS.frame_bytes_max

    @pytest.mark.parametrize("box", [(0, 0, 0.02, 0.05), (0.97, 0.9, 1, 1), (0, 0, 1, 1), (0.4, 0, 0.6, 1)])
    def test_a_region_lies_in_the_frame_and_holds_the_box(self, box: Box) -> None:
        left, top, right, bottom = crop_region(box, 640, 360)
        assert 0 <= left <= box[0] * 640 + 1
        assert 0 <= top <= box[1] * 360 + 1
        assert box[2] * 640 - 1 <= right <= 640
        assert box[3] * 360 - 1 <= bottom <= 360
        place = box_in_region(box, (left / 640, top / 360, right / 640, bottom / 360))
        assert all(0 <= side <= 1 for side in place)


class TestPlan:
    def test_each_beginning_offers_what_it_has_not_sent(self) -> None:
        assert [plan_evidence(first, None, 0).can for first in ("facts", "crops", "frames", "clip")] == [
            ("crop", "frame", "clip"),
            ("frame", "clip"),
            ("clip",),
            ("frame",),
        ]

    def test_what_was_sent_first_is_not_offered_again(self) -> None:
        assert plan_evidence("clip", "frame", 1).can == ()
        assert plan_evidence("crops", "frame", 1).can == plan_evidence("facts", "frame", 1).can == ("clip",)

    def test_after_the_third_message_there_is_no_more(self) -> None:
        for first in ("facts", "crops", "frames", "clip"):
            offered, step = plan_evidence(first, None, 0).can, 0
            while offered:
                step += 1
                offered = plan_evidence(first, offered[0], step).can
            assert step < wire.STEPS_MAX

    def test_the_whole_frame_is_the_one_with_the_best_view(self) -> None:
        seen = [sample_frame(T0 + n, seq=n, box=(0.2, 0.2, 0.2 + 0.1 * size, 0.9)) for n, size in enumerate((1, 4, 3))]
        assert best_moment(event(T0 + 3), seen).t == T0 + 1
        assert best_moment(event(T0 + 3), []) == EvidenceMoment(T0 + 3, BOX)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(**settings: object) -> Site:
        camera = {key: settings.pop(key) for key in ("record", "image_free") if key in settings}
        sites.append(Site(tmp_path, {"first": "crops", **settings}, **camera))
        return sites[-1]

    yield make
    for site in sites:
        site.db.close()


def asked(site: Site) -> Site:
    """A recording with someone in it, and a question about them at 3 s."""
    site.record()
    site.see([n / 5 for n in range(60)])
    site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
    site.maker.run_once()
    return site


def wants(site: Site, kind: wire.Need, step: int) -> None:
    """The cloud wants to see more, and the maker looks after it."""
    row = site.detail().escalation
    assert row is not None
    with site.db.transaction() as connection:
        connection.execute("UPDATE escalation SET state = 'sent' WHERE state = 'ready'")
    verdict = sample_verdict(decision="unsure").model_copy(update={"need": kind, "step": step})
    assert AlertStore(site.db).take_verdict(verdict, site.clock.now()) == "more"
    site.maker.run_once()


def media(site: Site) -> list[MediaRow]:
    return EscalationStore(site.db).media("q1")


def state(site: Site) -> tuple[str, int, tuple[wire.Need, ...]]:
    row = site.detail().escalation
    assert row is not None
    return row.state, row.body.step, row.body.can


def last_word(site: Site) -> tuple[str, str]:
    found = site.detail().verdict
    assert found is not None
    return found.decision, found.body.reason


class TestSteps:
    def test_crops_then_the_whole_frame_then_the_clip(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site())
        assert state(site) == ("ready", 0, ("frame", "clip"))
        assert [(row.ref.kind, row.path) for row in media(site)] == [
            ("crop", "evidence/a1/crop-1.webp"),
            ("crop", "evidence/a1/crop-2.webp"),
        ]
        assert site.detail().piece("crop") is not None, "the alert's own crop is another"

        wants(site, "frame", 0)
        assert state(site) == ("ready", 1, ("clip",))
        frame = media(site)[2]
        assert (frame.ref.kind, frame.ref.width, frame.ref.box) == ("frame", 160, BOX)
        assert number(cv2.imread(str(site.root / frame.path))) == 10, "of equals the first"

        wants(site, "clip", 1)
        assert state(site) == ("ready", 2, ())
        clip = media(site)[3]
        assert (clip.ref.kind, clip.ref.mime) == ("clip", "video/mp4")
        assert clip.ref.t == pytest.approx(T0 + 1, abs=0.01)
        with av.open(str(site.root / clip.path)) as shown:
            frames = [number(each.to_ndarray(format="bgr24")) for each in shown.decode(video=0)]
        assert (frames[0], frames[-1]) == (10, 40), "from before the event until a second after it"
        row = site.detail().escalation
        assert row is not None
        assert [ref.id for ref in row.body.media] == [each.ref.id for each in media(site)]
        assert [step.evidence for step in site.detail().steps] == ["crop", "frame", "clip"]

    def test_facts_alone_go_at_once_and_images_on_request(self, make_site: Callable[..., Site]) -> None:
        site = make_site(first="facts")
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
        assert site.maker.run_once() == 1, "nothing is on disk yet, and nothing is needed"
        assert (state(site), media(site)) == (("ready", 0, ("crop", "frame", "clip")), [])
        site.record()
        site.see([n / 5 for n in range(60)])
        wants(site, "crop", 0)
        assert state(site) == ("ready", 1, ("frame", "clip"))
        assert [row.ref.kind for row in media(site)] == ["crop", "crop"]

    def test_a_clip_may_be_the_beginning(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site(first="clip"))
        assert state(site) == ("ready", 0, ("frame",))
        assert [row.ref.kind for row in media(site)] == ["crop", "crop", "clip"]

    def test_the_clip_is_waited_for_until_its_end_is_on_disk(self, make_site: Callable[..., Site]) -> None:
        site = make_site()
        site.see([n / 5 for n in range(16)])
        site.put(encoded_footage(0, 40), T0, until=T0 + 3.5)
        site.apply(opened(t=T0 + 3, view=best(T0 + 3)), sample_escalation(t=T0 + 3))
        site.maker.run_once()
        wants(site, "clip", 0)
        assert state(site)[0] == "waiting"
        site.record()
        site.maker.run_once()
        assert state(site) == ("ready", 1, ())

    def test_a_clip_that_is_too_large_is_cut_shorter(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site())
        site.maker.run_once()
        wants(site, "clip", 0)
        whole = media(site)[-1].ref.bytes
        assert whole > 0
        tight = site.config.escalation.model_copy(update={"clip_bytes_max": whole * 3 // 4})
        config = site.config.model_copy(update={"escalation": tight})
        site.maker = EvidenceMaker(site.db, site.root, config.for_decisions(), site.clock)
        site.apply(opened("a2", t=T0 + 8, view=best(T0 + 8)), sample_escalation("q2", of="a2", t=T0 + 8))
        site.maker.run_once()
        with site.db.transaction() as connection:
            connection.execute("UPDATE escalation SET state = 'sent' WHERE id = 'q2'")
        verdict = sample_verdict("q2", of="a2", decision="unsure").model_copy(update={"need": "clip", "step": 0})
        AlertStore(site.db).take_verdict(verdict, T0)
        site.maker.run_once()
        assert 0 < EscalationStore(site.db).media("q2")[-1].ref.bytes <= whole * 3 // 4

    def test_a_clip_that_is_too_large_is_not_kept_if_it_cannot_be_cut_shorter(
        self, make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file stayed on disk, and no row named it."""
        site = asked(make_site())
        cut: list[Path] = []

        def clip(reader: DirectReader, segments: object, t0: float, t1: float, path: Path, **_: object) -> object:
            if cut:
                raise EvidenceError("the recording is gone meanwhile")
            path.write_bytes(b"large")
            cut.append(path)
            return SimpleNamespace(written=SimpleNamespace(bytes=1 << 30))

        monkeypatch.setattr(DirectReader, "clip", clip)
        wants(site, "clip", 0)
        assert cut
        assert not cut[0].exists()

    def test_what_the_recording_lost_is_shown_by_the_still(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site())
        site.maker.run_once()
        assert site.detail().row.evidence.still == "ready"
        lose_recording(site)
        wants(site, "frame", 0)
        site.pass_time(21)
        assert state(site)[:2] == ("ready", 1)
        frame = media(site)[2]
        assert (frame.ref.kind, frame.ref.box) == ("frame", BOX)
        assert number(cv2.imread(str(site.root / frame.path))) == 30

    def test_what_is_lost_everywhere_ends_the_escalation_with_the_reason(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site())
        lose_recording(site)
        wants(site, "clip", 0)
        site.pass_time(21)
        assert last_word(site)[0] == "unsure"
        assert "It asked for the clip, but" in last_word(site)[1]
        assert site.maker.run_once() == 0

    def test_a_restart_between_two_steps_goes_on_where_it_was(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site())
        row = site.detail().escalation
        assert row is not None
        with site.db.transaction() as connection:
            connection.execute("UPDATE escalation SET state = 'sent'")
        verdict = sample_verdict(decision="unsure").model_copy(update={"need": "frame", "step": 0})
        AlertStore(site.db).take_verdict(verdict, T0)
        again = EvidenceMaker(site.db, site.root, site.config.for_decisions(), site.clock)
        assert again.run_once() >= 1
        assert state(site)[:2] == ("ready", 1)
        assert again.run_once() == 0
        assert len(media(site)) == 3


class TestImageFree:
    def test_the_facts_go_alone_and_nothing_is_cut_for_the_cloud(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site(image_free=True))
        row = site.detail().escalation
        assert row is not None
        assert (row.state, row.body.media, row.body.can, row.body.image_free) == ("ready", (), (), True)
        assert media(site) == []
        assert {each.kind for each in site.detail().evidence} == {"still", "crop", "clip", "boxes"}
        assert not list((site.root / "evidence/a1").glob("*.webp")), "what people see stays on the box"

    def test_a_worker_that_requests_more_all_the_same_gets_the_reason(self, make_site: Callable[..., Site]) -> None:
        site = asked(make_site(image_free=True))
        wants(site, "frame", 0)
        assert last_word(site)[0] == "unsure"
        assert last_word(site)[1].endswith("It asked for the whole picture, but this site sends no pictures.")
        assert media(site) == []


def lose_recording(site: Site) -> None:
    """Retention has deleted the segments."""
    with site.db.transaction() as connection:
        connection.execute("DELETE FROM segment")
    for path in (site.root / "segments/yard").glob("*.mp4"):
        path.unlink()
