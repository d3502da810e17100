"""A second look of the box itself, as the store hands it out."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Literal

from appliance.types import EdgeVerdict

LookState = Literal["asked", "judged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondLookRow:
    """verdict: what it said, of `state` judged; error: why it said nothing, of failed. why: what kept the cloud from
    answering; attempts: looks that were begun."""

    alert: str
    state: LookState
    why: str
    asked_t: float
    attempts: int
    verdict: EdgeVerdict | None
    made_t: float | None
    error: str


def read_second_look(row: sqlite3.Row) -> SecondLookRow:
    fields = dict(row)
    body = fields.pop("body")
    return SecondLookRow(**fields, verdict=None if body is None else EdgeVerdict(**json.loads(body)))
