-- Schema 15: the profile that a person chose, and what is paused until when.

CREATE TABLE arming (
    camera  TEXT NOT NULL,                -- '': the whole site
    rule    TEXT NOT NULL,                -- '': all of the camera
    target  TEXT NOT NULL,                -- '': nothing is reported; else this target is not notified
    profile TEXT NOT NULL,                -- chosen for the site; '': a pause
    since_t REAL NOT NULL,
    until_t REAL,                         -- NULL: until it is changed
    who     TEXT NOT NULL,
    why     TEXT NOT NULL,
    PRIMARY KEY (camera, rule, target)
) STRICT, WITHOUT ROWID;
INSERT INTO arming SELECT '', '', '', 'disarmed', CAST(strftime('%s', 'now') AS REAL), NULL, '', '' FROM counter
    WHERE name = 'disarmed' AND value = 1;
DELETE FROM counter WHERE name = 'disarmed';
