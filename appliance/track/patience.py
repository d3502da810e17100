"""How long a track that is not seen is waited for, and whether it needs a look soon."""

from __future__ import annotations

from appliance.track.trace import Trace

LOST_S = 2.5
LEFT_S = 1.0  # who was last seen cut off by the picture's border has more likely left than been hidden
LEFT_MISSES = 2  # and is not looked for any more, though known again until then
# What parks may be hidden by a lorry; what rests and is seen every few seconds must be missed more than once or twice.
HIDDEN_S = 60.0
REST_MISSES = 3


def is_settled(track: Trace) -> bool:
    """Whether nothing is to be expected of it within the next seconds."""
    if has_left(track):
        return True
    if not track.number or not track.at_rest:
        return False
    return track.missed == 0 or track.missed > REST_MISSES


def has_left(track: Trace) -> bool:
    """Whether it went out of the picture, as far as can be told. It ages wherever one looks."""
    return track.missed >= LEFT_MISSES and track.place is None and track.at_edge()


def is_awaited(track: Trace) -> bool:
    """Whether a track that was missed is waited for."""
    if track.place is not None:
        return track.unseen_s <= HIDDEN_S
    patience_s = LEFT_S if track.at_edge() else LOST_S
    return track.unseen_s <= patience_s or (track.at_rest and track.missed < REST_MISSES)
