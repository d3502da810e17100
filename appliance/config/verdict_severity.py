"""`severity_on_verdict`, of escalations and of a rule: the severity that an alert takes with a verdict."""

from __future__ import annotations

from appliance.base.config_model import ConfigModel
from appliance.types import SEVERITIES, Decision, Severity


class VerdictSeverityConfig(ConfigModel):
    """The severity that an alert takes with a verdict; None: it keeps its own. Only `confirmed` may make it graver."""

    confirmed: Severity | None = None
    rechecked: Severity | None = None
    rejected: Severity | None = "info"

    def after(self, severity: Severity, decision: Decision) -> Severity:
        """Return the severity after a verdict; severity: by the rules."""
        if decision == "confirmed":
            return self.confirmed or severity
        wanted = {"rechecked": self.rechecked, "rejected": self.rejected}.get(decision) or severity
        return min(wanted, severity, key=SEVERITIES.index)
