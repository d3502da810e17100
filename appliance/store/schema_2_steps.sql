-- Schema 2: a question may take several messages, each with more evidence than the one before.

ALTER TABLE escalation ADD COLUMN step INTEGER NOT NULL DEFAULT 0;  -- the message that is being made, sent or answered
ALTER TABLE escalation ADD COLUMN need TEXT NOT NULL DEFAULT '';    -- crop | frame | clip: what the cloud asked to see

ALTER TABLE verdict ADD COLUMN step INTEGER NOT NULL DEFAULT 0;     -- which step settled it

CREATE TABLE step (                       -- what each message of a question carried and cost
    escalation TEXT NOT NULL REFERENCES escalation (id),
    n          INTEGER NOT NULL,          -- 0: the first message
    evidence   TEXT NOT NULL DEFAULT '',  -- facts | crop | frame | clip; '' while it is being made
    bytes_sent INTEGER NOT NULL DEFAULT 0, -- payload and headers, retries included
    answer     TEXT,                      -- JSON wire.Verdict that asked for more; NULL: none (yet), or it was the last
    PRIMARY KEY (escalation, n)
) STRICT, WITHOUT ROWID;
