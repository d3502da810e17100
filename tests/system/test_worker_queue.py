"""The worker's queue over a real nats-server: fair among sites, urgent first, nothing lost, and the dead are kept."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from test_escalation_nats import ask_broker, language_model, left_in_queue, make_streams, publish, quiet, second_look

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.types import JudgeKind
from appliance.wire import Need
from cloud_worker import dead_letter_store
from cloud_worker.__main__ import main
from cloud_worker.judge import JudgeCase, Opinion
from cloud_worker.stream_setup import STREAM_DEAD
from tests.servers.nats import NatsServer
from tests.servers.openai_stub import CONTENTS, openai_stub
from tests.servers.site import evidence_image, ref_of, site
from tests.servers.worker import WorkerThread, worker
from tests.support.waiting import Gate, until


class Steady:
    """An engine that confirms all, and remembers whose it was; while `gate` is shut it holds those of `held` sites."""

    name, model, prompt_version, answer_schema = "steady", "m", "", ""
    kind: JudgeKind = "vlm"
    uses: frozenset[Need] = frozenset({"frame"})

    def __init__(self, held: Callable[[str], bool] = lambda site: True, reason: str = "Steady.") -> None:
        self._reason = reason
        self.judged: list[tuple[str, str]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate = Gate()
        self._held = held

    async def judge(self, case: JudgeCase) -> Opinion:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self._held(case.escalation.site):
                await self.gate.wait()
        finally:
            self.at_once -= 1
        self.judged.append((case.escalation.site, case.escalation.id))
        return Opinion(decision="confirmed", reason=self._reason)

    async def check(self) -> str:
        return "steady"

    async def close(self) -> None: ...


PICTURE = evidence_image(1)


def question(name: str, number: int, **changes: Any) -> wire.Escalation:
    facts = {
        "id": f"esc-{number}", "site": name, "camera": "gate", "alert": f"a-{number}", "rule": "intruder",
        "kind": "enter", "label": "person", "severity": "alert", "t": time.time(), "created_t": time.time(),
        "media": (ref_of(PICTURE),),
    }  # fmt: skip
    return wire.Escalation(**{**facts, **changes})


def ask_many(url: str, questions: list[tuple[wire.Escalation, str]]) -> None:
    """Publish the image of each site once, and the escalations (with their priority) in this order."""

    async def work(js: Any) -> None:
        for name in {each.site for each, _ in questions}:
            await js.publish(wire.media_subject(name, ref_of(PICTURE).id, 0), PICTURE)
        for each, priority in questions:
            headers = {"Nats-Msg-Id": wire.escalation_message_id(each)}
            await js.publish_async(wire.escalation_subject(each.site, priority), each.to_json(), headers=headers)
        await js.publish_async_completed()

    ask_broker(url, work)


class VerdictListener:
    """Every verdict that the broker stores, with the time at which it passed by."""

    def __init__(self, url: str) -> None:
        self.heard: list[tuple[float, wire.Verdict]] = []
        self._url, self._ready, self._over = url, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), name="ear")

    async def _listen(self) -> None:
        client = await nats.connect(self._url, error_cb=quiet)

        async def note(message: Any) -> None:
            self.heard.append((time.time(), wire.Verdict.from_json(message.data)))

        await client.subscribe("vedette.*.verdict", cb=note)
        await client.flush()
        self._ready.set()
        await asyncio.to_thread(self._over.wait, 280)
        await client.close()

    def of(self, name: str) -> list[tuple[float, wire.Verdict]]:
        return [each for each in self.heard if each[1].site == name]

    def __enter__(self) -> VerdictListener:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


def stored_verdicts(url: str) -> int:
    info: Any = ask_broker(url, lambda js: js.stream_info(wire.STREAM_VERDICT))
    return int(info.state.messages)


# fairness -------------------------------------------------------------------------------------------------------------


def test_a_site_that_floods_does_not_make_the_others_wait(broker: NatsServer) -> None:
    """600 escalations of one site are there before 5 each of two others: those come in turn, not after the 600.

    One slot, and a name that the broker lists first: else the others would be pulled also without taking turns.
    """
    make_streams(broker.url)
    flood = [(question("a-flood", n), "high") for n in range(600)]
    quiet_sites = [(question(name, n), "high") for n in range(5) for name in ("depot-1", "depot-2")]
    ask_many(broker.url, flood + quiet_sites)
    engine = Steady()
    with worker(broker.url, engine, concurrency=1):
        until(lambda: len(engine.judged) >= 30, 30)
        order = [name for name, _ in engine.judged]
    last = max(n for n, name in enumerate(order) if name != "a-flood")
    assert order.count("depot-1") == order.count("depot-2") == 5
    assert last < 24, "15 turns of three sites, and a few that were fetched meanwhile"


def test_two_workers_share_the_work_and_each_escalation_is_judged_once(broker: NatsServer) -> None:
    make_streams(broker.url)
    engines = first, second = Steady(), Steady()
    for each in engines:
        each.gate.shut()
    with worker(broker.url, first, name="w1"), worker(broker.url, second, name="w2"):
        ask_many(broker.url, [(question(f"depot-{n % 3}", n), "high") for n in range(90)])
        until(lambda: first.at_once == second.at_once == 4, what="both have all hands full")
        for each in engines:
            each.gate.open()
        until(lambda: len(first.judged) + len(second.judged) == 90)
        until(lambda: left_in_queue(broker.url) == 0)
    assert not set(first.judged) & set(second.judged)
    assert max(first.most_at_once, second.most_at_once) <= 4, "no more than `concurrency`"
    assert stored_verdicts(broker.url) == 90


def test_under_a_mixed_load_the_urgent_stay_fast(one_broker: NatsServer) -> None:
    """More than can be judged of the lower classes, and slowly: an alert now and then waits for none of them."""
    make_streams(one_broker.url)
    engine = Steady(held=lambda site: site.startswith("depot"))
    engine.gate.shut()
    with VerdictListener(one_broker.url) as listener, worker(one_broker.url, engine, concurrency=4):
        mixed = [(question(f"depot-{n % 4}", n), ("normal", "low")[n % 2]) for n in range(24)]
        ask_many(one_broker.url, mixed)
        until(lambda: engine.at_once == 3, what="all places but the one that is kept for the urgent")
        for n in range(8):
            ask_many(one_broker.url, [(question("urgent", n), "high")])
            until(lambda n=n: len(listener.of("urgent")) == n + 1)
        assert {name for name, _ in engine.judged} == {"urgent"}, "of the load none was finished meanwhile"
        engine.gate.open()
        until(lambda: len(engine.judged) == 32)


def test_a_worker_takes_over_from_one_that_read_all_sites_in_one_queue(broker: NatsServer) -> None:
    make_streams(broker.url)

    async def older(js: Any) -> None:
        for priority in wire.PRIORITIES:
            every = ConsumerConfig(durable_name=f"worker-{priority}", filter_subject=f"vedette.*.escalation.{priority}")
            await js.add_consumer(wire.STREAM_ESCALATION, every)

    ask_broker(broker.url, older)
    ask_many(broker.url, [(question("depot-7", n), "high") for n in range(5)])
    engine = Steady()
    with worker(broker.url, engine):
        until(lambda: len(engine.judged) == 5)


# one verdict ----------------------------------------------------------------------------------------------------------


def test_double_publish_redelivery_and_two_workers_make_one_verdict(broker: NatsServer) -> None:
    make_streams(broker.url)
    slow, quick = Steady(), Steady()
    slow.gate.shut()
    asked = question("depot-7", 1)
    ask_many(broker.url, [(asked, "high")])
    with worker(broker.url, slow, name="slow") as first:
        until(lambda: slow.at_once == 1)
        first.kill()  # without a word: the broker delivers again after ack_wait
        slow.gate.open()
    publish(broker.url, "depot-7", asked.to_json())  # a second time, past the broker's memory of ids
    with worker(broker.url, quick, name="w1"), worker(broker.url, Steady(), name="w2"):
        until(lambda: left_in_queue(broker.url) == 0, 30)
    assert stored_verdicts(broker.url) == 1


# dead letters ---------------------------------------------------------------------------------------------------------


def letters(url: str) -> list[dead_letter_store.DeadLetter]:
    found = ask_broker(url, lambda js: dead_letter_store.list_newest(js, 100))
    assert isinstance(found, list)
    return found


def test_what_cannot_be_judged_is_kept_with_the_reason(broker: NatsServer) -> None:
    make_streams(broker.url)
    engine = Steady()
    with worker(broker.url, engine, media_wait_s=0.3) as working:
        publish(broker.url, "depot-7", b"\xff not json", {"Nats-Msg-Id": "x-1"})
        absent = question("depot-7", 2, media=(ref_of(evidence_image(9)),))
        publish(broker.url, "depot-7", absent.to_json(), {"Nats-Msg-Id": "depot-7.esc-2"})
        ask_broker(broker.url, lambda js: js.publish("vedette.de!pot.escalation.high", b"{}"))
        until(lambda: len(letters(broker.url)) == 3)
        until(lambda: left_in_queue(broker.url) == 0)
        until(lambda: working.worker is not None and working.worker.counts.dead == 3)
    found = {letter.kind: letter for letter in letters(broker.url)}
    assert set(found) == {"unreadable", "media", "stray"}
    assert found["unreadable"].data == b"\xff not json"
    assert (found["unreadable"].message_id, found["unreadable"].deliveries) == ("x-1", 1)
    assert "chunk 1 of 1 is not there" in found["media"].reason
    assert found["stray"].subject == "vedette.de!pot.escalation.high"
    assert engine.judged == []


def test_a_flood_where_no_site_may_ask_does_not_stay_in_the_queue(one_broker: NatsServer) -> None:
    """One message a second of each such subject left it: a thousand of them stood there for a quarter of an hour."""
    make_streams(one_broker.url)

    async def flood(js: Any) -> None:
        for _ in range(400):
            await js.publish_async("vedette.depot-7.escalation.odd", b"{}")
        await js.publish_async_completed()

    ask_broker(one_broker.url, flood)
    with worker(one_broker.url, Steady()):
        until(lambda: left_in_queue(one_broker.url) == 0, 30)


@pytest.mark.parametrize(("limit", "answered"), [(900, ["The answer was too long for the broker."]), (100, [])])
def test_a_verdict_that_the_broker_never_takes_is_given_up_at_once(
    one_broker: NatsServer, limit: int, answered: list[str]
) -> None:
    """A stream's limit is no lost link: it was judged and sent again every 5 s for 7 days."""
    make_streams(one_broker.url)

    async def narrow(js: Any) -> None:
        config = (await js.stream_info(wire.STREAM_VERDICT)).config
        config.max_msg_size = limit
        await js.update_stream(config)

    ask_broker(one_broker.url, narrow)
    engine = Steady(reason="x" * 400)
    with VerdictListener(one_broker.url) as listener, worker(one_broker.url, engine):
        ask_many(one_broker.url, [(question("depot-7", 1), "high")])
        until(lambda: left_in_queue(one_broker.url) == 0 and len(letters(one_broker.url)) == 1)
        until(lambda: stored_verdicts(one_broker.url) == len(answered))
    assert [verdict.reason for _, verdict in listener.heard if len(verdict.reason) < 400][: len(answered)] == answered
    (letter,) = letters(one_broker.url)
    assert (letter.kind, letter.deliveries) == ("fault", 1)
    assert "the broker refuses the verdict: message size exceeds maximum" in letter.reason
    assert engine.judged == [("depot-7", "esc-1")], "once"


