-- Schema 4: classes of recording with a quota each, what they take, what was written, and what was deleted and why.

ALTER TABLE segment ADD COLUMN kind TEXT NOT NULL DEFAULT 'continuous'; -- continuous | pre_roll | alert (types.SegmentKind)
CREATE INDEX segment_ring ON segment (camera, t_start) WHERE kind <> 'continuous';

CREATE TABLE usage (                      -- running sums, so that nobody adds up a million rows; kept by the triggers below
    camera TEXT NOT NULL,
    class  TEXT NOT NULL,                 -- a segment's kind, or 'evidence'
    files  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (camera, class)
) STRICT, WITHOUT ROWID;

INSERT INTO usage SELECT camera, kind, count(*), sum(bytes) FROM segment GROUP BY camera, kind;
INSERT INTO usage SELECT alert.camera, 'evidence', count(*), sum(evidence.bytes)
    FROM evidence JOIN alert ON alert.id = evidence.alert WHERE evidence.state = 'ready' GROUP BY alert.camera;

CREATE TABLE written (                    -- per hour of the recording; `seconds` of video is 0 for evidence
    hour    INTEGER NOT NULL,             -- UTC seconds / 3600
    camera  TEXT NOT NULL,
    class   TEXT NOT NULL,
    bytes   INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (hour, camera, class)
) STRICT, WITHOUT ROWID;

CREATE TABLE deleted (                    -- what was deleted, summed per day; alerts and their rows never are
    day     TEXT NOT NULL,
    camera  TEXT NOT NULL,
    class   TEXT NOT NULL,
    reason  TEXT NOT NULL,                -- see store/deletions.py
    files   INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    until_t REAL NOT NULL,                -- the newest moment of what was deleted
    last_t  REAL NOT NULL,                -- when the last of it was
    PRIMARY KEY (day, camera, class, reason)
) STRICT, WITHOUT ROWID;

-- A row is written with INSERT OR REPLACE. Then no DELETE trigger fires, so BEFORE INSERT takes the old row off; and the
-- outer OR REPLACE would override any conflict clause in here, so there is none.
CREATE TRIGGER segment_replaced BEFORE INSERT ON segment WHEN EXISTS (SELECT 1 FROM segment WHERE path = NEW.path) BEGIN
    UPDATE usage SET files = files - 1, bytes = bytes - (SELECT bytes FROM segment WHERE path = NEW.path)
        WHERE (camera, class) = (SELECT camera, kind FROM segment WHERE path = NEW.path);
    UPDATE written SET bytes = bytes - (SELECT bytes FROM segment WHERE path = NEW.path),
        seconds = seconds - (SELECT t_end - t_start FROM segment WHERE path = NEW.path)
        WHERE (hour, camera, class) =
            (SELECT CAST(t_start / 3600 AS INTEGER), camera, kind FROM segment WHERE path = NEW.path);
END;
CREATE TRIGGER segment_added AFTER INSERT ON segment BEGIN
    INSERT INTO usage SELECT NEW.camera, NEW.kind, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM usage WHERE camera = NEW.camera AND class = NEW.kind);
    UPDATE usage SET files = files + 1, bytes = bytes + NEW.bytes WHERE camera = NEW.camera AND class = NEW.kind;
    INSERT INTO written SELECT CAST(NEW.t_start / 3600 AS INTEGER), NEW.camera, NEW.kind, 0, 0.0
        WHERE NOT EXISTS (SELECT 1 FROM written WHERE hour = CAST(NEW.t_start / 3600 AS INTEGER)
                          AND camera = NEW.camera AND class = NEW.kind);
    UPDATE written SET bytes = bytes + NEW.bytes, seconds = seconds + (NEW.t_end - NEW.t_start)
        WHERE hour = CAST(NEW.t_start / 3600 AS INTEGER) AND camera = NEW.camera AND class = NEW.kind;
