"""A broker with as much JetStream as a site and a worker use, which misbehaves at the lines that a test names."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from appliance.wire import POOL_SUBJECT
from tests.servers.jetstream_faults import FAULTS, Frame

API = "$JS.API."
INFO = {"server_id": "S", "server_name": "s", "version": "2.11.0", "proto": 1, "headers": True, "max_payload": 1 << 20}
KINDS = {
    "VEDETTE_ESCALATION": "escalation",
    "VEDETTE_MEDIA": "media",
    "VEDETTE_VERDICT": "verdict",
    "VEDETTE_DEAD": "dead",
}
Line = tuple[str, str, str, str, dict[str, str], bytes]


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` gets `subject`."""
    wanted, found = pattern.split("."), subject.split(".")
    for n, token in enumerate(wanted):
        if token == ">":
            return len(found) > n
        if n >= len(found) or token not in ("*", found[n]):
            return False
    return len(wanted) == len(found)


@dataclass
class Message:
    subject: str
    headers: bytes
    data: bytes
    t: float


@dataclass
class Consumer:
    config: dict[str, Any]
    waiting: deque[tuple[Client, str, str, int]] = field(default_factory=deque)
    pending: dict[int, float] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)
    done: set[int] = field(default_factory=set)


@dataclass
class Stream:
    config: dict[str, Any]
    messages: OrderedDict[int, Message] = field(default_factory=OrderedDict)
    last: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)


@dataclass(eq=False)
class Client:
    """One connection. who: site or worker, once it has said its name."""

    writer: asyncio.StreamWriter
    who: str = "?"
    subscriptions: dict[str, str] = field(default_factory=dict)
    once: set[str] = field(default_factory=set)


