"""An event loop and a clock for which time passes faster: what waits for thirty seconds is seen in one."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time

from appliance.base.clock import SystemClock


class _FastSelector(selectors.DefaultSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout if timeout is None else timeout / self._speed)


class FastLoop(asyncio.SelectorEventLoop):
    """Its time, and so every limit and pause of what runs in it, passes `speed` times as fast."""

    def __init__(self, speed: float) -> None:
        super().__init__(_FastSelector(speed))
        self._speed = speed

    def time(self) -> float:
        return time.monotonic() * self._speed


class FastClock(SystemClock):
    """`monotonic` and `sleep` pass `speed` times as fast; the wall clock does not."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def monotonic(self) -> float:
        return time.monotonic() * self._speed

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        return super().sleep(seconds / self._speed, stop)
