-- Schema 8: who answered about an alert, the appliance or the cloud, how sure the appliance was, and what was a mere audit.

ALTER TABLE decision ADD COLUMN tier TEXT NOT NULL DEFAULT '';       -- edge | cloud; '': an older version decided
ALTER TABLE decision ADD COLUMN edge TEXT NOT NULL DEFAULT '';       -- sure | doubtful | between: the appliance's own answer
ALTER TABLE decision ADD COLUMN certainty REAL NOT NULL DEFAULT 0;   -- the probability that it is right
ALTER TABLE decision ADD COLUMN flagged TEXT NOT NULL DEFAULT '';    -- why it stands for now although the cloud is asked

-- 1: nothing was reported; a frame was sent to learn whether something was missed. No list shows it as an alert.
ALTER TABLE alert ADD COLUMN audit INTEGER NOT NULL DEFAULT 0;
CREATE INDEX alert_audit ON alert (camera, t_start) WHERE audit = 1;
