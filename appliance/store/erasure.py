"""Erases all data of a camera and a time span at a person's request, and lists what it could not reach.

Only here the rows of alerts and verdicts are deleted, too. The receipt names copies that have left this appliance, so
that a person can erase them.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from appliance.base.errors import StoreError
from appliance.store.audit import TO_BROKER
from appliance.store.boxes import MINUTE_S
from appliance.store.database import Database
from appliance.store.deletions import DeletionLedger, PrunableSegment, delete_files, delete_rows
from appliance.store.escalations import UNSETTLED, in_states
from appliance.store.exports import delete_export, read_export
from appliance.store.paths import EVIDENCE, evidence_folder, inside

logger = logging.getLogger(__name__)

RECEIPTS_SHOWN = 50  # on the page, newest first: a screen or two; the database keeps all
DOWNLOADS_MAX = 1000  # that a receipt names

UnreachedKind = Literal["open_alert", "segment", "export", "download", "backup", "cloud", "archive", "message"]


@dataclass(frozen=True, slots=True)
class Unreached:
    """Something that an erasure left where it is. what: for a person, names and times; t: when it left, or now."""

    kind: UnreachedKind
    what: str
    t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """The result of an erasure of t_start..t_end, UTC seconds: counts of what went, and what could not be reached."""

    id: int = 0
    t: float
    who: str
    camera: str
    t_start: float
    t_end: float
    segments: int = 0
    segment_bytes: int = 0
    alerts: tuple[str, ...] = ()
    evidence_files: int = 0
    frames: int = 0
    exports: int = 0
    scenarios: tuple[str, ...] = ()
    unreached: tuple[Unreached, ...] = ()


# Rows about an alert, those that refer to others first. The audit of what left the site stays: it holds no pixels.
_OF_ESCALATION = ("media", "step", "verdict")
_OF_ALERT = (
    "escalation", "decision", "second_look", "notice", "alert_change", "alert_facet", "alert_text", "evidence", "event",
)  # fmt: skip
_SETTLED = f"""t_end IS NOT NULL AND NOT EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'waiting')
    AND NOT EXISTS (SELECT 1 FROM escalation WHERE alert = alert.id AND {in_states(UNSETTLED)})"""


# So many rows at a time that the core waits for tenths of a second: a camera has a million frames in two days.
_ERASE_BOXES = """DELETE FROM boxes WHERE camera = ?1 AND t BETWEEN ?2 AND min(?3, coalesce(
    (SELECT t FROM boxes WHERE camera = ?1 AND t >= ?2 ORDER BY t LIMIT 1 OFFSET 20000), 9e15))"""


class SpanEraser:
    """Erases spans of one camera. Any thread; raises StoreError. Holds no state but the database."""

    def __init__(self, db: Database, root: Path) -> None:
        """root: the storage folder."""
        self._db = db
        self._root = root

    def erase(
        self, camera: str, t0: float, t1: float, who: str, backups: Iterable[tuple[str, float]]
    ) -> ErasureReceipt:
        """Erase t0..t1 and return the receipt, which `keep` stores.

        backups: name and time of those in the storage folder.
        Whole segments go, so some seconds more on either side. An alert that lasts, whose evidence is being made, or
        whose escalation is under way, stays, and is named.
        """
        now = self._db.clock.now()
        ids = self._alerts(camera, t0, t1, _SETTLED)
        open_ids = self._alerts(camera, t0, t1, f"NOT ({_SETTLED})")
        unreached = [Unreached("open_alert", each, now) for each in open_ids]
        with self._db.read() as connection:
            unreached += [each for name in ids for each in _sent_of(connection, name)]
            unreached += _published(connection, camera, ids)
            unreached += _taken(connection, camera, t0)
        unreached += [Unreached("backup", name, t) for name, t in backups if t > t0]
        segments, size, left = self._erase_segments(camera, t0, t1)
        unreached += [Unreached("segment", path, now) for path in left]
        erased = {name: self._erase_alert(camera, name) for name in ids}
        unreached += [Unreached("segment", evidence_folder(name), now) for name in ids if erased[name] is None]
        frames, exports, exported = self._erase_rest(camera, t0, t1)
        return ErasureReceipt(
            t=now, who=who, camera=camera, t_start=t0, t_end=t1, segments=segments, segment_bytes=size,
            alerts=tuple(name for name in ids if erased[name] is not None),
            evidence_files=sum(files or 0 for files in erased.values()), frames=frames, exports=exports,
            unreached=tuple(unreached + exported),
        )  # fmt: skip

    def keep(self, receipt: ErasureReceipt) -> None:
        """Write the receipt."""
        self._db.execute(
            "INSERT INTO erasure (t, who, camera, t_start, t_end, receipt) VALUES (?, ?, ?, ?, ?, ?)",
            (receipt.t, receipt.who, receipt.camera, receipt.t_start, receipt.t_end, json.dumps(asdict(receipt))),
        )

    def receipts(self) -> list[ErasureReceipt]:
        """Return the newest receipts, the last first."""
        rows = self._db.rows("SELECT id, receipt FROM erasure ORDER BY id DESC LIMIT ?", (RECEIPTS_SHOWN,))
        return [_read(row) for row in rows]

    def _alerts(self, camera: str, t0: float, t1: float, state: str) -> list[str]:
        rows = self._db.rows(
            f"""SELECT id FROM alert WHERE camera = ? AND t_start <= ? AND coalesce(t_end, 9e15) >= ? AND {state}
                ORDER BY t_start""",
            (camera, t1, t0),
        )
        return [row["id"] for row in rows]

    def _erase_segments(self, camera: str, t0: float, t1: float) -> tuple[int, int, list[str]]:
        """Return how many files and bytes went, and the paths that stay: being written, or refused by the disk."""
        rows = self._db.rows(
            "SELECT * FROM segment WHERE camera = ? AND t_start < ? AND t_end > ? ORDER BY t_start", (camera, t1, t0)
        )
        deletions = DeletionLedger(self._db)
        whole = [PrunableSegment.of(row) for row in rows if row["complete"]]
        done = delete_files(self._root, whole, float("inf"), "person", deletions, logger.warning)
        delete_rows(self._db, deletions, done.paths)
        gone = set(done.paths)
        return done.files, done.bytes, [row["path"] for row in rows if row["path"] not in gone]

    def _erase_alert(self, camera: str, alert: str) -> int | None:
        """Delete an alert with all that is stored of it; return how many files went.

        None: the disk does not give up a file, so the alert stays, and another erasure finds it.
        """
        files = 0
        deletions = DeletionLedger(self._db)
        with self._db.transaction() as connection:
            for row in connection.execute("SELECT * FROM evidence WHERE alert = ? AND state = 'ready'", (alert,)):
                deletions.add(camera, "evidence", "person", row["bytes"], row["t_end"])
            try:
                folder = inside(self._root, evidence_folder(alert), EVIDENCE)
                files = sum(each.is_file() for each in folder.iterdir())
                shutil.rmtree(folder)
            except (StoreError, FileNotFoundError):
                pass
            except OSError as error:
                logger.warning("evidence cannot be erased: %s", error)
                return None
            _delete_alert(connection, alert)
            deletions.write(connection)
            self._db.next_rev(connection)
        return files

    def _erase_rest(self, camera: str, t0: float, t1: float) -> tuple[int, int, list[Unreached]]:
        """Delete boxes, events without an alert, activity and exports; name the exports that somebody took."""
        span, frames = (camera, t0, t1), 0
        taken: list[Unreached] = []
        while gone := self._db.execute(_ERASE_BOXES, span):
            frames += gone
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM event WHERE alert IS NULL AND camera = ? AND t BETWEEN ? AND ?", span)
            connection.execute(
                "DELETE FROM activity WHERE camera = ? AND minute BETWEEN ? AND ?",
                (camera, int(t0 // MINUTE_S), int(t1 // MINUTE_S)),
            )
            rows = connection.execute(
                "SELECT * FROM export WHERE camera = ? AND t_start < ? AND t_end > ?", (camera, t1, t0)
            ).fetchall()
            for row in rows:
                if row["taken"] or row["opened"]:
                    taken.append(Unreached("export", f"{row['id']}, {row['who']}: {row['why']}", row["t"]))
                delete_export(connection, self._root, read_export(row))
        return frames, sum(row["state"] in ("ready", "making") for row in rows), taken


def _delete_alert(connection: sqlite3.Connection, alert: str) -> None:
    connection.execute(
        """INSERT INTO alert_words (alert_words, rowid, note, verdict)
           SELECT 'delete', n, note, verdict FROM alert_text WHERE alert = ?""", (alert,),
    )  # fmt: skip
    for table in _OF_ESCALATION:
        connection.execute(
            f"DELETE FROM {table} WHERE escalation IN (SELECT id FROM escalation WHERE alert = ?)", (alert,)
        )
    for table in _OF_ALERT:
        connection.execute(f"DELETE FROM {table} WHERE alert = ?", (alert,))
    connection.execute("UPDATE alert SET incident = '' WHERE incident = ?", (alert,))
    connection.execute("DELETE FROM alert WHERE id = ?", (alert,))


def _sent_of(connection: sqlite3.Connection, alert: str) -> list[Unreached]:
    """Return what left the site of an alert: to the cloud, to its archive, in messages."""
    found = []
    for row in connection.execute("SELECT * FROM escalation WHERE alert = ? AND bytes_sent > 0", (alert,)):
        found.append(Unreached("cloud", f"escalation {row['id']}, {row['bytes_sent']} bytes", row["sent_t"] or 0.0))
        answers = connection.execute(
            """SELECT answer AS body, coalesce(json_extract(answer, '$.judged_t'), 0.0) AS t FROM step
               WHERE escalation = ?1 AND answer IS NOT NULL
               UNION ALL SELECT body, applied_t FROM verdict WHERE escalation = ?1""",
            (row["id"],),
        )
        keys = {link["key"]: each["t"] for each in answers for link in json.loads(each["body"]).get("archive") or ()}
        found += [Unreached("archive", str(key), t) for key, t in keys.items()]
    notified = "SELECT target, created_t FROM notice WHERE alert = ? AND state IN ('told', 'changed', 'withdrawn')"
    found += [Unreached("message", f"{row['target']}, alert {alert}", row["created_t"])
              for row in connection.execute(notified, (alert,))]  # fmt: skip
    return found


def _published(connection: sqlite3.Connection, camera: str, alerts: Sequence[str]) -> list[Unreached]:
    """Return messages and stills of alerts that went to an MQTT broker off the site: one for each alert and kind."""
    of_alert = {f"alert {each}": f"alert {each}" for each in alerts}
    of_alert |= {evidence_folder(each): f"still of alert {each}" for each in alerts}
    rows = connection.execute(
        "SELECT t, why FROM audit WHERE camera = ? AND why GLOB ? ORDER BY t, id", (camera, f"{TO_BROKER}*")
    )
    found: dict[str, float] = {}
    for row in rows:
        broker, _, about = row["why"].removeprefix(TO_BROKER).partition("; ")
        what = of_alert.get(about) or of_alert.get(about.rpartition("/")[0])
        if what:
            found[f"MQTT broker {broker}, {what}"] = row["t"]
    return [Unreached("message", what, t) for what, t in found.items()]


def _taken(connection: sqlite3.Connection, camera: str, t0: float) -> list[Unreached]:
    """Return downloads since then: of this camera's recording, and of backups."""
    rows = connection.execute(
        """SELECT * FROM access_log WHERE t >= ? AND (what = 'took a backup'
           OR (what = 'downloaded a recording' AND camera = ?)) ORDER BY id DESC LIMIT ?""",
        (t0, camera, DOWNLOADS_MAX),
    )
    return [
        Unreached("download", f"{row['who'] or 'the owner'} {row['what']} {row['about']}".strip(), row["t"])
        for row in rows
    ]


def _read(row: sqlite3.Row) -> ErasureReceipt:
    stored = json.loads(row["receipt"])
    unreached = tuple(Unreached(**each) for each in stored.pop("unreached"))
    alerts, scenarios = tuple(stored.pop("alerts")), tuple(stored.pop("scenarios"))
    return ErasureReceipt(**{**stored, "id": row["id"]}, alerts=alerts, scenarios=scenarios, unreached=unreached)
