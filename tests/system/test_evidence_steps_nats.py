"""A question that takes several messages, over a real nats-server: asked for more, sent just that, settled once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest
from nats.js.api import ConsumerConfig
from test_escalation_nats import ask_broker, language_model, left_in_queue, make_streams, second_look

from appliance import config, wire
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.evidence.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.router.escalation_planner import build_escalation
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.segments import SegmentStore
from appliance.types import Alert, AlertChange, BestView, Event
from appliance.uplink.uplink_service import UplinkService
from cloud_worker import stream_setup
from cloud_worker.config import StreamsConfig
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer
from tests.servers.openai_stub import OpenAiStub, kinds_shown, openai_stub
from tests.servers.red_camera import one, red_appliance, red_clip, rows
from tests.servers.rtsp import FaultyRtspServer
from tests.servers.site import RULE, Site
from tests.servers.worker import worker
from tests.support import wire_v1
from tests.support.numbered_footage import encoded_footage, record
from tests.support.sample_rows import BOX, sample_frame
from tests.support.waiting import until

T0 = 1_700_000_000.0


@pytest.fixture
def stub() -> Iterator[OpenAiStub]:
    with openai_stub() as made:
        yield made


class WatchedSite(Site):
    """A site with a camera that has recorded 16 s of somebody, and the evidence maker that cuts from that."""

    def __init__(self, folder: Path, url: str, *, image_free: bool = False, **escalation: object) -> None:
        self.config = config.SiteConfig.model_validate(
            {
                "site": {"name": "depot-7", "image_free": image_free},
                "cameras": {"yard": {"url": "file:clip.mp4"}},
                "escalation": escalation,
            }
        )
        super().__init__(folder, url)
        self.maker = EvidenceMaker(self.db, folder, self.config.for_decisions(), self.clock, ready=self._wake)

    def _wake(self) -> None:
        self.service.wake()

    def encoded_footage(self) -> WatchedSite:
        CameraStore(self.db).ensure({"yard": "file:clip.mp4"})
        for n in range(0, 16, 4):
            SegmentStore(self.db).put(record(self.root, encoded_footage(10 * n, 40, size=(640, 480)), T0 + n))
        BoxStore(self.db).append("yard", "r1", [sample_frame(T0 + n / 5, seq=n) for n in range(80)])
        return self

    def flag(self, n: int, t: float = 3.0) -> str:
        """Somebody enters at `t` of the film: alert number `n`, and a question about it."""
        event = Event(
            camera="yard", rule="intruder", kind="enter", track=7, label="person", t=T0 + t, score=0.8, box=BOX,
            zone="yard", id=f"e-{n}",
        )  # fmt: skip
        alert = Alert(
            camera="yard", id=f"alert-{n}", rules=("intruder",), severity="alert", t_start=T0 + t, t_end=None,
            tracks=(7,), labels=("person",), score=0.8, run="r1",
            best=BestView(track=7, label="person", t=T0 + t, score=0.8, box=BOX),
        )  # fmt: skip
        question = build_escalation(alert, event, RULE, site=self.name, now=self.clock.now(), model="m")
        self.alerts.apply(AlertChange("opened", alert, event), escalation=question, priority="high")
        return question.id

    def settle(self, *numbers: int) -> None:
        """Let the evidence maker work until the questions are settled."""
        until(lambda: self.maker.run_once() >= 0 and self.settled(*numbers), 30)

    def steps(self, n: int) -> list[tuple[str, str | None]]:
        return [(step.evidence, step.answer and step.answer.need) for step in self.detail(n).steps]

    def settled_at(self, n: int) -> tuple[str, int]:
        row = self.detail(n).verdict
        assert row is not None
        assert row.body.step == row.step
        return row.decision, row.step

    def _service(self) -> UplinkService:
        return UplinkService(
            self.settings, self.name, self.deps, self.clock,
            egress_policy=PrivacyEgressPolicy(
                PrivacyRules(self.config.site, self.config.cameras, None), self.config.cameras, self.alerts.events_of
            ),
        )  # fmt: skip


@contextlib.contextmanager
def watched(folder: Path, url: str, **options: object) -> Iterator[WatchedSite]:
    folder.mkdir(parents=True, exist_ok=True)
    made = WatchedSite(folder, url, **options)  # type: ignore[arg-type]
    try:
        yield made.encoded_footage().connect()  # type: ignore[misc]
    finally:
        made.close()


def media_left(url: str) -> list[str]:
    """The media messages that the broker holds: those that ever left a site, as none is deleted in a test."""

    async def subjects(js: object) -> list[str]:
        info = await js.stream_info(wire.STREAM_MEDIA, subjects_filter=">")  # type: ignore[attr-defined]
        assert info.state.messages == len(info.state.subjects or {})
        return sorted(info.state.subjects or {})

    found = ask_broker(url, subjects)
    assert isinstance(found, list)
    return found


def test_crops_that_do_not_settle_it_are_followed_by_the_whole_frame_and_no_more(
    broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    stub.mode = "needs frame"
    make_streams(broker.url)
    with watched(tmp_path / "site", broker.url) as here, worker(broker.url, language_model(stub)) as judge:
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("confirmed", 1)
        assert here.steps(1) == [("crop", "frame"), ("frame", None)]
        assert [kinds_shown(request) for request in stub.requests] == [["crop", "crop"], ["frame", "crop", "crop"]]
        refs = [row.ref for row in here.outbox.media_of(here.detail(1).escalations[0].id)]
        assert media_left(broker.url) == sorted(wire.media_subject(here.name, ref.id, 0) for ref in refs)
        detail = here.detail(1)
        assert [step.bytes_sent > 0 for step in detail.steps] == [True, True]
        totals = here.meter_totals()
        assert sum(step.bytes_sent for step in detail.steps) == detail.escalations[0].bytes_sent
        assert totals["uplink_bytes_crop"] + totals["uplink_bytes_frame"] + totals["uplink_bytes_facts"] == sum(
            step.bytes_sent for step in detail.steps
        )
        with here.db.read() as connection:
            left = [row[0] for row in connection.execute("SELECT kind FROM audit ORDER BY id")]
        assert left == ["crop", "crop", "facts", "frame", "facts"]
        assert (here.service.verdicts.more, here.service.verdicts.applied) == (1, 1)
        assert judge.worker is not None
        assert (judge.worker.counts.judged, judge.worker.counts.more) == (2, 1)
        until(lambda: left_in_queue(broker.url) == 0)
    assert stub.complaints == []


def test_crops_that_settle_it_are_all_that_leaves(one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub) -> None:
    with watched(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, language_model(stub)):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("confirmed", 0)
        assert here.steps(1) == [("crop", None)]
        assert len(media_left(one_broker.url)) == 2


def test_the_clip_is_the_last_step_and_the_model_sees_frames_of_it(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    stub.mode = "needs clip"
    with watched(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, language_model(stub)):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("confirmed", 2)
        assert here.steps(1) == [("crop", "frame"), ("frame", "clip"), ("clip", None)]
        shown = kinds_shown(stub.requests[-1])
        assert (sorted(shown), len(shown)) == (["clip", "clip", "clip", "frame"], 4)
    assert stub.complaints == []


def test_a_model_that_is_never_sure_gets_three_messages_and_no_more(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    stub.mode = "unsure"
    with (
        watched(tmp_path / "site", one_broker.url, first="facts") as here,
        worker(one_broker.url, language_model(stub)) as judge,
    ):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("unsure", 2)
        assert here.steps(1) == [("facts", "crop"), ("crop", "frame"), ("frame", None)]
        assert len(stub.requests) == 2, "without a picture the model is not asked"
        assert judge.worker is not None
        assert judge.worker.counts.judged == wire.STEPS_MAX


def test_a_model_that_talks_nonsense_is_not_sent_more_for_it(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    stub.mode = "prose"
    with watched(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, language_model(stub)):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("unsure", 0)


def test_whole_frames_first_is_as_it_was(one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub) -> None:
    with (
        watched(tmp_path / "site", one_broker.url, first="frames", frames=3) as here,
        worker(one_broker.url, language_model(stub)),
    ):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("confirmed", 0)
        assert kinds_shown(stub.requests[0]) == ["frame"] * 3


def test_a_detector_engine_requests_the_whole_frame_and_never_for_a_clip(broker: NatsServer, tmp_path: Path) -> None:
    engine, detector = second_look(0.2, 0.2, 0.2, 0.2, 0.9)  # both crops, twice; then the whole picture
    with watched(tmp_path / "site", broker.url) as here, worker(broker.url, engine):
        here.flag(1)
        here.settle(1)
        assert here.settled_at(1) == ("rechecked", 1)
        assert len(detector.seen) == 6, "a crop is looked at once, a whole picture also closely"
        blind, _ = second_look(0.2)
    with watched(tmp_path / "site", broker.url) as here, worker(broker.url, blind):
        here.flag(2, 8.0)
        here.settle(2)
        assert here.settled_at(2) == ("unsure", 1)


def needs_more(here: WatchedSite, n: int, step: int) -> wire.Verdict:
    escalation = here.detail(n).escalations[0]
    return wire.Verdict(
        escalation=escalation.id, site=here.name, alert=f"alert-{n}", decision="unsure", reason="Too small to tell.",
        engine="e", model="m", seconds=0.1, judged_t=0.0, need="frame", step=step,
    )  # fmt: skip


def say(url: str, verdict: wire.Verdict) -> None:
    """Publish without an id, so that the broker lets it through as often as it is said."""
    ask_broker(url, lambda js: js.publish(wire.verdict_subject(verdict.site), verdict.to_json()))


def test_a_request_delivered_twice_is_answered_once(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    make_streams(one_broker.url)
    with watched(tmp_path / "site", one_broker.url) as here:
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("sent") == 1)
        request = needs_more(here, 1, 0)
        say(one_broker.url, request)
        say(one_broker.url, request)
        until(lambda: here.service.verdicts.known == 1)
        until(lambda: here.maker.run_once() >= 0 and here.count("sent") == 1)
        say(one_broker.url, request)
        until(lambda: here.service.verdicts.known == 2)
        assert here.detail(1).escalations[0].step == 1
        assert len(media_left(one_broker.url)) == 3
        with worker(one_broker.url, engine):
            here.settle(1)
        say(one_broker.url, request)
        until(lambda: here.service.verdicts.known >= 3)
        assert here.service.verdicts.applied == 1
        assert here.settled_at(1)[0] == "rechecked"


def test_an_appliance_that_dies_between_any_two_steps_loses_nothing_and_sends_nothing_twice(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    """Every life does one thing: the database and the files are all that the next one has."""
    stub.mode = "needs clip"
    make_streams(one_broker.url)

    def life(until_then: Callable[[WatchedSite], bool], *, link: bool, makes: bool) -> None:
        here = WatchedSite(tmp_path / "site", one_broker.url)
        try:
            if link:
                here.connect()
            until(lambda: (here.maker.run_once() if makes else 0) >= 0 and until_then(here), 30)
        finally:
            here.close()

    def state(here: WatchedSite) -> tuple[str, int]:
        row = here.detail(1).escalations[0]
        return row.state, row.step

    with watched(tmp_path / "site", one_broker.url) as here:
        here.cut()
        here.flag(1)
    with worker(one_broker.url, language_model(stub)):
        for step in range(3):
            life(lambda here, n=step: state(here) == ("ready", n), link=False, makes=True)
            answered = ("waiting", step + 1) if step < 2 else ("settled", 2)
            life(lambda here, then=answered: state(here) == then, link=True, makes=False)
    assert len(stub.requests) == 3, "no step was judged twice"
    last = WatchedSite(tmp_path / "site", one_broker.url)
    assert last.settled_at(1) == ("confirmed", 2)
    assert len(media_left(one_broker.url)) == len(last.outbox.media_of(last.detail(1).escalations[0].id)) == 4
    last.close()


@pytest.mark.timeout(500)  # three lives of a whole appliance
def test_the_appliance_itself_is_killed_while_escalations_take_two_messages(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    """`vedette run`, kill -9 of the core at two moments of the second step, and one verdict each in the end."""
    stub.mode = "needs crop"
    path = red_clip(tmp_path / "film.mp4")
    with FaultyRtspServer.in_thread({"gate": path}) as cameras, worker(one_broker.url, language_model(stub)):
        box = red_appliance(tmp_path, cameras.url("gate"), one_broker.url)
        box.config.write_text(f"{box.config.read_text()}\nescalation: {{first: facts}}\n")
        watch_and_kill(box)


# What each question took, of those that are settled: looked at in one statement, as the camera goes on all the while.
SETTLED = """
    SELECT verdict.decision, verdict.step, verdict.body, count(DISTINCT step.n), count(DISTINCT verdict.rowid)
    FROM escalation JOIN verdict ON verdict.escalation = escalation.id JOIN step ON step.escalation = escalation.id
    WHERE escalation.state = 'settled' GROUP BY escalation.id
