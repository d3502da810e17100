-- Schema 12: what a person wrote of an alert and did with it, and what alerts are found by.

ALTER TABLE alert ADD COLUMN note TEXT NOT NULL DEFAULT '';
ALTER TABLE alert ADD COLUMN deleted_t REAL;                     -- when a person deleted it; NULL: nobody has
ALTER TABLE alert ADD COLUMN deleted_why TEXT NOT NULL DEFAULT '';
CREATE INDEX alert_deleted ON alert (deleted_t) WHERE deleted_t IS NOT NULL;
CREATE INDEX alert_review ON alert (review, t_start DESC, id DESC);
CREATE INDEX alert_verdict ON alert (verdict, t_start DESC, id DESC);
CREATE INDEX alert_severity ON alert (severity, t_start DESC, id DESC);

CREATE TABLE alert_change (               -- who changed what of an alert, one row for each alert
    id    INTEGER PRIMARY KEY,
    alert TEXT NOT NULL REFERENCES alert (id),
    t     REAL NOT NULL,
    what  TEXT NOT NULL,                  -- review | note | deleted
    old   TEXT NOT NULL,                  -- '': there was none
    new   TEXT NOT NULL,
    who   TEXT NOT NULL DEFAULT ''        -- '' while all share one token
) STRICT;
CREATE INDEX alert_change_alert ON alert_change (alert);

CREATE TABLE alert_facet (                -- zones (and lines), labels and rules of the events of an alert
    kind  TEXT NOT NULL,                  -- zone | label | rule
    value TEXT NOT NULL,
    alert TEXT NOT NULL REFERENCES alert (id),
    PRIMARY KEY (kind, value, alert)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO alert_facet SELECT 'label', label, alert FROM event WHERE alert IS NOT NULL;
INSERT OR IGNORE INTO alert_facet SELECT 'rule', rule, alert FROM event WHERE alert IS NOT NULL;
INSERT OR IGNORE INTO alert_facet
    SELECT 'zone', iif(zone <> '', zone, line), alert FROM event WHERE alert IS NOT NULL AND (zone <> '' OR line <> '');
CREATE TRIGGER event_facet AFTER INSERT ON event WHEN NEW.alert IS NOT NULL BEGIN
    INSERT OR IGNORE INTO alert_facet VALUES ('label', NEW.label, NEW.alert), ('rule', NEW.rule, NEW.alert);
    INSERT OR IGNORE INTO alert_facet SELECT 'zone', iif(NEW.zone <> '', NEW.zone, NEW.line), NEW.alert
        WHERE NEW.zone <> '' OR NEW.line <> '';
END;

CREATE TABLE alert_text (                 -- the words of an alert; n is the row of alert_words
    n       INTEGER PRIMARY KEY,
    alert   TEXT NOT NULL UNIQUE REFERENCES alert (id),
    note    TEXT NOT NULL DEFAULT '',
    verdict TEXT NOT NULL DEFAULT ''      -- the reasons of all its verdicts
) STRICT;
CREATE VIRTUAL TABLE alert_words USING fts5
    (note, verdict, content = 'alert_text', content_rowid = 'n', tokenize = 'unicode61 remove_diacritics 2');
CREATE TRIGGER alert_text_added AFTER INSERT ON alert_text BEGIN
    INSERT INTO alert_words (rowid, note, verdict) VALUES (NEW.n, NEW.note, NEW.verdict);
END;
CREATE TRIGGER alert_text_changed AFTER UPDATE ON alert_text BEGIN
    INSERT INTO alert_words (alert_words, rowid, note, verdict) VALUES ('delete', OLD.n, OLD.note, OLD.verdict);
    INSERT INTO alert_words (rowid, note, verdict) VALUES (NEW.n, NEW.note, NEW.verdict);
END;
CREATE TRIGGER alert_noted AFTER UPDATE OF note ON alert WHEN NEW.note <> OLD.note BEGIN
    INSERT INTO alert_text (alert, note) VALUES (NEW.id, NEW.note) ON CONFLICT (alert) DO UPDATE SET note = excluded.note;
END;
CREATE TRIGGER verdict_said AFTER INSERT ON verdict BEGIN
    INSERT INTO alert_text (alert, verdict) SELECT id, coalesce(json_extract(NEW.body, '$.reason'), '') FROM alert
        WHERE id = NEW.alert
        ON CONFLICT (alert) DO UPDATE SET verdict = trim(verdict || ' ' || excluded.verdict);
END;
INSERT INTO alert_text (alert, verdict)
    SELECT alert, group_concat(coalesce(json_extract(body, '$.reason'), ''), ' ') FROM verdict
    WHERE alert IN (SELECT id FROM alert) GROUP BY alert;
