-- Schema 21: when and of what a person wants to be told on their browsers.

CREATE TABLE push_preference (
    user        TEXT PRIMARY KEY,         -- '': the owner without a user
    severity    TEXT NOT NULL,            -- the least grave one
    quiet_hours TEXT NOT NULL,            -- HH:MM-HH:MM, '': none
    urgent      INTEGER NOT NULL          -- 1: severity alert at any hour
) STRICT, WITHOUT ROWID;
