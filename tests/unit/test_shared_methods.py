"""What dataclasses share answers as what was written for each did."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from appliance.base.process_memory import share_methods


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    name: str = field(default="", repr=False)
    inner: Point | None = None


@dataclass(frozen=True)
class Open:
    x: int


class Named(Open):
    """A plain subclass, which may have attributes of its own."""


@dataclass
class Own:
    x: int

    def __repr__(self) -> str:
        return "own"


@dataclass
class Ring:
    next: Ring | None = None


def test_the_answers_are_as_before() -> None:
    point, named, ring = Point(1, "a", Point(2)), Named(1), Ring()
    ring.next = ring
    before = repr(point), repr(Own(1)), repr(ring), repr(named), hash(point)

    assert share_methods(__name__) >= 2 + 3 + 1  # the refusals of Point and Open, and representations
    assert Point.__setattr__ is Open.__setattr__
    assert (repr(point), repr(Own(1)), repr(ring), repr(named), hash(point)) == before
    assert point == Point(1, "a", Point(2))
    assert point != Point(1, "b", Point(2))
    for one in (point, named):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
            one.x = 2  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
            del one.x  # type: ignore[misc]
    named.note = "kept"  # type: ignore[attr-defined]
    assert vars(named)["note"] == "kept"
    del named.note  # type: ignore[attr-defined]
    assert "note" not in vars(named)
