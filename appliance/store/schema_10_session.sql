-- Who is signed in to the dashboard. Signing out removes the row, so a cookie that was copied is worth nothing then.
-- id: the digest of the cookie's random part. user: '' while all share one token.
CREATE TABLE session (
    id TEXT PRIMARY KEY,
    user TEXT NOT NULL DEFAULT '',
    created_t REAL NOT NULL,
    expires_t REAL NOT NULL
) STRICT, WITHOUT ROWID;
