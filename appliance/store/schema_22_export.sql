-- Schema 22: clips made for somebody outside, and the link to one that ends; the camera in the access log; erasures.

CREATE TABLE export (                     -- a row outlives its files: it says who took what out of the site
    id         TEXT PRIMARY KEY,
    t          REAL NOT NULL,             -- when it was made
    who        TEXT NOT NULL,
    why        TEXT NOT NULL,
    camera     TEXT NOT NULL,
    alert      TEXT NOT NULL,             -- '': a span of the camera
    t_start    REAL NOT NULL,             -- of the span that was asked for
    t_end      REAL NOT NULL,
    hide       TEXT NOT NULL,             -- surroundings | people
    state      TEXT NOT NULL,             -- making | ready | failed | gone
    problem    TEXT NOT NULL DEFAULT '',
    bytes      INTEGER NOT NULL DEFAULT 0, -- of the zip
    sha256     TEXT NOT NULL DEFAULT '',  -- of the zip
    taken      INTEGER NOT NULL DEFAULT 0, -- how often the zip was downloaded
    link       TEXT,                      -- the digest of the link's token; NULL: there is none
    link_until REAL NOT NULL DEFAULT 0,
    opened     INTEGER NOT NULL DEFAULT 0 -- how often the link was opened
) STRICT, WITHOUT ROWID;
CREATE INDEX export_t ON export (t);
CREATE UNIQUE INDEX export_link ON export (link) WHERE link IS NOT NULL;

CREATE TABLE erasure (                    -- what a person had erased of a camera, and what could not be reached
    id      INTEGER PRIMARY KEY,
    t       REAL NOT NULL,
    who     TEXT NOT NULL,
    camera  TEXT NOT NULL,
    t_start REAL NOT NULL,
    t_end   REAL NOT NULL,
    receipt TEXT NOT NULL                 -- JSON
) STRICT;

ALTER TABLE access_log ADD COLUMN camera TEXT NOT NULL DEFAULT '';
CREATE INDEX access_log_t ON access_log (t);
