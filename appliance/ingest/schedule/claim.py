"""What a waiting look asks of the scheduler: by when, what it is worth, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

FOLLOWED_WORTH = 0.6
MOVED_WORTH = 0.4
NEWS_WORTH = 0.8
COST_LEAST = 0.5


@dataclass(frozen=True, slots=True)
class Claim:
    """One camera's turn, as it waits now. Times are monotonic seconds.

    since: when the camera began to wait for this turn (a newer picture keeps its predecessor's place). due: when it
    should begin. promise: when it has to begin, or the camera's heartbeat is broken. worth: 0..2, see `worth_of`.
    area: share of a whole picture. size: (width, height) in pixels as far as it can be told, (0, 0): it cannot.
    """

    since: float
    due: float
    promise: float
    worth: float
    area: float = 1.0
    size: tuple[int, int] = (0, 0)


def worth_of(moved: float, *, followed: bool, news: bool = False, area: float = 1.0) -> float:
    """Worth of a look: that somebody is followed, how much moved, or that a cue called for it; more when it is cheap.

    moved: share of the picture, 0..1. Its root counts: a person far away moves a hundredth of the picture, rain all of
    it. news: decoded after the fact, because a cue says that something began. area: what it costs, in whole pictures;
    a small one is worth up to twice as much.
    """
    worth = FOLLOWED_WORTH * followed + MOVED_WORTH * min(1.0, max(0.0, moved)) ** 0.5
    if news:
        worth = max(worth, NEWS_WORTH)
    return float(worth / (COST_LEAST + (1 - COST_LEAST) * min(1.0, max(0.0, area))))