END;
CREATE TRIGGER segment_changed AFTER UPDATE OF bytes ON segment BEGIN
    UPDATE usage SET bytes = bytes + NEW.bytes - OLD.bytes WHERE camera = NEW.camera AND class = NEW.kind;
END;
CREATE TRIGGER segment_moved AFTER UPDATE OF kind ON segment WHEN NEW.kind <> OLD.kind BEGIN
    UPDATE usage SET files = files - 1, bytes = bytes - NEW.bytes WHERE camera = OLD.camera AND class = OLD.kind;
    INSERT INTO usage SELECT NEW.camera, NEW.kind, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM usage WHERE camera = NEW.camera AND class = NEW.kind);
    UPDATE usage SET files = files + 1, bytes = bytes + NEW.bytes WHERE camera = NEW.camera AND class = NEW.kind;
    INSERT INTO written SELECT CAST(NEW.t_start / 3600 AS INTEGER), NEW.camera, NEW.kind, 0, 0.0
        WHERE NOT EXISTS (SELECT 1 FROM written WHERE hour = CAST(NEW.t_start / 3600 AS INTEGER)
                          AND camera = NEW.camera AND class = NEW.kind);
    UPDATE written SET bytes = bytes + NEW.bytes, seconds = seconds + (NEW.t_end - NEW.t_start)
        WHERE hour = CAST(NEW.t_start / 3600 AS INTEGER) AND camera = NEW.camera AND class = NEW.kind;
END;
CREATE TRIGGER segment_gone AFTER DELETE ON segment BEGIN
    UPDATE usage SET files = files - 1, bytes = bytes - OLD.bytes WHERE camera = OLD.camera AND class = OLD.kind;
END;

CREATE TRIGGER evidence_replaced BEFORE INSERT ON evidence
WHEN EXISTS (SELECT 1 FROM evidence WHERE alert = NEW.alert AND kind = NEW.kind AND n = NEW.n AND state = 'ready') BEGIN
    UPDATE usage SET files = files - 1, bytes = bytes
            - (SELECT bytes FROM evidence WHERE alert = NEW.alert AND kind = NEW.kind AND n = NEW.n)
        WHERE camera = (SELECT camera FROM alert WHERE id = NEW.alert) AND class = 'evidence';
END;
CREATE TRIGGER evidence_added AFTER INSERT ON evidence WHEN NEW.state = 'ready' BEGIN
    INSERT INTO usage SELECT camera, 'evidence', 0, 0 FROM alert WHERE id = NEW.alert
        AND NOT EXISTS (SELECT 1 FROM usage WHERE camera = alert.camera AND class = 'evidence');
    UPDATE usage SET files = files + 1, bytes = bytes + NEW.bytes
        WHERE camera = (SELECT camera FROM alert WHERE id = NEW.alert) AND class = 'evidence';
    INSERT INTO written SELECT CAST(created_t / 3600 AS INTEGER), camera, 'evidence', 0, 0.0 FROM alert
        WHERE id = NEW.alert AND NOT EXISTS (SELECT 1 FROM written WHERE hour = CAST(created_t / 3600 AS INTEGER)
                                             AND camera = alert.camera AND class = 'evidence');
    UPDATE written SET bytes = bytes + NEW.bytes WHERE class = 'evidence'
        AND (hour, camera) = (SELECT CAST(created_t / 3600 AS INTEGER), camera FROM alert WHERE id = NEW.alert);
END;
CREATE TRIGGER evidence_changed AFTER UPDATE OF state, bytes ON evidence WHEN OLD.state = 'ready' OR NEW.state = 'ready' BEGIN
    UPDATE usage SET files = files + (NEW.state = 'ready') - (OLD.state = 'ready'),
        bytes = bytes + iif(NEW.state = 'ready', NEW.bytes, 0) - iif(OLD.state = 'ready', OLD.bytes, 0)
        WHERE camera = (SELECT camera FROM alert WHERE id = NEW.alert) AND class = 'evidence';
END;