def test_a_question_of_huge_names_is_no_question(one_broker: NatsServer) -> None:
    make_streams(one_broker.url)
    engine = Steady()
    with VerdictListener(one_broker.url) as listener, worker(one_broker.url, engine):
        for n, field in enumerate(("alert", "camera", "rule", "kind", "label")):
            facts = {**json.loads(question("depot-7", n).to_json()), field: "x" * 300_000}
            publish(one_broker.url, "depot-7", json.dumps(facts).encode(), {"Nats-Msg-Id": f"depot-7.esc-{n}"})
        until(lambda: len(listener.heard) == 5)
        until(lambda: left_in_queue(one_broker.url) == 0)
    assert {verdict.decision for _, verdict in listener.heard} == {"unsure"}
    assert all("should have at most 300 characters" in verdict.reason for _, verdict in listener.heard)
    assert [letter.kind for letter in letters(one_broker.url)] == ["unreadable"] * 5
    assert engine.judged == []


def test_an_escalation_over_which_workers_die_ends_among_the_dead_letters(one_broker: NatsServer) -> None:
    make_streams(one_broker.url)
    ask_many(one_broker.url, [(question("depot-7", 1), "high")])
    for _ in range(2):
        deadly = Steady()
        deadly.gate.shut()
        dying = WorkerThread(one_broker.url, deadly, deliveries_max=2).start()
        until(lambda deadly=deadly: deadly.at_once == 1)
        dying.kill()
    with VerdictListener(one_broker.url) as listener, worker(one_broker.url, Steady(), deliveries_max=2):
        until(lambda: len(listener.heard) == 1)
    assert "workers may have died over it" in listener.heard[0][1].reason
    (letter,) = letters(one_broker.url)
    assert (letter.kind, letter.deliveries) == ("redelivered", 3)


