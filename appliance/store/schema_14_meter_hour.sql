-- Schema 14: what the page Savings draws hour by hour: a few kinds of `meter`, by the hour, for some weeks.
CREATE TABLE meter_hour (
    hour   INTEGER NOT NULL,              -- UTC seconds / 3600
    camera TEXT NOT NULL,                 -- '' for what belongs to no camera
    kind   TEXT NOT NULL,                 -- as in meter
    amount INTEGER NOT NULL,
    PRIMARY KEY (hour, camera, kind)
) STRICT, WITHOUT ROWID;
