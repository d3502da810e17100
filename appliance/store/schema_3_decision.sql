-- Schema 3: what the router decided, and which questions wait for a better moment.

CREATE TABLE decision (                   -- one row for each decision of the router (types.Route)
    id       INTEGER PRIMARY KEY,
    alert    TEXT NOT NULL REFERENCES alert (id),
    event    TEXT NOT NULL,
    camera   TEXT NOT NULL,
    t        REAL NOT NULL,               -- of the event
    made_t   REAL NOT NULL,               -- when it was decided
    moment   TEXT NOT NULL,               -- now | later | never
    evidence TEXT NOT NULL,               -- facts | crops | frames | clip: with which the question begins
    priority TEXT NOT NULL,
    reason   TEXT NOT NULL,
    wait     TEXT NOT NULL,
    until_t  REAL,
    value    REAL NOT NULL,
    bytes    INTEGER NOT NULL,            -- expected, as are gpu_s and money
    gpu_s    REAL NOT NULL,
    money    REAL NOT NULL,
    inputs   TEXT NOT NULL,               -- JSON types.RouteInputs
    UNIQUE (alert, event, moment, priority, reason)
) STRICT;

CREATE INDEX decision_made ON decision (made_t);

ALTER TABLE escalation ADD COLUMN evidence TEXT NOT NULL DEFAULT ''; -- facts | crops | frames | clip: it begins with this; '': the site file's first
ALTER TABLE escalation ADD COLUMN wait TEXT NOT NULL DEFAULT '';     -- what it waits for; '': for nothing
ALTER TABLE escalation ADD COLUMN until_t REAL;                      -- and not before; NULL: once that has passed
-- With `wait` set, an escalation whose evidence is there is `deferred`, not `ready`, until the core lets it go.
CREATE INDEX escalation_deferred ON escalation (created_t) WHERE wait <> '';
