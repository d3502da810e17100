"""All that is wrong at once in a replay, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.weather.spec import Condition, conditions


@dataclass(frozen=True, slots=True)
class Weather:
    """Conditions in their one order, and the seed that all chance in them comes from."""

    conditions: tuple[Condition, ...] = ()
    seed: int = 0

    @classmethod
    def read(cls, items: Iterable[str], seed: int = 0) -> Weather:
        """As a person writes it. Raises UsageError. Clear weather has no chance in it, so it has the seed 0."""
        found = conditions(items)
        return cls(found, seed) if found else CLEAR

    @property
    def words(self) -> tuple[str, ...]:
        """Each condition in full; `read(words, seed)` gives it back."""
        return tuple(each.words for each in self.conditions)

    @property
    def pictures(self) -> tuple[Condition, ...]:
        """Those that change what is in a frame."""
        return tuple(each for each in self.conditions if not each.kind.stream)

    @property
    def streams(self) -> tuple[Condition, ...]:
        """Those that change which frames come, and when."""
        return tuple(each for each in self.conditions if each.kind.stream)

    def __str__(self) -> str:
        return said(self.words, self.seed)


def said(words: Iterable[str], seed: int) -> str:
    """`rain:10mm, drop:5% (seed 7)`; "" for clear weather."""
    text = ", ".join(words)
    return f"{text} (seed {seed})" if text and seed else text


CLEAR = Weather()
