"""The one-slot hand-over between decoding and detection."""

from __future__ import annotations

from appliance.ingest.latest import Latest


def test_the_newest_wins_and_what_it_replaced_is_counted() -> None:
    slot: Latest[str] = Latest()
    for at, item in enumerate(("a", "b", "c")):
        slot.put(item, float(at))
    assert slot.dropped() == 2
    assert slot.take() == "c"
    assert slot.take() is None


def test_a_replacement_keeps_its_predecessors_place_in_the_queue() -> None:
    slot: Latest[str] = Latest()
    slot.put("a", 1.0)
    slot.put("b", 9.0)
    assert slot.peek() == ("b", 1.0)
    slot.take()
    slot.put("c", 10.0)
    assert slot.peek() == ("c", 10.0)


def test_what_is_thrown_away_is_counted_too() -> None:
    slot: Latest[str] = Latest()
    slot.put("a", 0.0)
    slot.clear()
    slot.clear()
    assert (slot.dropped(), slot.peek()) == (1, None)
