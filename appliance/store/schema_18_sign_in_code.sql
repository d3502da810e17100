-- Schema 18: codes from the console (`vedette users unlock`), each of which signs a user in once.

CREATE TABLE sign_in_code (
    user      TEXT PRIMARY KEY,
    digest    TEXT NOT NULL,              -- what is read here lets nobody in
    expires_t REAL NOT NULL
) STRICT, WITHOUT ROWID;
