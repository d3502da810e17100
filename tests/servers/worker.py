"""A worker in a thread of the test, with whatever engine the test hands it, and one in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import Clock, SystemClock
from appliance.broker.nats_link import NatsLink
from appliance.types import Detections
from cloud_worker.config import HandlingConfig as WorkerSettings
from cloud_worker.config import RedetectEngine, SpotConfig, StatusConfig, StreamsConfig, WorkerConfig
from cloud_worker.escalation_handler import ArchivePort
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Engine, Judge
from cloud_worker.worker import Worker
from tests.support.waiting import until_async


class ScriptedDetector:
    """Answers each picture with the next of `scores` (the last one for ever): an object in the middle, or nothing."""

    name = "scripted"
    labels = ("person", "car")

    def __init__(self, *scores: float, box: tuple[float, float, float, float] = (0.3, 0.3, 0.6, 0.9)) -> None:
        self._scores = list(scores) or [0.9]
        self._box = box
        self.seen: list[tuple[int, ...]] = []
        self.gate = threading.Event()
        self.gate.set()

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        if not any(image.any() for image in images):  # black: the worker tries whether it works
            return [Detections.empty() for _ in images]
        assert self.gate.wait(200)
        self.seen += [image.shape for image in images]
        score = self._scores.pop(0) if len(self._scores) > 1 else self._scores[0]
        return [self._found(score) if n == 0 else Detections.empty() for n, _ in enumerate(images)]

    def _found(self, score: float) -> Detections:
        if score <= 0:
            return Detections.empty()
        return Detections(np.array([self._box], np.float32), np.array([score], np.float32), np.array([0], np.int32))


class WorkerThread:
    """`cloud_worker.Worker` in a thread; `stop()` is SIGTERM, `kill()` drops everything where it stands."""

    def __init__(
        self, url: str | BrokerConfig, engine: Engine, *, token: str = "", replicas: int = 1,
        status: Mapping[str, object] | None = None, archive: ArchivePort | None = None, clock: Clock | None = None,
        spot: SpotConfig | None = None, **settings: object,
    ) -> None:  # fmt: skip
        quick = {"ack_wait_s": 2.0, "retry_s": 0.05, "drain_s": 30.0, "name": "w1"}
        self._config = WorkerConfig(
            engine=RedetectEngine(kind="redetect"),  # not used: the engine is handed in
            worker=WorkerSettings(**{**quick, **settings}),
            streams=StreamsConfig(replicas=replicas),
            spot=spot or SpotConfig(),
            status=StatusConfig(**(status or {})),
        )
        self._archive = archive
        self._clock = clock or SystemClock()
        secret = SecretStr(token) if token else None
        self._address = BrokerConfig(url=url, token=secret) if isinstance(url, str) else url
        self._engine = engine
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="worker")
        self.worker: Worker | None = None

    def start(self) -> WorkerThread:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Returns when it has ended; `meanwhile` is called as soon as it takes no more questions."""
        assert self.worker is not None
        stop = self.worker.stop
        self._call(lambda: (stop(), meanwhile()))

    def kill(self) -> None:
        self._call(self._task.cancel)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Call `what` in the worker's loop, which is where to call this."""
        self._loop.call_later(seconds, what)

    def _call(self, what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(what)  # type: ignore[arg-type]
        self._thread.join(100)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        clock = self._clock
        self._loop = asyncio.get_running_loop()
        link = NatsLink(self._address, "worker", clock)
        self.worker = Worker(
            self._config, Judge(self._engine, "w1", clock, IN_PROCESS), link, clock, archive=self._archive
        )
        self._task = asyncio.create_task(self.worker.run())
        if self._config.status.port is not None:
            await until_async(lambda: self.worker.status.port)
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.contextmanager
def worker(url: str, engine: Engine, **settings: object) -> Iterator[WorkerThread]:
    made = WorkerThread(url, engine, **settings).start()  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.stop()


class WorkerProcess:
    """`vedette-worker run` as a user starts it."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_suffix(".log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cloud_worker", "run", "--config", str(config)],
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
        )
        self._path = config.with_suffix(".log")

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def end(self, how: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait(120)
        self._log.close()
        return code
