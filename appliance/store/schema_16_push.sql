-- Schema 16: browsers that are notified, and links in messages that were used.

CREATE TABLE push_subscription (
    id        TEXT PRIMARY KEY,           -- the digest of the endpoint
    target    TEXT NOT NULL,
    user      TEXT NOT NULL,              -- '': the owner without a user
    endpoint  TEXT NOT NULL,              -- where the browser's push service takes messages: as good as a secret
    p256dh    BLOB NOT NULL,              -- the browser's public key
    auth      BLOB NOT NULL,              -- its secret
    label     TEXT NOT NULL,              -- what the browser calls itself
    created_t REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE used_link (
    id        TEXT PRIMARY KEY,
    expires_t REAL NOT NULL               -- after which the link is refused for its age, and the row goes
) STRICT, WITHOUT ROWID;
