"""What a replay says would be asked and sent, against what the live parts do ask and send."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_replay_recording import NOON, T0, Box, run

from appliance import wire
from appliance.base import json_lines
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import ManualClock
from appliance.base.json_lines import flat
from appliance.config import BudgetConfig, OffPeakConfig, SiteConfig
from appliance.core.core_settings import CoreStores
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_routing import EscalationImages, FrameHistory
from appliance.replay.replay_runner import play
from appliance.store.meter import Meter
from appliance.store.outbox import Outbox
from appliance.store.outbox_queue import OutboxQueue, SendQueue
from appliance.types import Alert, Event, FrameBoxes, Route, StreamHeader
from appliance.uplink.jetstream_publisher import chunk_message
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay
from tests.support.core_harness import make_core


def coming(t: float) -> float | None:
    return None if t < 1 else 0.1 + 0.25 * min(t - 1, 2.4)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "coming.mp4", 8, coming)


def linked(config: SiteConfig, **rule: Any) -> SiteConfig:
    """A site with an uplink; `rule` changes its first rule."""
    gate = config.cameras["gate"]
    rules = (gate.rules[0].model_copy(update=rule), *gate.rules[1:])
    return config.model_copy(
        update={
            "uplink": BrokerConfig.model_validate({"url": "nats://127.0.0.1:4222"}),
            "cameras": {"gate": gate.model_copy(update={"rules": rules})},
        }
    )


def routes(clip: Path, config: SiteConfig) -> tuple[Route, ...]:
    return replay(clip, config.for_decisions(), "gate", BrightBlock(), io.BytesIO(), clock=ManualClock()).routes


@pytest.mark.parametrize("first", ["facts", "crops", "frames"])
def test_what_is_measured_is_what_the_live_appliance_sends(
    clip: Path, tmp_path: Path, monkeypatch: Any, first: str
) -> None:
    """The same recording: replayed, and its boxes handed to the core with the evidence maker behind it."""
    box = Box(tmp_path / "data")
    box.record(clip, T0, "r1")
    config = linked(box.config())
    config = config.model_copy(update={"escalation": config.escalation.model_copy(update={"first": first})})
    monkeypatch.setattr(box, "config", lambda: config)
    (result,), log = run(box, tmp_path / "x.jsonl", NOON)
    (route,) = result.routes
    stores = CoreStores.of(box.db, Meter(box.db, "r"))
    core = make_core(config, stores, ManualClock(T0))
    core.take(StreamHeader(camera="gate", clip="", model=log.header.model, size=(320, 240), run="r1"))
    for line in log.lines:
        if isinstance(line, FrameBoxes):
            core.take(replace(line, t=line.t + T0))
    core.close()
    EvidenceMaker(box.db, box.root, config.for_decisions(), ManualClock(T0)).run_once()
    outbox = Outbox(box.db, 1e9)
    queued = SendQueue(OutboxQueue(box.db)).pick(box.db.clock.now())
    assert queued is not None
    row = queued.row
    media = outbox.media_of(row.id)
    sent = sum(
        chunk_message(row.site, each.ref, n, part).size
        for each in media
        for n, part in enumerate([(box.root / each.path).read_bytes()])
    )
    with box.db.read() as connection:
        (made,) = connection.execute("SELECT * FROM decision").fetchall()
    box.db.close()
    assert (route.when, route.reason, route.evidence, route.cost.value, route.cost.gpu_s, route.wait) == tuple(
        made[name] for name in ("moment", "reason", "evidence", "value", "gpu_s", "wait")
    )
    assert asdict(flat(route.inputs)) == json.loads(made["inputs"])
    assert route.inputs.stability.looks > 2
    assert route.inputs.stability.moved > 0
    assert (route.ask, route.priority, route.question) == (True, row.priority, row.body.question)
    assert (route.cost.pictures, route.cost.pictures_guessed) == (len(media), 0)
    assert route.cost.picture_bytes == sent
    assert route.cost.message_bytes == pytest.approx(len(row.body.to_json()), abs=250)
    assert route.cost.bytes == route.cost.message_bytes + route.cost.picture_bytes == result.sent_bytes


def test_the_second_message_is_measured_as_it_is_sent_too(clip: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The cloud needs to see the whole picture: a replay cuts it then and there, the live box later, and alike."""
    box = Box(tmp_path / "data")
    box.record(clip, T0, "r1")
    config = linked(box.config())
    monkeypatch.setattr(box, "config", lambda: config)
    later: list[EscalationImages] = []
    cut = FrameHistory.images

    def and_more(album: FrameHistory, alert: Alert, event: Event, *first: Any, **more: Any) -> EscalationImages:
        later.append(cut(album, alert, event, need="frame", step=1))
        return cut(album, alert, event, *first, **more)

    monkeypatch.setattr(FrameHistory, "images", and_more)
    _, log = run(box, tmp_path / "x.jsonl", NOON)
    stores = CoreStores.of(box.db, Meter(box.db, "r"))
    core = make_core(config, stores, ManualClock(T0))
    core.take(StreamHeader(camera="gate", clip="", model=log.header.model, size=(320, 240), run="r1"))
    for line in log.lines:
        if isinstance(line, FrameBoxes):
            core.take(replace(line, t=line.t + T0))
    core.close()
    maker = EvidenceMaker(box.db, box.root, config.for_decisions(), ManualClock(T0))
    maker.run_once()
    outbox = Outbox(box.db, 1e9)
    queued = SendQueue(OutboxQueue(box.db)).pick(box.db.clock.now())
    assert queued is not None
    row = queued.row
    verdict = wire.Verdict(
        escalation=row.id, site=row.site, alert=row.alert, decision="unsure", reason="Too small.", engine="e",
        model="m", seconds=0, judged_t=0, need="frame", step=0,
    )  # fmt: skip
    assert stores.alerts.take_verdict(verdict, T0) == "more"
    maker.run_once()
    frame = outbox.media_of(row.id)[-1]
    box.db.close()
    (ref,) = later[0].refs
    assert (ref.sha256, ref.box, ref.kind) == (frame.ref.sha256, frame.ref.box, "frame")
    assert later[0].bytes == chunk_message(row.site, frame.ref, 0, (box.root / frame.path).read_bytes()).size


