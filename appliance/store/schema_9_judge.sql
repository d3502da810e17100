-- Schema 9: who judged. What a detector found again is rechecked, and not confirmed.

ALTER TABLE alert ADD COLUMN judge TEXT;              -- vlm | person | detector | simulated | unknown; NULL: no verdict
ALTER TABLE alert ADD COLUMN verdict_confidence REAL; -- 0..1, as the judge says; NULL: it does not
ALTER TABLE alert ADD COLUMN rules_severity TEXT;     -- what the rules say, where a verdict changed `severity`; or NULL

CREATE INDEX verdict_alert ON verdict (alert);

UPDATE alert SET (judge, verdict_confidence) =
    (SELECT CASE json_extract(body, '$.engine') WHEN 'openai' THEN 'vlm' WHEN 'redetect' THEN 'detector' ELSE 'unknown' END,
            json_extract(body, '$.confidence')
     FROM verdict WHERE verdict.alert = alert.id ORDER BY applied_t DESC, escalation DESC LIMIT 1)
    WHERE verdict IS NOT NULL;
UPDATE alert SET verdict = 'rechecked' WHERE verdict = 'confirmed' AND judge IS NOT 'vlm';
UPDATE verdict SET decision = 'rechecked'
    WHERE decision = 'confirmed' AND json_extract(body, '$.engine') IS NOT 'openai';

-- So is what the appliance itself found again.
UPDATE alert SET edge = 'rechecked' WHERE edge = 'confirmed';
UPDATE second_look SET body = json_set(body, '$.decision', 'rechecked')
    WHERE json_extract(body, '$.decision') = 'confirmed';
