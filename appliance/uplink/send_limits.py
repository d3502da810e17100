"""Limits on what the uplink sends: circuit breaker, token bucket for the rate, cap for the day, and their counters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from appliance.base.backoff import CircuitBreaker, CircuitState
from appliance.base.clock import Clock, local_day
from appliance.broker.nats_connection import LinkState
from appliance.config import UplinkConfig
from appliance.store.meter import Meter, Metric, MetricName
from appliance.wire import PRIORITIES

PROBE_FIRST_S = 30.0  # a worker that was restarted is back within that
PROBE_LAST_S = 900.0  # what an outage's end may cost in delay; a probe costs one escalation's bytes
ANSWER_S = 60.0  # a probe is answered within that, or counts as failed: twice a slow model's answer
FAILURES_MAX = 3  # refusals in a row; one or two are a leader election of the broker

logger = logging.getLogger(__name__)


class CloudBreaker:
    """Opens when the broker fails repeatedly, or when no worker answers an escalation for `silent_s`.

    After a failure of the broker the uplink probes at its own pace; the first accepted message closes the circuit.
    After silence of the workers one escalation is sent as a probe after 30 s, then after twice as long each time, up to
    15 minutes; any verdict closes the circuit. Owner: the uplink's event loop; any thread reads `state`.
    """

    def __init__(self, silent_s: float, clock: Clock) -> None:
        self._silent_s = silent_s
        self._clock = clock
        self._circuit = CircuitBreaker(clock, PROBE_FIRST_S, PROBE_LAST_S)
        self._failures = 0
        self._silent = False
        self._verdict_at = clock.monotonic()
        self._tried = False

    @property
    def state(self) -> CircuitState:
        return self._circuit.state

    @property
    def blocks(self) -> bool:
        """No further escalation may be sent now."""
        return self._silent and (self.state.name == "open" or self._tried)

    @property
    def silent(self) -> bool:
        """No worker answers, although the broker does."""
        return self._silent

    def region_left(self) -> None:
        """Record that other workers, in another region, are asked from here on."""
        self._silent = self._tried = False
        self._verdict_at = self._clock.monotonic()
        self._circuit.close()

    @property
    def one_at_a_time(self) -> bool:
        return not self._circuit.is_closed()

    def publish_failed(self, why: str) -> None:
        """Record that the broker did not take a message, or is not there."""
        self._failures += 1
        if self._failures >= FAILURES_MAX and not self._silent:
            self._circuit.open(why)

    def link_lost(self, why: str) -> None:
        """Record that the link is down."""
        if not self._silent:
            self._circuit.open(why)

    def link_restored(self) -> None:
        """Record that the link is up. Silence of the workers is measured from this time on, unless it lasts already."""
        if self._silent:
            return
        self._verdict_at = self._clock.monotonic()
        if self.state.name == "open":
            self._circuit.half_open()

    def message_stored(self) -> None:
        """Record that the broker stored a message."""
        self._failures = 0
        if not self._silent and not self._circuit.is_closed():
            self._circuit.close()

    def escalation_stored(self) -> None:
        """Record that the broker stored an escalation."""
        if self._silent and not self._tried:
            self._circuit.delay_probe(ANSWER_S, lengthen=False)
        self._tried = True

    def verdict_received(self) -> bool:
        """Record a verdict; return True if that lets the waiting escalations go."""
        self._verdict_at = self._clock.monotonic()
        self._circuit.forgive()
        if not self._silent:
            return False
        self._silent = False
        self._circuit.close()
        logger.info("the cloud answers again: what waited is sent")
        return True

    def check_silence(self, oldest_s: float | None) -> None:
        """Check for silence. oldest_s: the wait of the oldest escalation at the cloud; None: none waits."""
        quiet_s = self._clock.monotonic() - self._verdict_at
        if not self._silent:
            if oldest_s is not None and min(oldest_s, quiet_s) > self._silent_s and self._circuit.is_closed():
                self._silent = True
                self._open_for_silence(quiet_s)
        elif self._circuit.probe_in_s > 0:
            return
        elif self.state.name == "open":
            self._tried = False
            self._circuit.half_open()
        elif self._tried:
            self._open_for_silence(quiet_s)

    def _open_for_silence(self, quiet_s: float) -> None:
        why = f"no worker has answered for {quiet_s / 60:.0f} min"
        self._circuit.delay_probe()
        self._circuit.open(why)
        logger.warning("%s: escalations wait on this appliance, and one at a time is tried", why)


BURST_S = 1.0  # of the rate: what an alert with its crops takes
BURST_BYTES_MIN = 32 * 1024  # so that a slow rate still lets one crop go at once
SLACK_S = 0.25  # of the rate: what the backlog may make up for after it gave way (see send_workers.GIVE_WAY_S)
URGENT = PRIORITIES[:1]
UPLINK_BYTES = Metric(MetricName.UPLINK_BYTES)
PROTOCOL_BYTES = Metric(MetricName.UPLINK_BYTES, "protocol")
RESENT_BYTES = Metric(MetricName.UPLINK_BYTES, "resent")
# All that the link sends, by purpose: UPLINK_BYTES has the bytes of notifications and of MQTT, too.
LINK_BYTES = (
    *(Metric(MetricName.UPLINK_BYTES, purpose) for purpose in ("facts", "crop", "frame", "clip", "again")),
    PROTOCOL_BYTES,
    RESENT_BYTES,
)


class RateLimiter:
    """Limits and counts all bytes that the link puts on the wire, also those that need not wait.

    Owner: the uplink's task. State: the rate's bucket, the day's cap and the counter.
    """

    def __init__(self, settings: UplinkConfig, meter: Meter, clock: Clock, link: Callable[[], LinkState]) -> None:
        """link: what the link has put on the wire so far."""
        self._counter = TrafficCounter(meter)
        self._bucket = TokenBucket(settings.kbps_max, clock)
        self._link = link
        self.daily_cap = DailyCap(
            settings.mb_day,
            settings.over_mb_day,
            lambda day: sum(meter.total_of_day(each, day) for each in LINK_BYTES),
            clock,
        )

    def wait_s(self, *, live: bool) -> float:
        """Seconds until a message may go; 0: now."""
        return self._bucket.wait_s(live=live)

    def charge(self, camera: str, purpose: str, size: int) -> None:
        """Count a message of `size` bytes that the link takes. purpose: see TrafficCounter."""
        self._counter.count_message(camera, purpose, size)
        self._spend(size)

    def charge_overhead(self) -> None:
        """Count what the wire carried beyond the messages."""
        self._spend(self._counter.count_overhead(self._link()))

    def _spend(self, size: int) -> None:
        self._bucket.take(size)
        self.daily_cap.spend(size)


class TokenBucket:
    """Bytes that may be sent now, refilled at the rate of `kbps_max`.

    State: the level, at most `burst` (the bytes of one second) and a little slack. Backlog is sent while the level is
    above `burst`, so that the burst is reserved for live escalations. These are sent while the level is above zero. A
    message is charged whole: the level may fall below zero, and the next one waits longer. Over any time the sum is at
    most the rate times that time, plus one burst, its slack and one message. Owner: the uplink's task. Without a rate
    nothing waits.
    """

    def __init__(self, kbps_max: float | None, clock: Clock) -> None:
        self._clock = clock
        self._rate = kbps_max * 1000 / 8 if kbps_max is not None else 0.0
        self._burst = max(BURST_S * self._rate, BURST_BYTES_MIN)
        self._full = self._burst + SLACK_S * self._rate
        self._level = self._full
        self._at = clock.monotonic()

    def wait_s(self, *, live: bool) -> float:
        """Seconds until a message may go; 0: now."""
        if not self._rate:
            return 0.0
        self._refill()
        return max(0.0, (0.0 if live else self._burst) - self._level) / self._rate

    def take(self, amount: int) -> None:
        """`amount` bytes were sent, whether they had to wait or not."""
        if self._rate:
            self._refill()
            self._level -= amount

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._level = min(self._full, self._level + (now - self._at) * self._rate)
        self._at = now


class DailyCap:
    """The bytes that may be sent in a calendar day, protocol included.

    State: the bytes sent today, and whether a message did not fit. Sending then ends for the day, so that the order of
    waiting escalations is kept. Owner: the uplink's task. The connection's keep-alive goes on, and is counted.
    """

    def __init__(
        self, mb_day: float | None, over: Literal["urgent", "wait"], sent_on: Callable[[str], int], clock: Clock
    ) -> None:
        """sent_on: bytes that the meter has for a day (`local_day`); called at the start and when the day changes."""
        self._bytes = None if mb_day is None else int(mb_day * 1e6)
        self._over = over
        self._sent_on = sent_on
        self._clock = clock
        self._day = ""
        self._sent = 0
        self._used_up = False

    @property
    def reason(self) -> str:
        """The reason for which messages wait; '': none waits."""
        if self._bytes is None or not self._used_up:
            return ""
        who = "all but the most urgent waits" if self._over == "urgent" else "all questions wait"
        return f"the {self._bytes / 1e6:g} MB of today are sent: {who} until midnight (uplink.mb_day)"

    def priorities(self) -> tuple[str, ...]:
        """Return the priorities whose escalations may be sent now."""
        self._roll()
        if not self._used_up:
            return PRIORITIES
        return URGENT if self._over == "urgent" else ()

    def fits(self, size: int, priority: str) -> bool:
        """Return True if a message of `size` bytes fits today's cap. A refusal ends the day for waiting messages."""
        if self._bytes is None:
            return True
        self._roll()
        if self._sent + size > self._bytes:
            self._used_up = True
        return priority in self.priorities()

    def spend(self, amount: int) -> None:
        """`amount` bytes were sent."""
        self._roll()
        self._sent += amount

    def _roll(self) -> None:
        """Begin a new day with the bytes that the meter has for it."""
        if self._bytes is None:
            return
        day = local_day(self._clock.now())
        if day != self._day:
            self._day, self._sent, self._used_up = day, self._sent_on(day), False
        self._used_up = self._used_up or self._sent >= self._bytes


