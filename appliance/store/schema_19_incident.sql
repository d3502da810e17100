-- Schema 19: alerts of several cameras that are one incident.

ALTER TABLE alert ADD COLUMN incident TEXT NOT NULL DEFAULT '';   -- the id of its first alert; '': the alert is alone
CREATE INDEX alert_incident ON alert (incident) WHERE incident <> '';
