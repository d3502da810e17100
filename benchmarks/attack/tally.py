"""Findings of an attack: tries, answers that are errors of ours, hangs, and doors."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

DOORS_KEPT = 50


@dataclass
class Tally:
    """The count of one part of the attack. Any thread may count.

    `errors` are answers of 500 and above, and log lines of a bug. `hangs`: nothing came in time, and the connection
    stayed. `doors` says in words what an attacker got without a right to it.
    """

    name: str
    tries: int = 0
    errors: int = 0
    hangs: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    doors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, answer: str, what: str = "") -> None:
        with self._lock:
            self.tries += 1
            self.answers[answer] += 1
            if answer.startswith("5") and answer not in {"503", "501"}:
                self.errors += 1
                self.faults.append(f"{answer}: {what[:300]}")
            if answer == "hang":
                self.hangs += 1
                self.faults.append(f"hang: {what[:300]}")

    def door(self, words: str) -> None:
        with self._lock:
            if len(self.doors) < DOORS_KEPT:
                self.doors.append(words[:300])

    def error(self, words: str) -> None:
        with self._lock:
            self.errors += 1
            self.faults.append(words[:300])

    @property
    def clean(self) -> bool:
        return not (self.errors or self.hangs or self.doors)

    def line(self) -> str:
        most = ", ".join(f"{name} {count}" for name, count in self.answers.most_common(9))
        return f"{self.name:<22} {self.tries:>7} {self.errors:>5} {self.hangs:>6} {len(self.doors):>6}  {most}"
