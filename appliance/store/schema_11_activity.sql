-- How much was looked at and found in each minute, so that a day of a camera is drawn without reading every box.
-- Kept exact by BoxStore.append, deleted with the boxes. Of what was recorded before, the last two days are counted here.
CREATE TABLE activity (
    camera TEXT NOT NULL,
    minute INTEGER NOT NULL,              -- UTC seconds / 60
    looks  INTEGER NOT NULL,              -- examined frames that the detector answered about
    seen   INTEGER NOT NULL,              -- of these, those with any object
    PRIMARY KEY (camera, minute)
) STRICT, WITHOUT ROWID;

INSERT INTO activity SELECT camera, CAST(t / 60 AS INTEGER) AS minute, CAST(total(looked) AS INTEGER),
        CAST(total(looked AND objects <> '[]') AS INTEGER)
    FROM boxes WHERE camera IN (SELECT name FROM camera) AND t > (SELECT max(t_end) FROM segment) - 172800
    GROUP BY camera, minute;

CREATE INDEX deleted_until ON deleted (camera, class, until_t); -- up to when the recording of a camera is gone