class ScriptedJetStream:
    """`with ScriptedJetStream() as broker:`; what is stored stays over all connections.

    `arm(seed, state, fault)`: the next time that this state is reached, this happens instead. `reached` counts the
    states, `played` the pairs of state and fault. Owner: one thread with an event loop.
    """

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted JetStream", daemon=True)
        self._clients: set[Client] = set()
        self._streams: dict[str, Stream] = {}
        self._armed: dict[str, deque[tuple[random.Random, str]]] = {}
        self._tokens = itertools.count(1)
        self.reached: Counter[str] = Counter()
        self.played: Counter[tuple[str, str]] = Counter()
        self.played_at = 0.0
        self.port = 0
        self.always: Callable[[str], tuple[random.Random, str] | None] = lambda state: None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedJetStream:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def arm(self, seed: str, state: str, fault: str) -> None:
        """At this state, once."""
        made = (random.Random(seed), fault)
        self._loop.call_soon_threadsafe(lambda: self._armed.setdefault(state, deque()).append(made))

    def disarm(self) -> None:
        """What is armed and was not reached is forgotten."""
        self._loop.call_soon_threadsafe(self._armed.clear)

    @property
    def armed(self) -> int:
        return sum(map(len, list(self._armed.values())))

    def cut(self, who: str = "") -> None:
        """End the connections, so that the states of a new one are reached."""
        self._loop.call_soon_threadsafe(lambda: [c.writer.close() for c in self._clients if who in ("", c.who)])

    def forget(self, *, streams: bool) -> None:
        """The consumers are gone, as with a broker that lost its store; with `streams` all is."""

        def do() -> None:
            for stream in self._streams.values():
                stream.consumers.clear()
            if streams:
                self._streams.clear()

        self._loop.call_soon_threadsafe(do)

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._keeper = asyncio.create_task(self._redeliver())

    async def _end(self) -> None:
        self._server.close()
        for client in list(self._clients):
            client.writer.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # The lines

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(writer)
        self._clients.add(client)
        try:
            self._say(client, "INFO", [f"INFO {json.dumps(INFO)}\r\n".encode()])
            while not writer.is_closing():
                await self._take(client, reader, await reader.readuntil(b"\r\n"))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(client)
            for stream in self._streams.values():
                for consumer in stream.consumers.values():
                    consumer.waiting = deque(each for each in consumer.waiting if each[0] is not client)
            writer.close()

    async def _take(self, client: Client, reader: asyncio.StreamReader, line: bytes) -> None:
        verb, *words = line.decode().split()
        if verb == "CONNECT":
            client.who = "worker" if '"worker' in line.decode() else "site"
            self._say(client, f"{client.who}: CONNECT", [])
        elif verb == "PING":
            self._say(client, f"{client.who}: PING", [b"PONG\r\n"])
        elif verb == "SUB":
            client.subscriptions[words[-1]] = words[0]
            what = words[0] if not words[0].startswith("_INBOX") else "answers" if words[0].endswith(".*") else "inbox"
            self._say(client, f"{client.who}: SUB {what}", [])
        elif verb == "UNSUB":
            if len(words) == 1:
                client.subscriptions.pop(words[0], None)
            else:
                client.once.add(words[0])
            self._say(client, f"{client.who}: UNSUB", [])
        elif verb in ("PUB", "HPUB"):
            size, head = int(words[-1]), int(words[-2]) if verb == "HPUB" else 0
            body = (await reader.readexactly(size + 2))[:-2]
            names = words[: -2 if verb == "HPUB" else -1]
            self._published(client, names[0], names[1] if len(names) > 1 else "", body[:head], body[head:])

    def _say(self, client: Client, state: str, answer: list[Frame | bytes]) -> None:
        """Answer at this state, or do what is armed for it."""
        self.reached[state] += 1
        planned = self._armed.get(state)
        found = planned.popleft() if planned else self.always(state)
        if found is None:
            client.writer.write(b"".join(map(bytes, answer)))
            return
        chance, name = found
        self.played[state, name] += 1
        self.played_at = time.monotonic()
        outcome = FAULTS[name](chance, answer)
        client.writer.write(outcome.data)
        if outcome.then == "reset":
            client.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            client.writer.transport.abort()
        elif outcome.then == "close":
            client.writer.close()

    def _send(self, client: Client, state: str, subject: str, reply: str, headers: bytes, data: bytes, to: str) -> bool:
        """To the subscriptions of one client that match `to`; whether there was one."""
        sids = [sid for sid, pattern in client.subscriptions.items() if matches(pattern, to)]
        if sids:
            for sid in client.once.intersection(sids):
                client.subscriptions.pop(sid)
                client.once.discard(sid)
            self._say(client, state, [Frame(subject, sid, reply, headers, data) for sid in sids])
        return bool(sids)

    def _answer(self, client: Client, state: str, reply: str, body: object, headers: bytes = b"") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not reply or not self._send(client, f"{client.who}: {state}", reply, "", headers, data, reply):
            self._say(client, f"{client.who}: {state}", [])

    # What is published

    def _published(self, client: Client, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        if subject.startswith(API):
            self._asked(client, subject[len(API) :], reply, data)
        elif subject.startswith("$JS.ACK."):
            self._acknowledged(client, subject, reply, data)
        else:
            self._stored(client, subject, reply, headers, data)

    def _stored(self, client: Client, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        for other in list(self._clients):
            what = "pool status" if subject == POOL_SUBJECT else "announcement"
            self._send(other, f"{other.who}: MSG {what}", subject, reply, headers, data, subject)
        name = next((n for n, s in self._streams.items() if any(matches(p, subject) for p in s.config["subjects"])), "")
        if not name:
            self._answer(client, "PUB", reply, b"", b"NATS/1.0 503\r\n\r\n")
            return
        stream, head = self._streams[name], _headers(headers)
        key = head.get("Nats-Msg-Id", "")
        known = stream.ids.get(key) if key else None
        if known is None and (wrong := self._wrong_last(stream, subject, head)):
            self._answer(client, f"PUB probe of {KINDS[name]}", reply, wrong)
            return
        if known is None:
            stream.last += 1
            known = stream.ids[key] = stream.last
            stream.messages[known] = Message(subject, headers, data, time.time())
        self._answer(client, f"PUB {KINDS[name]}", reply, {"stream": name, "seq": known})
        self._deliver(name)

    def _wrong_last(self, stream: Stream, subject: str, head: dict[str, str]) -> dict[str, Any]:
        if "Nats-Rollup" in head:
            return _error(500, 10111, "rollup failed")
        if "Nats-Expected-Last-Subject-Sequence" not in head:
            return {}
        last = max((seq for seq, each in stream.messages.items() if each.subject == subject), default=0)
        return _error(400, 10071, f"wrong last sequence: {last}")

    def _asked(self, client: Client, subject: str, reply: str, data: bytes) -> None:
        """A request of JetStream's API."""
        words = subject.split(".")
        name = words[2] if words[0] in ("STREAM", "CONSUMER", "DIRECT") and words[1] != "MSG" else words[3]
        if subject.startswith(("CONSUMER.DURABLE", "CONSUMER.MSG")):
            name = words[3]
        stream, kind = self._streams.get(name), KINDS.get(name, "stream")
        asked = json.loads(data) if data else {}
        call = ".".join(words[:2])
        if call == "STREAM.CREATE":
            stream = self._streams.setdefault(name, Stream(asked))
            self._answer(client, f"create stream {kind}", reply, _stream_info(stream, False))
        elif stream is None:
            self._answer(client, f"{call} of no stream", reply, _error(404, 10059, "stream not found"))
        elif call == "STREAM.INFO":
            which = "count" if asked.get("subjects_filter") else "info"
            self._answer(client, f"stream {which} {kind}", reply, _stream_info(stream, which == "count"))
        elif call in ("CONSUMER.CREATE", "CONSUMER.DURABLE"):
            consumer = stream.consumers.setdefault(asked["config"]["durable_name"], Consumer(asked["config"]))
            self._answer(client, f"create consumer of {kind}", reply, _consumer_info(name, consumer))
        elif call == "CONSUMER.INFO":
            found = stream.consumers.get(words[3])
            body = _consumer_info(name, found) if found else _error(404, 10014, "consumer not found")
            self._answer(client, f"{'' if found else 'no '}consumer info of {kind}", reply, body)
        elif call == "CONSUMER.MSG":
            self._pulled(client, name, stream.consumers.get(words[4]), reply, asked)
        elif call == "DIRECT.GET":
            self._direct(client, stream, ".".join(words[3:]), reply)
        elif call == "STREAM.MSG":
            self._message(client, stream, words[2], reply, asked)

    def _direct(self, client: Client, stream: Stream, subject: str, reply: str) -> None:
        seq = max((seq for seq, each in stream.messages.items() if each.subject == subject), default=0)
        if not seq:
            self._answer(client, "no direct get", reply, b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
            return
        head = f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\n\r\n"
        self._answer(client, "direct get", reply, stream.messages[seq].data, head.encode())

    def _message(self, client: Client, stream: Stream, call: str, reply: str, asked: dict[str, Any]) -> None:
        wanted = asked.get("next_by_subj") or asked.get("last_by_subj")
        seqs = [seq for seq, each in stream.messages.items() if each.subject == wanted or seq == asked.get("seq")]
        if not seqs:
            self._answer(client, f"no message {call.lower()}", reply, _error(404, 10037, "no message found"))
        elif call == "DELETE":
            del stream.messages[seqs[0]]
            self._answer(client, "message delete", reply, {"success": True})
        else:
            seq = seqs[0] if "next_by_subj" in asked else seqs[-1]
            found = stream.messages[seq]
            body = {"subject": found.subject, "seq": seq, "time": _iso(found.t), "data": _base64(found.data)}
            self._answer(client, "message get", reply, {"message": body | {"hdrs": _base64(found.headers)}})

    # Consumers

    def _pulled(self, client: Client, name: str, consumer: Consumer | None, reply: str, asked: dict[str, Any]) -> None:
        self._say(client, f"{client.who}: NEXT {KINDS[name]}", [])
        if consumer is None:
            self._answer(client, f"NEXT {KINDS[name]} of no consumer", reply, b"", b"NATS/1.0 503\r\n\r\n")
            return
        consumer.waiting.append((client, reply, "no_wait" if asked.get("no_wait") else "", asked.get("batch", 1)))
        self._deliver(name)

    def _deliver(self, name: str) -> None:
        stream = self._streams[name]
        for key, consumer in stream.consumers.items():
            ready = [seq for seq, each in stream.messages.items() if self._is_due(consumer, seq, each)]
            while consumer.waiting:
                client, reply, no_wait, left = consumer.waiting.popleft()
                if not ready:
                    if no_wait:
                        self._answer(client, f"no {KINDS[name]}", reply, b"", b"NATS/1.0 404 No Messages\r\n\r\n")
                        continue
                    consumer.waiting.appendleft((client, reply, no_wait, left))
                    break
                self._deliver_one(name, key, consumer, ready.pop(0), client, reply)
                if left > 1:
                    consumer.waiting.appendleft((client, reply, no_wait, left - 1))

    def _deliver_one(self, name: str, key: str, consumer: Consumer, seq: int, client: Client, reply: str) -> None:
        found = self._streams[name].messages[seq]
        consumer.pending[seq] = self._loop.time() + consumer.config.get("ack_wait", 30e9) / 1e9
        consumer.delivered[seq] += 1
        count = consumer.delivered[seq]
        acks = f"$JS.ACK.{name}.{key}.{count}.{seq}.{next(self._tokens)}.{int(found.t * 1e9)}.0"
        state = f"{client.who}: MSG {KINDS[name]}"
        if not self._send(client, state, found.subject, acks, found.headers, found.data, reply):
            consumer.pending[seq] = 0.0

    def _is_due(self, consumer: Consumer, seq: int, message: Message) -> bool:
        waits = consumer.pending.get(seq, 0.0) > self._loop.time()
        return seq not in consumer.done and not waits and matches(consumer.config["filter_subject"], message.subject)

    def _acknowledged(self, client: Client, subject: str, reply: str, data: bytes) -> None:
        words = subject.split(".")
        with contextlib.suppress(KeyError, IndexError, ValueError):
            stream, seq = self._streams[words[2]], int(words[5])
            consumer = stream.consumers[words[3]]
            if data[:4] in (b"+ACK", b"+TER") or not data:
                consumer.done.add(seq)
                if stream.config.get("retention") == "workqueue":
                    stream.messages.pop(seq, None)
            elif data[:4] == b"+WPI":
                consumer.pending[seq] = self._loop.time() + consumer.config.get("ack_wait", 30e9) / 1e9
            else:
                delay = json.loads(data[4:] or b"{}").get("delay", 0) / 1e9
                consumer.pending[seq] = self._loop.time() + delay
            self._answer(client, f"{data[:4].decode() or 'ack'} of {KINDS[words[2]]}", reply, b"")
            return
        self._say(client, f"{client.who}: ack of nothing", [])

    async def _redeliver(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for name in list(self._streams):
                self._deliver(name)


def _headers(text: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in text.decode().split("\r\n")[1:])
    return {name: value for name, separator, value in lines if separator}


def _error(code: int, number: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": number, "description": text}}


def _stream_info(stream: Stream, subjects: bool) -> dict[str, Any]:
    counts = Counter(each.subject for each in stream.messages.values())
    state = {
        "messages": len(stream.messages), "bytes": sum(len(each.data) for each in stream.messages.values()),
        "first_seq": min(stream.messages, default=stream.last + 1), "last_seq": stream.last,
        "consumer_count": len(stream.consumers),
    }  # fmt: skip
    return {
        "config": stream.config,
        "state": state | ({"subjects": dict(counts)} if subjects else {}),
        "created": _iso(0),
    }


def _consumer_info(stream: str, consumer: Consumer) -> dict[str, Any]:
    name = consumer.config["durable_name"]
    return {
        "stream_name": stream, "name": name, "config": consumer.config, "created": _iso(0), "num_pending": 0,
        "delivered": {"consumer_seq": 0, "stream_seq": 0}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    }  # fmt: skip


def _iso(t: float) -> str:
    return datetime.fromtimestamp(t, timezone.utc).isoformat().replace("+00:00", "Z")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
