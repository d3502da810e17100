-- Schema 17: the second factor of a user, a secret that their authenticator app shares (RFC 6238).

CREATE TABLE second_factor (
    user      TEXT PRIMARY KEY,
    secret    TEXT NOT NULL,              -- base32; it must be readable, so it is as safe as this file
    confirmed INTEGER NOT NULL DEFAULT 0, -- 1: a first code was right, and each sign-in asks for one
    last_step INTEGER NOT NULL DEFAULT 0, -- the 30 s of the last code that was taken: none is taken twice
    recovery  TEXT NOT NULL DEFAULT '[]', -- a JSON list of digests of recovery codes that are left
    created_t REAL NOT NULL
) STRICT, WITHOUT ROWID;
