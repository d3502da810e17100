"""One site against another at the hub that deploy/nats/hub.conf recommends: nothing read, injected or swallowed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from test_escalation_nats import ask_broker, left_in_queue, quiet

from appliance import wire
from benchmarks.stub_engines import Instant
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import evidence_image, site
from tests.servers.worker import worker
from tests.support.waiting import until

HUB = (Path(__file__).parents[2] / "deploy" / "nats" / "hub.conf").read_text()
STREAMS = (wire.STREAM_ESCALATION, wire.STREAM_MEDIA, wire.STREAM_VERDICT, "VEDETTE_DEAD")
ME, VICTIM = "depot-7", "depot-8"

pytestmark = pytest.mark.skipif(not find_nats_servers(), reason="no nats-server")

# What was recommended before: each site its subjects, within one account. The tries below find their way through it.
ONE_ACCOUNT = """authorization { users: [
  {user: worker, password: worker}
  %s
]}"""
ONE_USER = """{user: NAME, password: NAME, permissions: {
  publish: ["vedette.NAME.escalation.*", "vedette.NAME.media.>", "$JS.API.STREAM.INFO.VEDETTE_ESCALATION",
    "$JS.API.STREAM.INFO.VEDETTE_MEDIA", "$JS.API.CONSUMER.INFO.VEDETTE_VERDICT.site-NAME",
    "$JS.API.CONSUMER.DURABLE.CREATE.VEDETTE_VERDICT.site-NAME",
    "$JS.API.CONSUMER.CREATE.VEDETTE_VERDICT.site-NAME.vedette.NAME.verdict",
    "$JS.API.CONSUMER.MSG.NEXT.VEDETTE_VERDICT.site-NAME", "$JS.ACK.VEDETTE_VERDICT.site-NAME.>"]
  subscribe: "_INBOX.NAME.>"}}"""


def accounts(*sites: str) -> str:
    """The accounts of hub.conf as they stand there, the site's once for each of `sites`; passwords are the names."""
    text = HUB[HUB.index("# accounts {") :]
    block = "\n".join(line.removeprefix("# ") for line in text.splitlines())
    head, one = block.split("  DEPOT_7: {")
    asked = '      {service: {account: DEPOT_7, subject: "vedette.depot-7.wanted"}}'
    assert asked in head
    head = head.replace(
        asked, "\n".join(asked.replace("DEPOT_7", _upper(name)).replace("depot-7", name) for name in sites)
    )
    one = "  DEPOT_7: {" + one.rsplit("}", 1)[0]
    for name in sites:
        upper = _upper(name)
        head += one.replace(f"$VEDETTE_{'DEPOT_7'}_PASSWORD", name).replace("DEPOT_7", upper).replace("depot-7", name)
    return head.replace("$VEDETTE_WORKER_PASSWORD", "worker") + "}"


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


