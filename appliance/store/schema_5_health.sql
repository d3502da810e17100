-- Schema 5: what was not as it should be with a camera or the box (types.HealthEvent).

CREATE TABLE health_event (
    id       TEXT PRIMARY KEY,
    camera   TEXT NOT NULL,               -- '' for the box
    kind     TEXT NOT NULL,
    t_start  REAL NOT NULL,
    t_end    REAL,                        -- NULL while it lasts
    told_t   REAL NOT NULL,               -- when it was noticed
    reason   TEXT NOT NULL,
    recovery TEXT NOT NULL,               -- what was tried last
    attempts INTEGER NOT NULL,
    times    INTEGER NOT NULL,            -- how often it came back
    ended_by TEXT NOT NULL DEFAULT '',    -- '' by itself
    seen_t   REAL,                        -- when a person said that it was seen
    rev      INTEGER NOT NULL
) STRICT;
CREATE INDEX health_event_time ON health_event (t_start DESC, id DESC);
CREATE INDEX health_event_rev ON health_event (rev);
CREATE INDEX health_event_open ON health_event (camera, kind) WHERE t_end IS NULL;