def test_an_alert_is_asked_about_once_and_at_the_first_event_that_may(clip: Path) -> None:
    """The first rule is not to be escalated, the line that is crossed with it is."""
    found = routes(clip, linked(site(), escalate=False))
    assert [(route.ask, route.reason) for route in found] == [
        (False, "the rule intruder is not to be escalated"),
        (True, "severity alert is asked about with high priority"),
    ]
    assert found[0].cost.bytes == 0
    assert found[1].question == "Is there really a person crossing the line `door` (left to right)?"
    assert len({route.alert for route in found}) == 1


def test_without_an_uplink_the_route_gives_that_reason_and_counts_nothing(clip: Path) -> None:
    (route,) = routes(clip, site())
    assert (route.ask, route.reason, route.cost.bytes) == (False, "this site has no uplink", 0)


def test_more_frames_than_are_kept_in_memory_make_a_marked_guess(tmp_path: Path) -> None:
    """Somebody strolls there for 9 s at 10 looks a second: of the 90 pictures the first 26 are no longer there."""
    stands = block_clip(tmp_path / "stands.mp4", 11, lambda t: 0.6 + 0.01 * t)
    config = linked(site(detect={"fps": 10}, rules=[{"name": "l", "kind": "dwell", "zone": "yard", "seconds": 9}]))
    whole = config.escalation.model_copy(update={"first": "frames"})
    config = config.model_copy(update={"escalation": whole})
    wide = config.model_copy(update={"escalation": whole.model_copy(update={"span_s": 30.0, "frames": 8})})
    (usual,) = routes(stands, config)
    (long,) = routes(stands, wide)
    assert (usual.cost.pictures, usual.cost.pictures_guessed) == (4, 0)
    assert (long.cost.pictures, long.cost.pictures_guessed) == (8, 3)
    assert long.cost.picture_bytes / long.cost.pictures == pytest.approx(
        usual.cost.picture_bytes / usual.cost.pictures, rel=0.1
    )


def test_the_log_has_the_route_after_its_event_and_before_the_alert_ends(clip: Path) -> None:
    log = io.BytesIO()
    replay(clip, linked(site()).for_decisions(), "gate", BrightBlock(), log, clock=ManualClock())
    kinds = [json.loads(line)["type"] for line in log.getvalue().splitlines()]
    assert kinds.index("event") < kinds.index("route") < kinds.index("alert") < kinds.index("end")
    assert all(json_lines.decode_log(line) for line in log.getvalue().splitlines())


def test_cameras_of_one_replay_share_one_budget(clip: Path) -> None:
    """What two cameras see at once: the budget of the site pays for the question of one, with facts for the other."""
    one = linked(site())
    settings = one.escalation.model_copy(update={"budget": BudgetConfig(mb_day=0.0235, alert_reserve=0.0)})
    gate = one.cameras["gate"]
    both = one.model_copy(update={"escalation": settings, "cameras": {"gate": gate, "yard": gate}})
    reels = tuple(clip_input(clip, both.for_decisions(), camera, BrightBlock()) for camera in ("gate", "yard"))
    results = play(ReplayPlan(reels, both.for_decisions(), BrightBlock()), io.BytesIO(), ReplayOptions(ManualClock()))
    first, second = (result.routes[0] for result in results)
    assert (first.when, first.evidence) == ("now", "crops")
    assert (second.when, second.evidence) == ("now", "facts")
    assert second.cost.pictures == 0


def test_what_is_postponed_names_what_it_waits_for_and_still_counts_its_bytes(clip: Path) -> None:
    """A recording has a time of day; in a clip nobody knows it, and nothing waits for off-peak hours."""
    config = linked(site(), severity="warning")
    config = config.model_copy(
        update={"escalation": config.escalation.model_copy(update={"off_peak": OffPeakConfig(hours=("22:00-06:00",))})}
    )
    (route,) = replay(
        clip, config.for_decisions(), "gate", BrightBlock(), clock=ManualClock(), local_time=lambda t: (4, 12 * 60)
    ).routes
    assert (route.when, route.ask, route.wait) == ("later", True, "off-peak")
    assert route.until_t == pytest.approx(10 * 3600, abs=10)
    assert route.cost.bytes > 1000
    assert routes(clip, config)[0].when == "now"
