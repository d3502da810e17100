"""Defines the layout of the storage folder, and converts a stored path to a file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from appliance.base.errors import StoreError

DATABASE = "vedette.db"
SEGMENTS = "segments"  # segments/<camera>/...: written by ingest, deleted by retention
PREROLL = "preroll"  # preroll/<camera>/...: the rings; may be a link to a folder in memory (see store/preroll_ring.py)
EVIDENCE = "evidence"  # evidence/<alert>/...: written by the evidence maker
CUTS = "cuts"  # cuts/<n>.mp4: stretches that somebody plays now; emptied at the start
EXPORTS = "exports"  # exports/<id>/...: clips made for somebody outside, deleted after a day or when their link ends
SUBSTREAMS = "substreams"  # substreams/<camera>/...: the last seconds of detect streams, written and deleted by ingest
SCENARIOS = "scenarios"  # scenarios/<name>/...: kept by a person, deleted by a person only
PROOFS = "proofs"  # proofs/<network>.json: the last trial of a network beside the one in force
CANDIDATES = "candidates"  # candidates/<name>.json: settings and prompts that wait to be tried at night
TRIALS = "trials"  # trials/<id>.json: what other settings would have reported, kept by the dashboard, the last 20
KEYS = "keys"  # keys/...: made here at first use, for web push and for links that snooze
_PLAIN = re.compile(r"^[A-Za-z0-9_-]{1,80}$")


def inside(root: Path, relative: str, folder: str = "") -> Path:
    """Return the file that `relative` names under `root`/`folder`.

    Raise StoreError for anything that leads out of it (absolute, `..`, a link), so that no row of the database and no
    request can make the program read or delete a file elsewhere. Segments of the pre-roll rings lie in a folder of
    their own; it is the only folder that may be a link.
    """
    if folder == SEGMENTS and relative.startswith(f"{PREROLL}/"):
        folder = PREROLL
    base = (root / folder).resolve()
    try:
        found = (root / relative).resolve()
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a NUL
        found = base
    if found == base or not found.is_relative_to(base):
        raise StoreError(f"the path {relative!r} leads out of {base}")
    return found


def evidence_folder(alert_id: str) -> str:
    """Return the folder of an alert's evidence, relative to the storage folder."""
    plain = alert_id if _PLAIN.match(alert_id) else hashlib.sha256(alert_id.encode()).hexdigest()
    return f"{EVIDENCE}/{plain}"