def test_dead_letters_are_listed_shown_and_asked_again(
    one_broker: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_streams(one_broker.url)
    late = evidence_image(9)
    with worker(one_broker.url, Steady(), media_wait_s=0.1):
        asked = question("depot-7", 2, media=(ref_of(late),))
        publish(one_broker.url, "depot-7", asked.to_json(), {"Nats-Msg-Id": "depot-7.esc-2"})
        until(lambda: len(letters(one_broker.url)) == 1)
    path = tmp_path / "worker.yaml"
    path.write_text(f"nats: {{url: '{one_broker.url}'}}\nengine: {{kind: redetect}}\n")
    assert main(["dead-letters", "list", "--config", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["number"], row["kind"], row["subject"]) == (1, "media", "vedette.depot-7.escalation.high")
    assert main(["dead-letters", "list", "--config", str(path)]) == 0
    assert "media        vedette.depot-7.escalation.high" in capsys.readouterr().out
    assert main(["dead-letters", "show", "1", "--config", str(path)]) == 0
    assert '"id":"esc-2"' in capsys.readouterr().out
    assert main(["dead-letters", "show", "2", "--config", str(path)]) == 2
    assert "there is no dead letter 2" in capsys.readouterr().err
    ask_broker(one_broker.url, lambda js: js.publish(wire.media_subject("depot-7", ref_of(late).id, 0), late))
    assert main(["dead-letters", "requeue", "1", "--config", str(path)]) == 0
    engine = Steady()
    with worker(one_broker.url, engine):
        until(lambda: engine.judged == [("depot-7", "esc-2")])
    assert letters(one_broker.url) == []


# an adversary for a model ---------------------------------------------------------------------------------------------

FAILURES = ("html", "no choices", "tool", "too long", "500", "cut", "flood", "gzip bomb", "deep error")
ENDLESS = ("drip", "blank drip", "hang")


def test_whatever_the_model_says_every_escalation_gets_a_valid_verdict(one_broker: NatsServer) -> None:
    """Each nonsense once, and each twice in a row where the server fails; then a 429 that asks for two seconds."""
    make_streams(one_broker.url)
    modes = [*CONTENTS, *FAILURES]
    with openai_stub() as stub, VerdictListener(one_broker.url) as listener:
        engine = language_model(stub, timeout_s=60.0)
        with worker(one_broker.url, engine, concurrency=1, deliveries_max=2, retry_s=0.0):
            for n, mode in enumerate(modes):
                stub.mode = mode
                ask_many(one_broker.url, [(question("depot-7", n), "high")])
                until(lambda n=n: len(listener.heard) == n + 1, what=mode)
            asked, stub.modes = time.time(), ["429"]
            stub.mode = "good"
            ask_many(one_broker.url, [(question("depot-7", 999), "high")])
            until(lambda: len(listener.heard) == len(modes) + 1)
            assert listener.heard[-1][0] - asked >= 2.0, "asked back after Retry-After, not before"
    assert len(listener.heard) == len(modes) + 1, "each was read as a valid verdict: Ear refuses others"
    sure = {verdict.escalation for _, verdict in listener.heard if verdict.decision != "unsure"}
    assert sure == {f"esc-{modes.index('good')}", f"esc-{modes.index('rejected')}", "esc-999"}
    assert {verdict.answer_schema for _, verdict in listener.heard} == {engine.answer_schema}
    reasons = " ".join(verdict.reason for _, verdict in listener.heard)
    assert "a fault in the worker" not in reasons
    assert "the answer is compressed, which was not asked for" in reasons
    assert "://" not in reasons, "where the model server stands is no site's business"


def test_a_model_that_never_comes_to_an_end_holds_no_escalation_for_ever(one_broker: NatsServer) -> None:
    """The stub would go on for a minute and more: what ends it is our own time-out, twice."""
    make_streams(one_broker.url)
    with openai_stub() as stub, VerdictListener(one_broker.url) as listener:
        engine = language_model(stub, timeout_s=0.5)
        with worker(one_broker.url, engine, concurrency=1, deliveries_max=2, retry_s=0.0) as working:
            until(lambda: working.worker is not None and working.worker.unready() == "")
            for n, mode in enumerate(ENDLESS):
                stub.mode = mode
                ask_many(one_broker.url, [(question("depot-7", n), "high")])
                until(lambda n=n: len(listener.heard) == n + 1, what=mode)
    assert {(verdict.decision, verdict.answer_schema) for _, verdict in listener.heard} == {
        ("unsure", engine.answer_schema)
    }
    assert all("no answer within 0.5 s" in verdict.reason for _, verdict in listener.heard)


def test_while_the_model_is_away_one_escalation_tries_and_the_rest_wait(one_broker: NatsServer) -> None:
    make_streams(one_broker.url)
    with openai_stub() as stub, worker(one_broker.url, language_model(stub), concurrency=8) as working:
        until(lambda: working.worker is not None and working.worker.unready() == "")
        stub.mode, stub.modes = "503", ["held 503"] * 8
        ask_many(one_broker.url, [(question(f"depot-{n}", n), "high") for n in range(8)])
        until(lambda: len(stub.requests) == 8)
        before = time.monotonic()
        stub.release()  # the eight are refused at once; then one tries, after a second, and again after two
        until(lambda: len(stub.requests) >= 10)
        assert time.monotonic() - before > 1.5
        assert working.worker is not None
        assert "answered 503" in working.worker.unready()
        stub.mode = "good"
        until(lambda: left_in_queue(one_broker.url) == 0, 30)
        until(lambda: working.worker is not None and working.worker.unready() == "")


# status ---------------------------------------------------------------------------------------------------------------


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_readiness_are_there_from_the_start(one_broker: NatsServer) -> None:
    make_streams(one_broker.url)
    with openai_stub() as stub:
        stub.mode = "503"
        engine = language_model(stub)
        with worker(one_broker.url, engine, status={"port": 0}) as working:
            assert working.worker is not None
            port = working.worker.status.port
            until(lambda: "answered 503" in get(port, "/readyz")[1])
            assert get(port, "/readyz")[0] == 503
            assert get(port, "/healthz") == (200, "ok\n")
            ask_many(one_broker.url, [(question("depot-7", 1), "high")])
            until(lambda: 'vedette_worker_backlog{priority="high"} 1' in get(port, "/metrics")[1])
            stub.mode = "good"
            until(lambda: get(port, "/readyz") == (200, "ready\n"))
            until(lambda: 'vedette_worker_stage_seconds_count{priority="high",stage="publish"} 1'
                  in get(port, "/metrics")[1])  # fmt: skip
            text = get(port, "/metrics")[1]
            assert get(port, "/nothing")[0] == 404
    for stage in ("link", "queue", "fetch", "preprocess", "model", "publish"):
        assert f'vedette_worker_stage_seconds_bucket{{le="+Inf",priority="high",stage="{stage}"}} 1' in text
    assert 'vedette_worker_tokens_total{kind="in"} 812' in text
    assert 'decision="confirmed",edge_model="",engine="openai",model="stub-vlm",prompt="2026-' in text
    assert stub.trials >= 2, "it was tried until it answered"


def test_an_archive_that_is_away_delays_no_verdict(one_broker: NatsServer) -> None:
    pytest.importorskip("boto3")
    from pydantic import SecretStr

    from cloud_worker.archive import S3Archive
    from cloud_worker.config import ArchiveConfig as ArchiveSettings

    results: list[str] = []
    settings = ArchiveSettings(
        bucket="evidence", url="http://127.0.0.1:9", access_key=SecretStr("k"), secret_key=SecretStr("s"), tries=2,
        waiting_max=1, threads=1,
    )  # fmt: skip
    kept = S3Archive(settings, SystemClock(), results.append)
    make_streams(one_broker.url)
    with VerdictListener(one_broker.url) as listener, worker(one_broker.url, Steady(), archive=kept):
        ask_many(one_broker.url, [(question("depot-7", n), "high") for n in range(12)])
        until(lambda: len(listener.heard) == 12, 5)
        assert {each.key for each in listener.heard[0][1].archive} >= {
            f"vedette/depot-7/media/{ref_of(PICTURE).sha256}.jpg"
        }
        until(lambda: left_in_queue(one_broker.url) == 0)
    assert {"left_out", "failed"} & set(results)


BEHIND_S = 1000.0


class SlowClock(SystemClock):
    """A site's clock that is behind by BEHIND_S: its escalations look as if they had been on their way for so long."""

    def now(self) -> float:
        return super().now() - BEHIND_S


def test_the_site_stores_what_a_newer_worker_adds(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url, clock=SlowClock()) as here, worker(one_broker.url, engine):
        here.ask(1)
        until(lambda: here.settled(1))
        verdict = here.verdict(1)
    assert verdict is not None
    assert verdict.worker_version
    assert BEHIND_S <= verdict.timings["link"] < BEHIND_S + 120, "from the site's clock to the broker's"
    assert 0 <= verdict.timings["queue"] < 120
    assert ask_broker(one_broker.url, lambda js: js.stream_info(STREAM_DEAD)).state.messages == 0  # type: ignore[attr-defined]
