"""Answers errors: programs get problem+json (RFC 9457), people get a page."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route

from appliance.base.errors import StoreError
from appliance.web.templating import Templates
from appliance.web.texts import tell

if TYPE_CHECKING:
    from starlette.types import Scope

logger = logging.getLogger(__name__)

_TITLES = {
    400: "Bad request",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Not yet",
    410: "Gone",
    411: "No length",
    413: "Too large",
    415: "Wrong content type",
    416: "Range not satisfiable",
    422: "Not understood",
    426: "Over HTTPS only",
    429: "Too many tries",
    500: "Something went wrong",
    503: "Not available now",
    507: "No room",
}


PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem", "description": "What went wrong (RFC 9457). detail: a sentence for the person who asked.",
    "type": "object", "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"}, "title": {"type": "string"},
        "status": {"type": "integer"}, "detail": {"type": "string"},
    },
}  # fmt: skip
# For the OpenAPI schema: the answers that any request may get, in addition to those that it describes itself.
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": _TITLES[status],
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status in sorted(_TITLES)
}


class Problem(Exception):
    """Says why a request cannot be answered: an HTTP status, and one sentence for the person who sent it."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, *, type_: str = "about:blank"
    ) -> None:
        """type_: a URI by which programs recognise this problem (RFC 9457)."""
        super().__init__(detail)
        self.type = type_
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def sentence(error: object) -> str:
    """Return an error's text as a sentence: a capital first, a full stop last."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


@contextmanager
def refused_as(answers: Mapping[type[Exception], int]) -> Iterator[None]:
    """Turn errors of these classes into problems with that status and the error's text. The first match counts."""
    try:
        yield
    except tuple(answers) as error:
        status = next(status for kind, status in answers.items() if isinstance(error, kind))
        raise Problem(status, sentence(error)) from None


@contextmanager
def alone(lock: threading.Lock, refusal: Problem) -> Iterator[None]:
    """Hold the lock meanwhile. Raise the problem where another request holds it."""
    if not lock.acquire(blocking=False):
        raise refusal
    try:
        yield
    finally:
        lock.release()


class ProblemResponse(JSONResponse):
    """Holds a problem as `application/problem+json` (RFC 9457) with type, title, status and detail."""

    media_type = "application/problem+json"

    def __init__(self, problem: Problem) -> None:
        body = {
            "type": problem.type,
            "title": tell(_TITLES.get(problem.status, "Error")),
            "status": problem.status,
            "detail": tell(problem.detail),
        }
        super().__init__(body, problem.status, problem.headers)


def wants_page(path: str, accept: str) -> bool:
    """Return True if the sender is a person with a browser. Programs and the scripts of our pages get JSON."""
    return not path.startswith("/api/") and "text/html" in accept


def install(
    app: FastAPI, templates: Callable[[], Templates], methods: RouteMethods
) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Make `app` answer every error as JSON or as a page.

    Return the function that answers after a bug. FastAPI does not call it: the guard (`web.guard`), which handles each
    request first, catches exceptions that nobody expected, and calls this function.

    templates: returns the templates of the present settings.
    """

    def answer(request: Request, problem: Problem) -> Response:
        if not wants_page(request.url.path, request.headers.get("accept", "")):
            return ProblemResponse(problem)
        title = _TITLES.get(problem.status, "Error")
        # From status 500 on the page has no navigation and no list of troubles: making them may fail in the same way.
        page = templates().page(
            "problem.html", title=tell(title), status=problem.status, detail=tell(problem.detail),
            nav=problem.status < 500,
        )  # fmt: skip
        page.status_code = problem.status
        page.headers.update(problem.headers)
        return page

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return answer(request, error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = "There is no such page." if error.status_code == 404 else str(error.detail)
        headers = {"Allow": ", ".join(methods.of(request.scope))} if error.status_code == 405 else error.headers
        return answer(request, Problem(error.status_code, detail, headers))

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, Problem(422, _first_fault(error)))

    async def on_store(request: Request, error: Exception) -> Response:
        logger.warning("the store did not answer: %s", error)
        return answer(request, Problem(503, "The store does not answer now; try again.", {"Retry-After": "2"}))

    async def on_bug(request: Request, error: Exception) -> Response:
        return answer(request, Problem(500, "This is a fault of the appliance; its log says more."))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(StoreError, on_store)
    return on_bug


class RouteMethods:
    """Knows which methods a path takes. Starlette's router knows only those of the first route that fits."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = [each for each in routes if isinstance(each, Route)]

    def of(self, scope: Scope) -> list[str]:
        """Return the methods of a path, sorted; []: there is no such path.

        Several routes may fit: `alerts/review` also fits `alerts/{alert_id}`. The one with the fewest parameters
        counts.
        """
        found = [each for each in self._routes if each.matches(scope)[0] is not Match.NONE]
        least = min((len(each.param_convertors) for each in found), default=0)
        return sorted(
            {method for each in found if len(each.param_convertors) == least for method in each.methods or ()}
        )


def _first_fault(error: RequestValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "body"
    return f"{where}: {first['msg']}"
