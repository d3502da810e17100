-- Schema 23: what the headers of the cameras' sessions said, so that stored boxes are judged again as they were then.

CREATE TABLE stream (
    camera       TEXT NOT NULL,
    run          TEXT NOT NULL,
    t            REAL NOT NULL,           -- when it began
    known_before INTEGER NOT NULL,        -- 1: what stood there before it was known
    calibration  TEXT NOT NULL,           -- of the network's scores, as JSON; see StreamHeader
    PRIMARY KEY (camera, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX stream_t ON stream (camera, t);
