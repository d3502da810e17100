"""When each frame of a camera was taken, as its server reports: between frame numbers and UTC seconds."""

from __future__ import annotations

from bisect import bisect_right


class FrameClock:
    """State: the frames from which on the rate holds. Written by the thread that reads the server's lines."""

    def __init__(self, fps: float) -> None:
        self._fps = fps
        self._frames: list[int] = []
        self._times: list[float] = []

    def note(self, frame: int, t: float) -> None:
        """From `frame` on, taken at `t`, the rate holds; in rising order."""
        self._frames.append(frame)
        self._times.append(t)

    @property
    def begun(self) -> bool:
        return bool(self._frames)

    def t(self, frame: int) -> float:
        """Return the UTC seconds of a frame."""
        at = max(0, bisect_right(self._frames, frame) - 1)
        return self._times[at] + (frame - self._frames[at]) / self._fps

    def frame(self, t: float) -> int:
        """Return the frame that was taken nearest to `t`."""
        at = max(0, bisect_right(self._times, t + 0.5 / self._fps) - 1)
        return self._frames[at] + round((t - self._times[at]) * self._fps)
