-- Schema 13: who may use the dashboard, as what, with which cameras; the tokens of programs; logins and changes.

CREATE TABLE user (
    name      TEXT PRIMARY KEY,
    role      TEXT NOT NULL,              -- viewer | reviewer | admin
    cameras   TEXT,                       -- a JSON list of names; NULL: all
    password  TEXT NOT NULL,              -- a salted argon2id hash, in its own notation
    enabled   INTEGER NOT NULL DEFAULT 1,
    created_t REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE api_token (
    id        TEXT PRIMARY KEY,           -- the digest of the token: what is read here lets nobody in
    name      TEXT NOT NULL UNIQUE,
    role      TEXT NOT NULL,
    made_by   TEXT NOT NULL,
    created_t REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE access_log (                 -- the newest rows only: see store/access_log.py
    id      INTEGER PRIMARY KEY,
    t       REAL NOT NULL,
    who     TEXT NOT NULL,
    address TEXT NOT NULL,
    what    TEXT NOT NULL,
    about   TEXT NOT NULL
) STRICT;

ALTER TABLE session ADD COLUMN address TEXT NOT NULL DEFAULT '';
