"""What the router knows beyond one camera."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.clock import Period
from appliance.config import Escalation, SiteConfig
from appliance.escalate.calibration import UNTAUGHT, Calibration
from appliance.escalate.router.case import Cost, Surroundings, expected_bytes
from appliance.escalate.router.purse import Purse
from appliance.types import EVIDENCE_STEPS, Event, Privacy


@dataclass(slots=True)
class Outlook:
    """What was learnt, what may be spent, how link and box are doing, how far off-peak hours are.

    One for all cameras of a site. Owner: the core, which renews it, or a replay, in which surroundings are unknown; one
    thread. off_peak_in_s: seconds until off-peak hours at a time, 0 inside them; None: there are none. bytes_:
    expected of a question that begins with each evidence step. privacy: what may leave of an event's alert.
    """

    settings: Escalation
    purse: Purse
    off_peak_in_s: Callable[[float], float] | None = None
    calibration: Calibration = UNTAUGHT
    around: Surroundings = field(default_factory=Surroundings)
    bytes_: tuple[int, ...] = ()
    privacy: Callable[[Event], Privacy] = lambda event: "free"

    @classmethod
    def of(
        cls,
        config: SiteConfig,
        period: Callable[[float], Period],
        off_peak_in_s: Callable[[float], float] | None = None,
        privacy: Callable[[Event], Privacy] | None = None,
    ) -> Outlook:
        """With nothing learnt and nothing spent. privacy: see `appliance.privacy`; None: what `image_free` says."""
        settings = config.escalation
        purse = Purse(settings.budget, settings.prices, period)
        return cls(
            settings, purse, off_peak_in_s, bytes_=expected_bytes(settings), privacy=privacy or _by_image_free(config)
        )

    def costs(self, camera: str) -> tuple[Cost, ...]:
        """Of a question of this camera that begins with each evidence step."""
        steps = zip(self.bytes_, EVIDENCE_STEPS, strict=False)
        return tuple(self.purse.cost(bytes_, camera, step) for bytes_, step in steps)


def _by_image_free(config: SiteConfig) -> Callable[[Event], Privacy]:
    return lambda event: "image_free" if config.image_free(event.camera) else "free"