@contextlib.contextmanager
def hub(folder: Path, config: str) -> Iterator[NatsServer]:
    server = NatsServer(find_nats_servers()[0], folder / "nats", extra=config).start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Attack:
    """All that one site can think of against another whose name, escalation ids and media ids it knows.

    tries: requests, publications and subscriptions. heard: what came back.
    """

    escalations: tuple[str, ...]
    media: tuple[str, ...]
    tries: int = 0
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    async def run(self, url: str, worked_off: Callable[[], None]) -> None:
        """Try everything at `url`. worked_off: returns when the worker has dealt with all that was let in."""
        client = await nats.connect(url, allow_reconnect=False, inbox_prefix=f"_INBOX.{ME}", error_cb=quiet)
        try:
            await self._listen(client)
            inbox = f"_INBOX.{ME}.attack"
            await client.subscribe(f"_INBOX.{ME}.>", cb=self._hear)
            for subject, body in self._requests():
                await self._try(client, subject, body, inbox)
            for subject, body in self._publications():
                for reply in (inbox, *self._foreign_subjects()[:4]):
                    await self._try(client, subject, body, reply)
            for name in self._ids():
                for subject in (f"vedette.{ME}.escalation.high", f"vedette.{ME}.media.x.0"):
                    self.tries += 1
                    await client.publish(subject, b"mine", inbox, headers={"Nats-Msg-Id": name})
            for subject in (f"vedette.{ME}.escalation.high", f"vedette.{ME}.media.x.0"):
                await client.request(subject, b"last", timeout=20)  # answered after all that came before it
            await asyncio.to_thread(worked_off)
        finally:
            await client.close()

    async def _listen(self, client: Any) -> None:
        for subject in (">", "*.>", "vedette.>", "vedette.*.>", f"vedette.{VICTIM}.>", f"vedette.{VICTIM}.verdict",
                        f"vedette.{VICTIM}.escalation.*", "$JS.>", "$JS.API.>", "$JS.EVENT.>", "$SYS.>", "_INBOX.>",
                        f"_INBOX.{VICTIM}.>", "_R_.>", "$KV.>", "vedette.*.verdict", "vedette.*.dead",
                        "vedette.*.wanted", f"vedette.{VICTIM}.wanted"):  # fmt: skip
            self.tries += 1
            await client.subscribe(subject, cb=self._hear)

    async def _try(self, client: Any, subject: str, body: bytes, reply: str) -> None:
        self.tries += 1
        await client.publish(subject, body, reply)

    async def _hear(self, message: Any) -> None:
        self.heard.append((message.subject, message.data))

    def _foreign_subjects(self) -> list[str]:
        return [f"vedette.{VICTIM}.escalation.high", f"vedette.{VICTIM}.verdict", f"vedette.{VICTIM}.media.x.0",
                f"vedette.{VICTIM}.dead", f"vedette.{VICTIM}.wanted", f"vedette.{ME}.verdict", f"vedette.{ME}.dead",
                "vedette_pool.status", f"_INBOX.{VICTIM}.x"]  # fmt: skip

    def _publications(self) -> Iterator[tuple[str, bytes]]:
        asked = {
            "id": self.escalations[0], "site": VICTIM, "camera": "c", "alert": "a", "rule": "r", "kind": "enter",
            "label": "person", "severity": "alert", "t": 1.0, "created_t": 1.0,
        }  # fmt: skip
        verdict = {
            "escalation": self.escalations[0], "site": VICTIM, "alert": "a", "decision": "rejected", "reason": "nobody",
            "engine": "e", "model": "m", "seconds": 0, "judged_t": 1.0,
        }  # fmt: skip
        bodies = [json.dumps(asked).encode(), json.dumps(verdict).encode(), b"junk"]
        yield from itertools.product(self._foreign_subjects(), bodies)
        own = [f"vedette.{ME}.escalation.high", f"vedette.{ME}.media.x.0"]
        yield from itertools.product(own, bodies)
        take = json.dumps({"batch": 8, "no_wait": True}).encode()
        for consumer in (f"site-{ME}", f"site-{VICTIM}", f"worker-high-{VICTIM}", "spy"):
            for stream in STREAMS:
                yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", take
                yield f"$JS.ACK.{stream}.{consumer}.1.1.1.1.0", b"+ACK"

    def _requests(self) -> Iterator[tuple[str, bytes]]:
        apis = ("$JS.API", "$JS.cloud.API")
        for api, stream in itertools.product(apis, STREAMS):
            for verb in (
                "INFO",
                "DELETE",
                "PURGE",
                "MSG.GET",
                "MSG.DELETE",
                "SNAPSHOT",
                "PEER.REMOVE",
                "LEADER.STEPDOWN",
            ):
                bodies: list[dict[str, Any]] = [{}, {"seq": 1}, {"last_by_subj": f"vedette.{VICTIM}.verdict"},
                          {"subjects_filter": ">"}, {"filter": f"vedette.{VICTIM}.>"}]  # fmt: skip
                for body in bodies:
                    yield f"{api}.STREAM.{verb}.{stream}", json.dumps(body).encode()
            for subject in (f"vedette.{VICTIM}.verdict", f"vedette.{VICTIM}.media.{self.media[0]}.0"):
                yield f"{api}.DIRECT.GET.{stream}.{subject}", b""
                yield f"{api}.DIRECT.GET.{stream}", json.dumps({"last_by_subj": subject}).encode()
            yield f"{api}.CONSUMER.NAMES.{stream}", b""
            yield f"{api}.CONSUMER.LIST.{stream}", b""
            for name in (f"site-{ME}", f"site-{VICTIM}", "spy"):
                for verb in ("INFO", "DELETE", "PAUSE"):
                    yield f"{api}.CONSUMER.{verb}.{stream}.{name}", b""
                yield from self._consumers(api, stream, name)
            own = {"name": "SPY", "sources": [{"name": stream}], "storage": "memory"}
            yield f"{api}.STREAM.CREATE.SPY", json.dumps(own).encode()
            yield f"{api}.STREAM.CREATE.SPY", json.dumps({"name": "SPY", "subjects": [f"vedette.{VICTIM}.>"]}).encode()
            yield f"{api}.STREAM.UPDATE.{stream}", json.dumps({"name": stream, "subjects": ["x"]}).encode()
        for subject in ("INFO", "STREAM.NAMES", "STREAM.LIST", "ACCOUNT.PURGE.VEDETTE"):
            yield f"$JS.API.{subject}", b""

    def _consumers(self, api: str, stream: str, name: str) -> Iterator[tuple[str, bytes]]:
        """Every way to ask for a consumer, with another's filter, or handing on to another's subject."""
        delivers = (None, f"_INBOX.{ME}.loot", f"vedette.{VICTIM}.escalation.high", f"vedette.{ME}.escalation.high")
        filters = (f"vedette.{VICTIM}.verdict", f"vedette.{ME}.verdict", "vedette.>", f"vedette.{VICTIM}.>")
        for deliver, wanted in itertools.product(delivers, filters):
            config = {"durable_name": name, "name": name, "filter_subject": wanted, "ack_policy": "explicit",
                      "deliver_policy": "all", "deliver_subject": deliver}  # fmt: skip
            config = {key: value for key, value in config.items() if value is not None}
            body = json.dumps({"stream_name": stream, "config": config}).encode()
            yield f"{api}.CONSUMER.DURABLE.CREATE.{stream}.{name}", body
            yield f"{api}.CONSUMER.CREATE.{stream}.{name}.{wanted}", body
            if wanted == f"vedette.{VICTIM}.verdict":
                yield f"{api}.CONSUMER.CREATE.{stream}.{name}.vedette.{ME}.verdict", body
                yield f"{api}.CONSUMER.CREATE.{stream}", body

    def _ids(self) -> Iterator[str]:
        """Message ids under which the victim's next escalations and media might come."""
        for name in self.escalations:
            for tail in ("", ".1", ".2", ".verdict", ".need.0", ".need.1"):
                yield f"{VICTIM}.{name}{tail}"
        for name in self.media:
            yield from (f"{VICTIM}.{name}.{n}" for n in range(3))


