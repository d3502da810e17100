"""An appliance that judges by itself: a real broker that is cut off, and a server that speaks OpenAI's protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from appliance.base.clock import SystemClock
from appliance.config import LocalJudgeConfig
from appliance.router.escalation_planner import API_RULE
from appliance.store.decisions import DecisionStore
from appliance.store.outbox import Outbox
from appliance.store.outbox_queue import OutboxQueue
from appliance.store.verdict_stats import engine_work_since
from appliance.uplink.local_judge import LocalJudge, LocalJudgeSources
from appliance.uplink.outbox_limits import OutboxQuota, OutboxUpkeep
from appliance.wire import BY_APPLIANCE, Escalation, traceparent_of
from cloud_worker.config import OpenAiEngine
from cloud_worker.openai_vlm import OpenAiVlm
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.nats import NatsServer
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub
from tests.servers.site import AllowAll, Site, site
from tests.servers.worker import worker
from tests.support.waiting import until
from tests.system.test_escalation_nats import make_streams

YARD = Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4"
NO_UPLINK = """
cameras:
  yard:
    url: file:{clip}
    loop: false
    zones: {{all: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: somebody, kind: enter, zone: all, labels: [person]}}]
alerts: {{length_max_s: 10}}
escalation: {{local_judge: {{url: "{url}", model: {model}, api_key: "{key}"}}}}
"""


@dataclass
class Reasons:
    """What the appliance says of itself and of its cloud."""

    away: str = "the cloud cannot be reached"
    busy: str = ""
    shed: str = ""
    sources: LocalJudgeSources = field(init=False)

    def __post_init__(self) -> None:
        self.sources = LocalJudgeSources(lambda: self.away, lambda: self.busy, lambda: self.shed)


class NothingLeaves(AllowAll):
    def withholds(self, camera: str, path: str) -> bool:
        return True

    def forbids(self, escalation: Escalation) -> bool:
        return escalation.rule == API_RULE


@pytest.fixture
def stub() -> Iterator[OpenAiStub]:
    made = OpenAiStub().start()
    yield made
    made.stop()


def engine(stub: OpenAiStub) -> OpenAiVlm:
    return OpenAiVlm(
        OpenAiEngine(kind="openai", url=stub.url, model=MODEL, api_key=SecretStr(KEY), second_look=False), SystemClock()
    )


@contextmanager
def judging(
    here: Site, stub: OpenAiStub, reasons: Reasons, policy: AllowAll | None = None, **more: object
) -> Iterator[LocalJudge]:
    settings = LocalJudgeConfig(url=stub.url, model=MODEL, api_key=SecretStr(KEY), **more)  # type: ignore[arg-type]
    made = LocalJudge(settings, here.deps, policy or AllowAll(), here.clock, reasons.sources)
    thread = threading.Thread(target=made.run, name="local judge")
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_what_waits_is_judged_here_and_the_rest_by_the_cloud(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    make_streams(one_broker.url)
    one_broker.kill()
    with site(tmp_path / "site", one_broker.url) as here:
        stub.modes = ["good", "unsure"]
        here.ask(1)
        here.ask(2)
        with judging(here, stub, Reasons()) as local:
            until(lambda: here.settled(1) and local.state.left == 1, 60)
        mine = here.verdict(1)
        assert mine is not None
        assert (mine.decision, mine.kind, mine.answered_by) == ("confirmed", "vlm", BY_APPLIANCE)
        assert mine.tokens_in > 0
        assert here.detail(1).row.judged.verdict == "confirmed"
        escalation = here.detail(1).escalation
        assert escalation is not None
        assert stub.traces[0].split("-")[1] == traceparent_of(escalation.body).split("-")[1]
        assert here.verdict(2) is None, "unsure is left for the cloud"
        day_t = here.clock.now() - 3600
        assert DecisionStore(here.db).spent("2000-01-01", day_t, day_t).gpu_s_day == 0.0, "it is nobody's bill"
        (work,) = engine_work_since(here.db, day_t)
        assert (work.engine, work.verdicts, work.judge_s, work.tokens_in) == (BY_APPLIANCE, 1, 0.0, 0)

        one_broker.start()
        with worker(one_broker.url, engine(stub)):
            until(lambda: here.settled(2), 60)
        cloud = here.verdict(2)
        assert cloud is not None
        assert cloud.answered_by == ""
        assert len(stub.requests) == 3, "what was settled here is not asked of the cloud"
        assert here.verdict(1) == mine


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_late_answer_of_the_cloud_changes_nothing(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub, *, asks_first: bool
) -> None:
    make_streams(one_broker.url)
    with site(tmp_path / "site", one_broker.url, failover_s=1.0) as here:
        here.cut()
        here.deps = replace(here.deps, settles_here=asks_first)
        here.connect()
        here.ask(1)
        until(lambda: here.count("sent") == 1, 30)
        reasons = Reasons(away="the cloud does not answer")
        with judging(here, stub, reasons):
            until(lambda: here.settled(1), 60)
        mine, sent_t = here.verdict(1), here.clock.now()
        until(lambda: here.clock.now() > sent_t + here.settings.failover_s, 30)  # a worker asks about older ones
        stub.mode = "rejected"
        asked = len(stub.requests)
        with worker(one_broker.url, engine(stub)):
            here.ask(2)
            until(lambda: here.settled(2), 60)
            until(lambda: len(stub.requests) - asked >= (1 if asks_first else 2), 30)
        assert here.verdict(1) == mine
        assert len(here.detail(1).verdicts) == 1
        assert not OutboxQueue(here.db).is_open(here.detail(1).escalation.id)  # type: ignore[union-attr]
        assert len(stub.requests) - asked == (1 if asks_first else 2), "a worker that asks is told that it is settled"


def test_it_gives_way_to_the_cameras_the_cloud_and_the_privacy_rules(
    one_broker: NatsServer, tmp_path: Path, stub: OpenAiStub
) -> None:
    make_streams(one_broker.url)
    one_broker.kill()
    with site(tmp_path / "site", one_broker.url) as here:
        here.ask(1)
        reasons = Reasons()
        stub.mode = "hang"
        with judging(here, stub, reasons) as local:
            until(lambda: bool(stub.requests), 60)
            reasons.shed = "the appliance is hot"
            until(lambda: local.state.waits_for == "the appliance is hot", 30)
            assert not local.state.at_work
            stub.mode, reasons.shed, reasons.away = "good", "", ""
            until(lambda: local.state.waits_for == "the cloud answers", 30)
            assert len(stub.requests) == 1
            reasons.away = "the cloud cannot be reached"
            until(lambda: here.settled(1), 60)
        here.ask(2)
        with judging(here, stub, reasons, NothingLeaves()) as local:
            until(lambda: local.state.left == 1, 30)
        reasons.busy = "the detector has no time to spare"
        with judging(here, stub, reasons, when="idle") as local:
            until(lambda: local.state.waits_for == reasons.busy, 30)
            assert here.verdict(2) is None
            reasons.busy = ""
            until(lambda: here.settled(2), 60)


def test_on_a_site_without_an_uplink_it_has_the_last_word(tmp_path: Path, stub: OpenAiStub) -> None:
    here = Site(tmp_path / "site", "nats://127.0.0.1:1", expire_s=1000.0)
    try:
        stub.modes = ["good", "unsure"]
        for n in (1, 2, 3):
            here.ask(n, () if n == 3 else None)
        outbox = here.outbox
        quota = OutboxQuota(outbox, here.root, 1000.0, here.meter)
        reasons = Reasons(away="this site asks no cloud")
        reasons.sources = replace(reasons.sources, upkeep=OutboxUpkeep(outbox, quota, here.meter, here.clock).run_once)
        with judging(here, stub, reasons) as local:
            until(lambda: here.settled(1, 2) and here.count("expired") == 1, 60)
            assert local.state.in_use
        assert [here.detail(n).row.judged.standing for n in (1, 2)] == ["confirmed", "unsure"]
        given_up = here.detail(3).escalation
        assert given_up is not None
        assert given_up.error.startswith("given up: this appliance's own judge could not answer: it has no image")

        outbox = Outbox(here.db, expire_s=0.0)  # so old is what nobody could judge
        reasons.shed = "the appliance is hot"
        quota = OutboxQuota(outbox, here.root, 1000.0, here.meter)
        reasons.sources = replace(reasons.sources, upkeep=OutboxUpkeep(outbox, quota, here.meter, here.clock).run_once)
        here.ask(4)
        with judging(here, stub, reasons) as local:
            until(lambda: here.count("expired") == 2 and not local.state.in_use, 60)
    finally:
        here.close()


@pytest.mark.timeout(500)  # until() waits longer on a busy machine
def test_an_appliance_without_an_uplink_answers_its_alerts(tmp_path: Path, stub: OpenAiStub) -> None:
    text = NO_UPLINK.format(clip=YARD, url=stub.url, model=MODEL, key=KEY)
    with ApplianceProcess(tmp_path, text) as appliance:
        until(lambda: any(each["verdict"] for each in appliance.get("/alerts")["alerts"]), 90)
        answered = next(each for each in appliance.get("/alerts")["alerts"] if each["verdict"])
        assert (answered["standing"], answered["verdict"]) == ("confirmed", "confirmed")
        assert appliance.get(f"/alerts/{answered['id']}")["verdict"]["answered_by"] == BY_APPLIANCE
        assert BY_APPLIANCE in appliance.page(f"/alerts/{answered['id']}")
        links = {each["name"]: each for each in appliance.get("/system")["links"]}
        assert "uplink" not in links
        assert links["local judge"]["up"]


def test_only_a_server_nearby_is_taken() -> None:
    for url in ("http://127.0.0.1:8000/v1", "http://192.168.1.5/v1", "http://judge.lan:8000/v1", "http://[fd00::1]/v1"):
        assert LocalJudgeConfig(url=url).url == url
    for url in (
        "https://api.example.com/v1", "http://8.8.8.8/v1", "ftp://127.0.0.1/v1", "127.0.0.1:8000",
        "http://134744072/v1", "http://0x08080808/v1", "http://[::ffff:8.8.8.8]/v1", "http://example。com/v1",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            LocalJudgeConfig(url=url)
