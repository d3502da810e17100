-- Schema 20: which network raised an alert, so that answers can be counted by its version.

ALTER TABLE alert ADD COLUMN model TEXT NOT NULL DEFAULT '';     -- as camera.model was then; '': not known
UPDATE alert SET model = coalesce((SELECT json_extract(body, '$.model') FROM escalation WHERE escalation.alert = alert.id LIMIT 1), '');
