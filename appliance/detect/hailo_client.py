"""The parent's side of the Hailo helper: starts it, gives it frames through shared memory, and starts it again."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from appliance.base.backoff import Backoff
from appliance.base.child_processes import end_child
from appliance.base.clock import Clock
from appliance.base.errors import DetectorError, VedetteError
from appliance.detect.accelerators import start_helper
from appliance.detect.network_runtime import Array

START_S = 30.0  # loading a HEF of 20 MB over PCIe takes a second; a slow card takes longer to import numpy
KILL_S = 2.0  # a process that is stuck in a driver does not even die
SLOTS_MAX = 4  # inferences under way: one computes, one goes in, one comes out
LINE_BYTES_MAX = 64 * 1024  # one JSON line of the helper: sizes and an error text
PAGE = mmap.PAGESIZE  # buffers that begin at a page are not copied once more on their way to the device


class HelperFailed(VedetteError):
    """The failure of a helper that could not open the device.

    error: what it reported ({} where it did not). known: versions and the like, as far as it came.
    """

    def __init__(self, message: str, error: Mapping[str, Any] | None = None, known: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.error = dict(error or {})
        self.known = dict(known or {})


@dataclass(frozen=True, slots=True)
class HailoStream:
    """An input or output of a network. order: HailoRT's name of its layout; classes: of an NMS output, else 0."""

    name: str
    shape: tuple[int, ...]
    order: str
    dtype: str
    classes: int = 0

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class HailoDescription:
    """The description that a ready helper gives of its device and network."""

    library: str
    driver: str
    firmware: str
    architecture: str
    input: HailoStream
    outputs: tuple[HailoStream, ...]
    queue: int

    @classmethod
    def from_report(cls, known: Mapping[str, Any]) -> HailoDescription:
        """Build the description from the helper's report. Raises HelperFailed unless the network has one input."""
        streams = [
            [HailoStream(**{**each, "shape": tuple(each["shape"])}) for each in known[kind]]
            for kind in ("inputs", "outputs")
        ]
        if len(streams[0]) != 1:
            raise HelperFailed(f"it has {len(streams[0])} inputs, and a detector's network has one", None, known)
        return cls(
            known["library"], known["driver"], known["firmware"], known["architecture"],
            streams[0][0], tuple(streams[1]), int(known["queue"]),
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Slot:
    """Room for one inference in the shared memory. done: its answer is there, or it will never come."""

    number: int
    input: Array
    outputs: dict[str, Array]
    done: threading.Event = field(default_factory=threading.Event)


class HelperSession:
    """One life of the helper, from its start to its end.

    State: the process, the memory that it shares, free slots. The thread that calls `read` hands answers out; any
    thread infers. loss: why it ended, once it has.
    """

    def __init__(self, python: Path, asked: Mapping[str, Any]) -> None:
        """Start it and wait until the device is ready. Raises HelperFailed."""
        self.loss = ""
        self._slots: list[_Slot] = []
        self._lock = threading.Condition()
        self._rest = b""
        self._memory_fd = os.memfd_create("vedette-hailo", os.MFD_CLOEXEC)
        try:
            self._process = start_helper(python, str(self._memory_fd), pass_fds=(self._memory_fd,))
        except OSError as error:
            os.close(self._memory_fd)
            raise HelperFailed(f"{python} cannot be started: {error.strerror}", {"step": "python"}) from None
        try:
            self._send(json.dumps(dict(asked)))
            self.description = HailoDescription.from_report(self._first_answer())
            self._slots = self._lay_out(self.description)
        except BaseException:
            self.end("it did not start")
            raise
        self._free = list(self._slots)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def slots(self) -> int:
        """How many frames may be under way."""
        return len(self._slots)

    def infer(self, frames: Array, deadline: float, clock: Clock) -> dict[str, Array]:
        """Return the outputs by name, a row for each of the frames, in memory of our own.

        The next frame goes in while the device is at the one before. Raises DetectorError; then the session may have
        ended.
        """
        slots = self._take(len(frames), deadline - clock.monotonic())
        for slot, frame in zip(slots, frames, strict=True):
            slot.input[...] = frame
            slot.done.clear()
            self._send(str(slot.number))
        if not all(self.loss or slot.done.wait(max(0.0, deadline - clock.monotonic())) for slot in slots):
            self.end("no answer in time")
        if self.loss:
            raise DetectorError(f"the Hailo device was lost: {self.loss}")
        answer = {name: np.stack([slot.outputs[name] for slot in slots]) for name in slots[0].outputs}
        with self._lock:
            self._free += slots
            self._lock.notify_all()
        return answer

    def read(self) -> None:
        """Hand answers out until the helper ends; `loss` then says how."""
        while (line := self._line(None)) is not None:
            answer = _parsed(line)
            if "slot" in answer:
                self._slots[answer["slot"]].done.set()
            elif "error" in answer:
                self.end(str(answer["error"].get("text") or answer["error"].get("kind")))
        try:  # its output ended, so it is about to
            self.end(f"the helper ended by itself or was killed (status {self._process.wait(KILL_S)})")
        except subprocess.TimeoutExpired:
            self.end("the helper closed its output")

    def end(self, reason: str) -> None:
        """Kill it; whoever waits for it is told. Any thread, any number of times: the first reason counts."""
        with self._lock:
            first = not self.loss
            self.loss = self.loss or reason
        if first:
            end_child(self._process, killed_s=KILL_S)
            os.close(self._memory_fd)
        with self._lock:
            for slot in self._slots:
                slot.done.set()
            self._lock.notify_all()

    def _take(self, count: int, wait_s: float) -> list[_Slot]:
        """All at once: two that wait for each other's would wait for ever."""
        with self._lock:
            self._lock.wait_for(lambda: len(self._free) >= count or self.loss, wait_s)
            if self.loss:
                raise DetectorError(f"the Hailo device was lost: {self.loss}")
            if len(self._free) < count:
                raise DetectorError("the Hailo device did not become free in time")
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):  # it is gone: whoever reads finds out
            os.write(self._process.stdin.fileno(), f"{line}\n".encode("ascii"))

    def _first_answer(self) -> Mapping[str, Any]:
        line = self._line(START_S)
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its output ended, so it is about to
                status = self._process.wait(0.2)
                raise HelperFailed(f"the helper ended with status {status}", {"step": "start"})
            raise HelperFailed(f"the helper did not answer within {START_S:g} s", {"step": "start"})
        answer = _parsed(line)
        if "ready" in answer:
            return dict(answer["ready"])
        error = answer.get("error", {})
        raise HelperFailed(str(error.get("text", "it said something else than an answer")), error, answer.get("known"))

    def _line(self, wait_s: float | None) -> bytes | None:
        """Return the next line; None if none comes in time, or there are no more."""
        assert self._process.stdout is not None
        pipe, ready = self._process.stdout.fileno(), select.poll()
        ready.register(pipe, select.POLLIN)
        while b"\n" not in self._rest and len(self._rest) < LINE_BYTES_MAX:
            if wait_s is not None and not ready.poll(wait_s * 1000):
                return None
            block = os.read(pipe, 4096)
            if not block:
                return None
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _lay_out(self, description: HailoDescription) -> list[_Slot]:
        """Slots one after the other, each stream at the beginning of a page."""
        streams = (description.input, *description.outputs)
        step = sum(_pages(each.bytes) for each in streams)
        count = max(1, min(description.queue, SLOTS_MAX))
        os.ftruncate(self._memory_fd, count * step)
        memory = mmap.mmap(self._memory_fd, count * step)
        slots, places = [], []
        for number in range(count):
            offsets = [number * step + sum(_pages(each.bytes) for each in streams[:n]) for n in range(len(streams))]
            views = [_view(memory, offset, each) for offset, each in zip(offsets, streams, strict=True)]
            outputs = dict(zip((each.name for each in description.outputs), views[1:], strict=True))
            slots.append(_Slot(number, views[0], outputs))
            places.append({"input": offsets[0], "outputs": offsets[1:]})
        self._send(json.dumps({"slots": places}))
        return slots


