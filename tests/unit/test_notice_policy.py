"""Sent now, held, dropped, sent again: what decides, as a table and as laws."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.notify.notice_policy import WITHDRAWN_REASON, NoticeDecision, NoticeInput, decide_notice
from appliance.store.escalations import Delivery
from appliance.store.notices import Standing
from appliance.types import SEVERITIES

HELD = NoticeInput(
    now=100.0, due_t=115.0, held_s=5.0, hold_s=20.0, standing="unverified", severity="warning", delivery="sent",
    cloud_answers=True,
)  # fmt: skip


def test_waits_while_the_cloud_is_at_work() -> None:
    assert decide_notice(HELD).kind == "hold"


@pytest.mark.parametrize(
    "change",
    [
        {"standing": "confirmed", "delivery": "settled"},
        {"standing": "unsure", "delivery": "settled"},
        {"standing": "edge", "delivery": None},
        {"delivery": "deferred"},
        {"delivery": "expired"},
        {"cloud_answers": False},
        {"now": 115.0},
        {"held_s": 20.0},
        {"hold_s": 0.0, "due_t": 100.0},
        {"maybe_delivered": True},
        {"now": 90.0},  # the clock was set back: it would be held for longer than it may
    ],
    ids=["confirmed", "unsure", "not asked", "put off", "given up", "nobody answers", "due", "held for long enough",
         "no hold", "may have arrived", "clock set back"],
)  # fmt: skip
def test_sends_at_once(change: dict[str, object]) -> None:
    assert decide_notice(replace(HELD, **change)) == NoticeDecision("send")  # type: ignore[arg-type]


def test_nothing_is_sent_of_what_the_cloud_rejects_in_time() -> None:
    rejected = replace(HELD, standing="withdrawn", delivery="settled")
    assert decide_notice(rejected) == NoticeDecision("drop", WITHDRAWN_REASON, "withdrawn")
    # Whatever may have arrived is taken back, as whoever read it would still believe it.
    assert decide_notice(replace(rejected, maybe_delivered=True)) == NoticeDecision("send")


def test_a_repetition_is_quiet_and_a_hold_comes_first() -> None:
    assert decide_notice(replace(HELD, quiet_reason="told before")).kind == "hold"
    assert decide_notice(replace(HELD, standing="confirmed", quiet_reason="told before")) == NoticeDecision(
        "drop", "told before", "quiet"
    )


@pytest.mark.parametrize(
    ("told", "standing", "kind"),
    [
        ("unverified", "unverified", "keep"),
        ("unverified", "confirmed", "send"),
        ("unverified", "withdrawn", "send"),
        ("unverified", "unsure", "keep"),
        ("edge", "unverified", "keep"),
        ("edge", "confirmed", "send"),
        ("confirmed", "confirmed", "keep"),
        ("confirmed", "withdrawn", "send"),
        ("withdrawn", "withdrawn", "keep"),
        ("withdrawn", "confirmed", "send"),
    ],
)
def test_only_what_changes_a_mind_is_sent_again(told: Standing, standing: Standing, kind: str) -> None:
    assert decide_notice(replace(HELD, sent_standing=told, sent_severity="warning", standing=standing)).kind == kind


def test_a_more_severe_alert_is_sent_again_unless_it_was_nothing() -> None:
    graver = replace(HELD, sent_standing="unverified", sent_severity="warning", severity="alert")
    assert decide_notice(graver).kind == "send"
    assert decide_notice(replace(graver, sent_standing="withdrawn", standing="withdrawn")).kind == "keep"


@given(
    now=st.floats(-1e6, 1e6),
    held_s=st.floats(0, 1e6),
    hold_s=st.floats(0, 600),
    standing=st.sampled_from(get_args(Standing)),
    delivery=st.sampled_from([*get_args(Delivery), None]),
    answers=st.booleans(),
    severity=st.sampled_from(SEVERITIES),
)
def test_no_hold_lasts_longer_than_it_may_whatever_the_clock_does(
    now: float, held_s: float, hold_s: float, standing: Standing, delivery: Delivery, answers: bool, severity: object
) -> None:
    notice = replace(
        HELD, now=now, due_t=50.0, held_s=held_s, hold_s=hold_s, standing=standing, delivery=delivery,
        cloud_answers=answers, severity=severity,
    )  # type: ignore[arg-type]  # fmt: skip
    decision = decide_notice(notice)
    assert decision.kind in {"hold", "send", "drop"}
    if held_s >= hold_s or now >= 50.0 or now < 50.0 - hold_s or not answers or standing != "unverified":
        assert decision.kind != "hold"