"""


def watch_and_kill(stopped: ApplianceProcess) -> None:
    with stopped as box:
        for moment in ("step = 1", "step = 1 AND state IN ('sent', 'settled')"):
            before = one(box, f"SELECT count(*) FROM escalation WHERE {moment}")
            until(lambda m=moment, b=before: one(box, f"SELECT count(*) FROM escalation WHERE {m}") > b, 60)
            box.kill()
            box.start()
        known = one(box, "SELECT count(*) FROM escalation")
        until(lambda: one(box, "SELECT count(*) FROM escalation") > known, 60, "somebody comes by in this life, too")
        until(lambda: len(rows(box, SETTLED)) > known, 60, "what the killed lives left behind is settled as well")
        for decision, step, body, steps, verdicts in rows(box, SETTLED):
            # A kill takes the last second of the recording: it is not there to be cut.
            lost = json.loads(body)["reason"].endswith("but the recording does not hold this moment.")
            assert (decision, step) == (("unsure", 0) if lost else ("confirmed", 1))
            assert (steps, verdicts) == (2, 1)
        asked = one(box, "SELECT alert FROM verdict WHERE step = 1 LIMIT 1")
        delivery = box.get(f"/alerts/{asked}")["delivery"]
        assert [step["evidence"] for step in delivery["steps"]] == ["facts", "crop"]
        assert [step["need"] for step in delivery["steps"]] == ["crop", None]
        assert sum(step["bytes"] for step in delivery["steps"]) == delivery["bytes"]
        assert "Traceback" not in box.log


def test_another_worker_takes_the_second_step(one_broker: NatsServer, tmp_path: Path) -> None:
    unsure, _ = second_look(0.2)
    sure, _ = second_look(0.9)
    with watched(tmp_path / "site", one_broker.url) as here:
        make_streams(one_broker.url)
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("sent") == 1)
        with worker(one_broker.url, unsure) as first:
            until(lambda: here.service.verdicts.more == 1)
            first.kill()
        with worker(one_broker.url, sure):
            here.settle(1)
        assert here.settled_at(1) == ("rechecked", 1)


def test_a_worker_killed_while_it_judges_the_second_step_leaves_it_to_another(
    one_broker: NatsServer, tmp_path: Path
) -> None:
    stuck, detector = second_look(0.2)
    sure, _ = second_look(0.9)
    with watched(tmp_path / "site", one_broker.url) as here:
        here.flag(1)
        with worker(one_broker.url, stuck) as first:
            until(lambda: here.maker.run_once() >= 0 and here.service.verdicts.more == 1)
            detector.gate.clear()
            until(lambda: here.maker.run_once() >= 0 and first.worker is not None and first.worker.judging == 1)
            first.kill()
            detector.gate.set()
        with worker(one_broker.url, sure):
            here.settle(1)
        assert here.settled_at(1) == ("rechecked", 1)
        assert here.service.verdicts.applied == 1


# no pixels ------------------------------------------------------------------------------------------------------------


def test_an_image_free_site_publishes_no_media_message_ever(
    broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    """Seen from the wire: every message of the site, not only those that JetStream keeps."""
    stub.mode = "unsure"
    make_streams(broker.url)
    with overheard(broker.url, "vedette.depot-7.>") as heard:
        with watched(tmp_path / "site", broker.url, image_free=True) as here, worker(broker.url, language_model(stub)):
            here.flag(1)
            here.settle(1)
            verdict = here.verdict(1)
            assert verdict is not None
            assert verdict.decision == "unsure"
            assert verdict.reason == "This site sends no pictures, so there was nothing to look at."
            here.flag(2, 8.0)
            here.settle(2)
            totals = here.meter_totals()
            assert totals["uplink_bytes_facts"] > 0
            assert not [kind for kind in totals if kind in {f"uplink_bytes_{k}" for k in ("crop", "frame", "clip")}]
            assert here.detail(1).piece("still") is not None, "people on the site have their pictures"
        until(lambda: sum(subject.endswith("verdict") for subject, _ in heard) == 2)
    assert {subject.split(".")[2] for subject, _ in heard} == {"escalation", "verdict"}
    assert max(len(data) for _, data in heard) < 1500
    assert stub.requests == []


def test_a_worker_that_insists_gets_no_image_from_an_image_free_site(one_broker: NatsServer, tmp_path: Path) -> None:
    make_streams(one_broker.url)
    with (
        overheard(one_broker.url, "vedette.depot-7.media.>") as heard,
        watched(tmp_path / "site", one_broker.url, image_free=True) as here,
    ):
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("sent") == 1)
        say(one_broker.url, needs_more(here, 1, 0))
        here.settle(1)
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.reason == "Too small to tell. It asked for the whole picture, but this site sends no pictures."
    assert heard == []


def test_images_made_before_the_site_became_image_free_stay_on_it(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    make_streams(one_broker.url)
    with watched(tmp_path / "site", one_broker.url) as here:
        here.cut()
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("ready") == 1)
        assert len(here.outbox.media_of(here.detail(1).escalations[0].id)) == 2
    with overheard(one_broker.url, "vedette.depot-7.media.>") as heard, worker(one_broker.url, language_model(stub)):
        again = WatchedSite(tmp_path / "site", one_broker.url, image_free=True)
        again.connect()
        until(lambda: again.settled(1))
        again.close()
    assert heard == []
    assert stub.requests == []


@contextlib.contextmanager
def overheard(url: str, subject: str) -> Iterator[list[tuple[str, bytes]]]:
    """Every message on `subject` while it lasts, as the broker passes it on."""
    import threading

    heard: list[tuple[str, bytes]] = []
    ready, over = threading.Event(), threading.Event()

    async def listen() -> None:
        client = await nats.connect(url)

        async def note(message: object) -> None:
            heard.append((message.subject, message.data))  # type: ignore[attr-defined]

        await client.subscribe(subject, cb=note)
        await client.flush()
        ready.set()
        await asyncio.to_thread(over.wait, 280)
        await client.drain()

    thread = threading.Thread(target=lambda: asyncio.run(listen()), name="overhearing")
    thread.start()
    assert ready.wait(60)
    try:
        yield heard
    finally:
        over.set()
        thread.join(60)


# sides of different versions ------------------------------------------------------------------------------------------


def test_a_worker_of_schema_1_settles_an_escalation_of_schema_2(one_broker: NatsServer, tmp_path: Path) -> None:
    """It reads what it knows, fetches what is listed, and never asks for more."""

    async def judge_as_schema_1(js: object) -> wire_v1.Escalation:
        await stream_setup.ensure_streams(js, StreamsConfig())  # type: ignore[arg-type]
        every = ConsumerConfig(durable_name="worker-high", filter_subject="vedette.*.escalation.high")
        await js.add_consumer(wire.STREAM_ESCALATION, every)  # type: ignore[attr-defined]
        subscription = await js.pull_subscribe_bind("worker-high", stream=wire.STREAM_ESCALATION)  # type: ignore[attr-defined]
        (message,) = await subscription.fetch(1, timeout=20)
        asked: wire_v1.Escalation = wire_v1.Escalation.from_json(message.data)
        for ref in asked.media:
            found = await js.get_last_msg(wire.STREAM_MEDIA, wire.media_subject(asked.site, ref.id, 0))  # type: ignore[attr-defined]
            assert len(found.data) == ref.bytes
        verdict = wire_v1.Verdict(
            escalation=asked.id, site=asked.site, alert=asked.alert, decision="unsure", reason="Too small.", engine="e",
            model="m", seconds=0.1, judged_t=0.0,
        )  # fmt: skip
        headers = {"Nats-Msg-Id": wire.message_id(asked.site, asked.id, "verdict")}
        await js.publish(wire.verdict_subject(asked.site), verdict.to_json(), headers=headers)  # type: ignore[attr-defined]
        await message.ack()
        return asked

    make_streams(one_broker.url)
    with watched(tmp_path / "site", one_broker.url) as here:
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("sent") == 1)
        asked = ask_broker(one_broker.url, judge_as_schema_1)
        assert isinstance(asked, wire_v1.Escalation)
        assert [ref.kind for ref in asked.media] == ["crop", "crop"]
        until(lambda: here.settled(1))
        row = here.detail(1).verdict
        assert row is not None
        assert (row.decision, row.step, row.body.step) == ("unsure", 0, None)


def test_a_site_of_schema_1_gets_a_last_word_at_once(one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub) -> None:
    """It does not say what else it could send, so it is not asked, however unsure the model is."""
    stub.mode = "unsure"
    make_streams(one_broker.url)
    with watched(tmp_path / "site", one_broker.url) as here:  # only as somebody with pictures
        here.cut()
        here.flag(1)
        until(lambda: here.maker.run_once() >= 0 and here.count("ready") == 1)
        row = here.next_ready()
        older = wire_v1.Escalation.from_json(row.body.to_json())
        for media in here.outbox.media_of(row.id):
            data = (here.root / media.path).read_bytes()
            subject = wire.media_subject(here.name, media.ref.id, 0)
            ask_broker(one_broker.url, lambda js, subject=subject, data=data: js.publish(subject, data))
    assert "can" not in json.loads(older.to_json())
    with worker(one_broker.url, language_model(stub)), overheard(one_broker.url, "vedette.depot-7.verdict") as heard:
        headers = {"Nats-Msg-Id": wire.message_id(older.site, older.id)}
        subject = wire.escalation_subject(older.site, "high")
        ask_broker(one_broker.url, lambda js: js.publish(subject, older.to_json(), headers=headers))
        until(lambda: len(heard) == 1)
    verdict = wire_v1.Verdict.from_json(heard[0][1])
    assert (verdict.decision, json.loads(heard[0][1])["need"]) == ("unsure", None)
    assert len(stub.requests) == 1
