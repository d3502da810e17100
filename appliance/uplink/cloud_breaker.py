"""The circuit breaker of the uplink: while the cloud does not answer, escalations wait and one is sent as a probe."""

from __future__ import annotations

import logging

from appliance.base.backoff import CircuitBreaker, CircuitState
from appliance.base.clock import Clock

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
        """Record that the link is up. Silence of the workers is measured from this time on."""
        self._verdict_at = self._clock.monotonic()
        if self.state.name == "open" and not self._silent:
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
