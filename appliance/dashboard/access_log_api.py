"""`/api/v1/access-log`: sign-ins, looks at recordings, exports, changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from appliance.dashboard.alert_reader import time_of
from appliance.dashboard.exports_api import Log
from appliance.dashboard.savings_history_api import csv_file
from appliance.dashboard.schemas import API, ApiModel
from appliance.store.users import LOG_ROWS_MAX, AccessLog, AccessQuery
from appliance.web.routes import RouteList

router = RouteList(prefix=API, tags=["users"])


class AccessLogItem(ApiModel):
    """A login, a look at a recording, or a change.

    who: a user, `token NAME`, or '' for the owner without a user. camera: of which it was; '': of none.
    """

    t: float
    who: str
    address: str
    what: str
    about: str
    camera: str


class AccessLogQuery(BaseModel):
    """The choices as an HTML form sends them; an empty one means any. from, to: days, moments or UTC seconds."""

    who: Annotated[str, Field(max_length=100)] = ""
    camera: Annotated[str, Field(max_length=64)] = ""
    begin: Annotated[str, Field(alias="from", max_length=40)] = ""
    end: Annotated[str, Field(alias="to", max_length=40)] = ""


class AccessFilter:
    """Which rows of the log are wanted. Raises Problem for a wrong time."""

    def __init__(self, asked: Annotated[AccessLogQuery, Query()]) -> None:
        self.chosen: dict[str, str] = asked.model_dump(by_alias=True)
        self._begin, self._end = time_of("from", asked.begin, 0), time_of("to", asked.end, 1)

    def rows(self, log: AccessLog, limit: int) -> list[AccessLogItem]:
        """Return the newest of them."""
        wanted = AccessQuery(
            self.chosen["who"] or None, self.chosen["camera"] or None, self._begin or 0.0,
            9e15 if self._end is None else self._end,
        )  # fmt: skip
        return [AccessLogItem.model_validate(row) for row in log.newest(limit, wanted)]


Filtered = Annotated[AccessFilter, Depends()]


@router.get("/access-log")
def access_log(
    log: Log, wanted: Filtered, limit: Annotated[int, Query(ge=1, le=LOG_ROWS_MAX)] = 100
) -> list[AccessLogItem]:
    """Return logins, looks at recordings and live pictures, exports and changes, newest first."""
    return wanted.rows(log, limit)


@router.get("/access-log.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def access_log_csv(log: Log, wanted: Filtered) -> Response:
    """Return the access log as CSV, newest first; t in UTC seconds."""
    names = list(AccessLogItem.model_fields)
    rows = [[getattr(row, name) for name in names] for row in wanted.rows(log, LOG_ROWS_MAX)]
    return csv_file("access-log.csv", names, rows)