class TrafficCounter:
    """Counts the bytes that the uplink sends: the sum of `uplink_bytes` is never below the bytes on the wire.

    A message is counted when the link takes it, for its camera and purpose: payload, subject and headers. All other
    bytes on the wire (TLS, TCP/IP and Ethernet headers, acknowledgements, keep-alive, handshakes, attempts to connect)
    belong to no camera: TCP retransmissions are `resent`, the rest is `protocol`. Owner: the uplink's task. State: what
    was counted so far.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._counted = 0
        self._resent = 0

    def count_message(self, camera: str, purpose: str, size: int) -> None:
        """Count a message that is sent. purpose: facts, crop, frame or clip; `again` if it was sent before."""
        self._meter.add(camera, UPLINK_BYTES, size)
        self._meter.add(camera, Metric(MetricName.UPLINK_BYTES, purpose), size)
        self._counted += size

    def count_overhead(self, link: LinkState) -> int:
        """Count the bytes on the wire beyond the messages; return how many were added."""
        beyond = link.wire - self._counted
        if beyond <= 0:  # below zero: the link has not read its socket since the last message
            return 0
        resent = min(beyond, link.resent - self._resent)
        self._meter.add("", UPLINK_BYTES, beyond)
        self._meter.add("", RESENT_BYTES, resent)
        self._meter.add("", PROTOCOL_BYTES, beyond - resent)
        self._counted += beyond
        self._resent += resent
        return beyond
