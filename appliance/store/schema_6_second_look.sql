-- Schema 6: what the box itself says of an alert after a second look, while the cloud does not.

ALTER TABLE alert ADD COLUMN edge TEXT;            -- confirmed | unsure; NULL: it has not looked again
ALTER TABLE alert ADD COLUMN edge_confidence REAL; -- 0..1

CREATE TABLE second_look (                -- one row for each alert that was looked at again, or was to be
    alert    TEXT PRIMARY KEY REFERENCES alert (id),
    state    TEXT NOT NULL,               -- asked | judged | failed
    why      TEXT NOT NULL,               -- what kept the cloud from answering
    asked_t  REAL NOT NULL,
    attempts INTEGER NOT NULL,
    body     TEXT,                        -- JSON types.EdgeVerdict; NULL: none (yet)
    made_t   REAL,                        -- when it was judged, or given up
    error    TEXT NOT NULL DEFAULT ''     -- why it failed
) STRICT;

CREATE INDEX alert_created ON alert (created_t);