def stored(url: str, stream: str) -> dict[str, int]:
    """How many messages of each subject the stream holds."""
    info: Any = ask_broker(url, lambda js: js.stream_info(stream, subjects_filter=">"))
    return dict(info.state.subjects or {})


def attack(tmp_path: Path, config: str) -> tuple[Attack, list[str]]:
    """Two sites and a worker at work, one of them hostile; what it got, and each door that it found, in words."""
    doors = []
    with hub(tmp_path, config) as server:
        all_rights = server.url_of("worker", "worker")
        urls = {name: server.url_of(name, name) for name in (ME, VICTIM)}
        with contextlib.ExitStack() as stack:
            stack.enter_context(worker(all_rights, Instant()))
            here, there = (stack.enter_context(site(tmp_path / name, urls[name], name=name)) for name in (ME, VICTIM))
            first = there.ask(1, (evidence_image(1, (900, 700), noise=True),))
            here.ask(1, (evidence_image(2),))
            until(lambda: here.settled(1) and there.settled(1))
            there.cut()  # its next question is known to the other before it is sent
            coming = [there.ask(n, (evidence_image(n),)) for n in range(2, 6)]
            media = [each.ref.id for name in (first, *coming) for each in there.outbox.media_of(name)]
            before = {stream: stored(all_rights, stream) for stream in STREAMS}
            tried = Attack((first, *coming), tuple(media))
            asyncio.run(tried.run(urls[ME], lambda: until(lambda: left_in_queue(all_rights) == 0)))
            for stream, subjects in before.items():
                new = {subject: n for subject, n in stored(all_rights, stream).items() if n > subjects.get(subject, 0)}
                doors += [f"injected into {subject} of {stream}" for subject in new if f".{ME}." not in subject]
                doors += [f"injected {subject}" for subject in new if subject == f"vedette.{ME}.verdict"]
            doors += [f"read {data[:80]!r}" for _, data in tried.heard if VICTIM.encode() in data]
            there.connect()
            try:
                until(lambda: there.settled(*range(2, 6)), 5)
            except AssertionError:
                doors.append("the victim's questions were swallowed")
    return tried, doors


def test_a_site_cannot_read_inject_or_swallow_what_is_another_s(tmp_path: Path) -> None:
    tried, doors = attack(tmp_path, accounts(ME, VICTIM))
    assert tried.tries >= 1000
    assert doors == []
    assert tried.heard, "its own questions are acknowledged: it was connected and the tries got there"


@pytest.mark.slow  # the last part waits for what does not come
def test_the_same_tries_find_the_doors_of_rights_within_one_account(tmp_path: Path) -> None:
    users = "\n  ".join(ONE_USER.replace("NAME", name) for name in (ME, VICTIM))
    _, doors = attack(tmp_path, ONE_ACCOUNT % users)
    kinds = {re.split(r"[ :]", door)[0] for door in doors}
    assert {"read", "injected"} <= kinds, doors


def test_a_consumer_that_somebody_else_made_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hub(tmp_path, "") as server, worker(server.url, Instant()):

        async def foreign(js: Any) -> None:
            await js.add_consumer(
                wire.STREAM_VERDICT, durable_name=f"site-{ME}", filter_subject=f"vedette.{VICTIM}.verdict"
            )

        until(lambda: _made(server.url))
        ask_broker(server.url, foreign)
        with site(tmp_path / "site", server.url, name=ME) as here:
            here.ask(1)
            until(lambda: "reads vedette.depot-8.verdict: somebody else made it" in caplog.text)
            assert not here.settled(1)


def _made(url: str) -> bool:
    try:
        return bool(ask_broker(url, lambda js: js.stream_info(wire.STREAM_VERDICT)))
    except nats.js.errors.NotFoundError:
        return False
