"""Stores the browsers that get web push, and the snooze links that were used."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field

from appliance.base.errors import UsageError
from appliance.store.database import Database
from appliance.types import Severity

SUBSCRIPTIONS_MAX = 200  # browsers of a site; each message is encrypted for every one
PER_USER_MAX = 10  # browsers of one person; the oldest goes


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSubscription:
    """A browser. user: '' for the owner without a user. label: what it calls itself."""

    target: str
    user: str
    endpoint: str = field(repr=False)
    p256dh: bytes = field(repr=False)
    auth: bytes = field(repr=False)
    label: str = ""
    created_t: float = 0.0

    @property
    def id(self) -> str:
        return hashlib.sha256(self.endpoint.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPreference:
    """Preferences of a person for their browsers; what their target is not told of, they are not either.

    severity: the least grave one. quiet_hours: `HH:MM-HH:MM` in the appliance's time zone, '': none. urgent: alerts of
    severity alert come at any hour.
    """

    severity: Severity = "info"
    quiet_hours: str = ""
    urgent: bool = False


class PushSubscriptionStore:
    """The push_subscription table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self, target: str | None = None) -> list[PushSubscription]:
        """Oldest first; those of people who may not sign in any more are left out."""
        rows = self._db.rows(
            """SELECT target, user, endpoint, p256dh, auth, label, created_t FROM push_subscription AS each
               WHERE (? IS NULL OR target = ?)
                 AND (each.user = '' OR EXISTS (SELECT 1 FROM user WHERE name = each.user AND enabled))
               ORDER BY created_t, id""",
            (target, target),
        )
        return [PushSubscription(**dict(row)) for row in rows]

    def put(self, subscription: PushSubscription) -> None:
        """Add a browser, or replace the keys of one that is stored. Raise UsageError if there are too many."""
        row = {**asdict(subscription), "id": subscription.id, "created_t": self._db.clock.now()}
        with self._db.transaction() as connection:
            connection.execute(
                """INSERT OR REPLACE INTO push_subscription
                   VALUES (:id, :target, :user, :endpoint, :p256dh, :auth, :label, :created_t)""",
                row,
            )
            connection.execute(
                """DELETE FROM push_subscription WHERE id IN (SELECT id FROM push_subscription WHERE user = ?
                   ORDER BY created_t DESC, id LIMIT -1 OFFSET ?)""",
                (subscription.user, PER_USER_MAX),
            )
            count = connection.execute("SELECT count(*) FROM push_subscription").fetchone()[0]
            if count > SUBSCRIPTIONS_MAX:
                raise UsageError(f"{SUBSCRIPTIONS_MAX} browsers are notified already: take one off the list")

    def preferences(self) -> dict[str, PushPreference]:
        """Return the preferences of all who have any, by user."""
        rows = self._db.rows("SELECT * FROM push_preference")
        return {
            row["user"]: PushPreference(
                severity=row["severity"], quiet_hours=row["quiet_hours"], urgent=bool(row["urgent"])
            )
            for row in rows
        }  # fmt: skip

    def put_preference(self, user: str, preference: PushPreference) -> None:
        """Replace the preferences of a person."""
        self._db.execute(
            "INSERT OR REPLACE INTO push_preference VALUES (?, ?, ?, ?)",
            (user, preference.severity, preference.quiet_hours, int(preference.urgent)),
        )

    def remove(self, subscription_id: str, user: str | None = None) -> bool:
        """Remove a subscription; return False if there was none. user: only one of that user; None: of any."""
        gone = self._db.execute(
            "DELETE FROM push_subscription WHERE id = ? AND (? IS NULL OR user = ?)", (subscription_id, user, user)
        )
        return gone > 0


class UsedLinkStore:
    """The used_link table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def is_used(self, link_id: str) -> bool:
        return self._db.row("SELECT 1 FROM used_link WHERE id = ?", (link_id,)) is not None

    def use(self, link_id: str, expires_t: float) -> bool:
        """Mark a link as used; return False if it was used before. Rows of links that have expired are removed."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM used_link WHERE expires_t < ?", (self._db.clock.now() - 86400,))
            done = connection.execute("INSERT OR IGNORE INTO used_link VALUES (?, ?)", (link_id, expires_t))
            return done.rowcount > 0
