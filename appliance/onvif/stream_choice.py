"""Which of a camera's streams is recorded and which is given to the detector, with the reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.onvif.camera_client import StreamProfile

CLOCK_OFF_S = 3.0  # a camera tells whole seconds, and its answer takes some
_WANTED = {"h264": 0, "hevc": 0, "mjpeg": 1}


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """main: the token of the profile to record; '': none. sub: of that to detect on; '': main. why: a sentence."""

    main: str
    sub: str
    why: str


def choose_streams(profiles: Sequence[StreamProfile], side: int) -> StreamChoice:
    """Choose the largest stream for recording, and for detection the smallest one that fills the network.

    Both come from the same lens. side: the longer side, in pixels, of the network's input.
    """
    usable = [each for each in profiles if each.url and each.codec not in ("mpeg4",)]
    if not usable:
        return StreamChoice("", "", "None of its streams can be read.")
    main = min(usable, key=lambda each: (_WANTED.get(each.codec, 1), -_pixels(each), -(each.kbit_s or 0)))
    others = [
        each
        for each in usable
        if each.url != main.url and each.source == main.source and 0 < _pixels(each) < _pixels(main)
    ]
    enough = [each for each in others if max(each.size) >= side]
    if enough:
        sub = min(enough, key=lambda each: (_pixels(each), _WANTED.get(each.codec, 1)))
        why = f"{_size(sub)} for detection: the smallest stream that fills what the network sees ({side} px)."
        return StreamChoice(main.token, sub.token, why)
    if others:
        largest = max(others, key=_pixels)
        why = (
            f"One stream for both: the other ({_size(largest)}) is smaller than what the network sees ({side} px); "
            "raise it in the camera and detection costs a fraction."
        )
        return StreamChoice(main.token, "", why)
    return StreamChoice(main.token, "", "One stream for both: the camera names no smaller one.")


def clock_advice(ahead_s: float | None) -> str:
    """Return advice about the camera's clock; '' if there is nothing to do."""
    if ahead_s is None or abs(ahead_s) <= CLOCK_OFF_S:
        return ""
    amount = abs(ahead_s)
    shown = (
        f"{amount:.0f} s" if amount < 120 else f"{amount / 60:.0f} min" if amount < 7200 else f"{amount / 3600:.0f} h"
    )
    return (
        f"Its clock is {shown} {'ahead' if ahead_s > 0 else 'behind'}: set its time by NTP and its time zone, "
        "so that the time in its picture is the alert's."
    )


def _pixels(profile: StreamProfile) -> int:
    return profile.size[0] * profile.size[1]


def _size(profile: StreamProfile) -> str:
    return f"{profile.size[0]} × {profile.size[1]}"
