-- Schema 7: who is told of an alert, and how that went.

CREATE TABLE notice (                     -- one row for each alert and target
    id        TEXT PRIMARY KEY,           -- goes with every message about it: a receiver tells repeats by it
    alert     TEXT NOT NULL REFERENCES alert (id),
    target    TEXT NOT NULL,
    camera    TEXT NOT NULL,
    state     TEXT NOT NULL,              -- waiting | told | changed | withdrawn | quiet | forbidden | given_up
    created_t REAL NOT NULL,
    due_t     REAL NOT NULL,              -- held for a verdict until then at the latest
    expire_t  REAL NOT NULL,              -- given up then
    attempts  INTEGER NOT NULL DEFAULT 0, -- of the message that is to be sent
    doubtful  INTEGER NOT NULL DEFAULT 0, -- 1: a try may have arrived although nobody said so
    messages  INTEGER NOT NULL DEFAULT 0, -- that arrived
    told_t    REAL,                       -- when the first did
    last_t    REAL,                       -- and the last
    standing  TEXT NOT NULL DEFAULT '',   -- what the last one said: edge | unverified | confirmed | withdrawn | unsure
    severity  TEXT NOT NULL DEFAULT '',   -- and with which severity
    rules     TEXT NOT NULL DEFAULT '[]', -- and of which rules (JSON list)
    reason    TEXT NOT NULL DEFAULT ''    -- the last problem, or why nothing was sent
) STRICT;
CREATE UNIQUE INDEX notice_alert ON notice (alert, target);
CREATE INDEX notice_open ON notice (target, state) WHERE state IN ('waiting', 'changed');
CREATE INDEX notice_told ON notice (target, camera, told_t) WHERE told_t IS NOT NULL;
-- Changes of alerts up to this number were looked at for what was told.
INSERT INTO counter SELECT 'notice', value FROM counter WHERE name = 'rev';
