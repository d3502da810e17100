"""What the cloud said of what the box saw, by the versions of both."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.store.database import Database

GROUPS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinions:
    """How many verdicts with this decision. box: its version and the detector that raised the alert; judge: the engine,
    its model, the version of its prompt."""

    box_version: str
    detector: str
    engine: str
    model: str
    prompt: str
    decision: str
    count: int


def opinions(db: Database) -> list[Opinions]:
    """The largest groups first, at most GROUPS_MAX: versions change rarely, names from the wire may not. Raises
    StoreError."""
    with db.read() as connection:
        rows = connection.execute(
            """SELECT coalesce(json_extract(escalation.body, '$.box_version'), '') AS box_version,
                      coalesce(json_extract(escalation.body, '$.model'), '') AS detector,
                      coalesce(json_extract(verdict.body, '$.engine'), '') AS engine,
                      coalesce(json_extract(verdict.body, '$.model'), '') AS model,
                      coalesce(json_extract(verdict.body, '$.prompt_version'), '') AS prompt,
                      decision, count(*) AS count
               FROM verdict JOIN escalation ON escalation.id = verdict.escalation
               GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY count DESC LIMIT ?""",
            (GROUPS_MAX,),
        )
        return [Opinions(**dict(row)) for row in rows]
