"""Messages about an alert: one JSON object, and its still, if that may go with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from appliance.base.clock import iso_utc
from appliance.config import CameraConfig, MqttConfig
from appliance.evidence.privacy import PrivacyRules
from appliance.store.alerts import AlertStore
from appliance.store.rows import AlertRow, EvidenceRow
from appliance.types import SEVERITIES

_SUMMARY_CHARS_MAX = 255  # of a state in Home Assistant


class AlertMessages:
    """Builds the messages about alerts. Holds no state.

    A broker off the site hears of an alert what a notification's target off the site would: its events that
    `privacy.never` does not cover.
    """

    def __init__(
        self,
        mqtt: MqttConfig,
        site: str,
        public_url: str,
        cameras: Mapping[str, CameraConfig],
        privacy: PrivacyRules,
        alerts: AlertStore,
    ) -> None:
        self._mqtt = mqtt
        self._site = site
        self._base = public_url.rstrip("/")
        self._cameras = cameras
        self._privacy = privacy
        self._alerts = alerts

    def shows_stills_of(self, camera: str) -> bool:
        """Return True if stills of this camera are published at all.

        Stills are not redacted: where images leave redacted, they do not leave like this.
        """
        if not self._mqtt.pictures or camera not in self._cameras:
            return False
        redacted = self._cameras[camera].privacy.redacts_images
        return self._mqtt.local or not (redacted or self._privacy.is_image_free(camera))

    def build(self, row: AlertRow) -> dict[str, Any] | None:
        """None: privacy forbids any message. Raises StoreError."""
        every = self._alerts.events_of(row.id)
        events = [each for each in every if self._mqtt.local or self._privacy.level(each) != "never"]
        if not events:
            return None
        complete = len(events) == len(every)
        labels, rules = _unique(each.label for each in events), _unique(each.rule for each in events)
        return {
            "type": "alert",
            "version": 1,
            "site": self._site,
            "camera": row.camera,
            "alert": row.id,
            "severity": row.severity if complete else max((each.severity for each in events), key=SEVERITIES.index),
            "standing": row.standing,
            "verdict": row.verdict,
            "review": row.review,
            "rules": rules,
            "labels": labels,
            "zones": [zone for zone in _unique(each.zone for each in events) if zone],
            "score": max(each.score for each in events),
            "t": row.t_start,
            "time": iso_utc(row.t_start),
            "t_end": row.t_end,
            "link": f"{self._base}/alerts/{quote(row.id, safe='')}" if self._base else "",
            "summary": f"{' and '.join(labels) or 'something'}: {', '.join(rules)}"[:_SUMMARY_CHARS_MAX],
        }

    def still(self, row: AlertRow) -> EvidenceRow | None:
        """Return the still as it is now; None if there is none yet, or it may not be published.

        A better still may replace it.
        """
        if row.still != "ready" or not self.shows_stills_of(row.camera):
            return None
        detail = self._alerts.get(row.id)
        if detail is None:
            return None
        if not self._mqtt.local and any(self._privacy.level(event) != "free" for event in detail.events):
            return None
        piece = detail.piece("still")
        return None if piece is None or piece.state != "ready" else piece


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