class HailoProcess:
    """The helper, started again whenever it is lost.

    State: the present session, or why there is none. Owner: one daemon thread, `hailo`, which reads the helper's
    answers, and after a loss starts another, backing off from 0.5 to 30 s. `close` ends both.
    """

    def __init__(self, python: Path, asked: Mapping[str, Any], clock: Clock, answer_s: float) -> None:
        """Start the helper. Raises HelperFailed at the first failure: a helper that never worked is not tried twice."""
        self.starts = 1
        self._python, self._asked, self._clock = python, asked, clock
        self._answer_s = answer_s
        self._stop = threading.Event()
        self._session = HelperSession(python, asked)
        self.description = self._session.description
        self._thread = threading.Thread(target=self.run, name="hailo", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process id of the helper, which may have ended."""
        return self._session.pid

    @property
    def loss(self) -> str:
        """Why there is no device now, or ''."""
        return self._session.loss

    @property
    def slots(self) -> int:
        """How many frames one call may hold."""
        return self._session.slots

    def infer(self, frames: Array) -> dict[str, Array]:
        """Return the outputs by name, a row for each of the frames (n, *the input's shape).

        It never waits for a start. Raises DetectorError.
        """
        return self._session.infer(frames, self._clock.monotonic() + self._answer_s, self._clock)

    def run(self) -> None:
        backoff = Backoff(0.5, 30.0)
        while not self._stop.is_set():
            self._session.read()
            while not self._stop.is_set():
                self._clock.sleep(backoff.next_s(), self._stop)
                if self._restarted():
                    backoff.reset()
                    break

    def close(self) -> None:
        """End the helper and the thread."""
        self._stop.set()
        self._session.end("it was closed")

    def _restarted(self) -> bool:
        if self._stop.is_set():
            return False
        try:
            session = HelperSession(self._python, self._asked)
        except (HelperFailed, OSError) as error:  # OSError: no free files or memory, which passes
            self._session.loss = str(error)
            return False
        if (session.description.input, session.description.outputs) != (
            self.description.input, self.description.outputs,
        ):  # fmt: skip
            session.end("the HEF has changed")
            self._session.loss = "the HEF has changed, so Vedette has to be started again"
            return False
        self.starts += 1
        self._session = session
        if self._stop.is_set():
            session.end("it was closed")
        return True


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _pages(count: int) -> int:
    return -(-count // PAGE) * PAGE


def _view(memory: mmap.mmap, offset: int, stream: HailoStream) -> Array:
    count = int(np.prod(stream.shape))
    return np.frombuffer(memory, stream.dtype, count, offset).reshape(stream.shape)
