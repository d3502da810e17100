"""The routes of one module of an HTTP program, and the parts that their handlers depend on.

An `APIRouter` builds every route when it is declared (its parameters, validators and handler) and again when an
application includes it, and keeps both: 2.5 MB of the core's memory. A `RouteList` has each route built once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.datastructures import DefaultPlaceholder


class RouteList(APIRouter):
    """Takes `get`, `post` and the others as an APIRouter does, and builds nothing until `add_to`."""

    def __init__(self, **options: Any) -> None:
        """Take prefix, tags, include_in_schema and default_response_class, for all routes of the list."""
        super().__init__(**options)
        self._declared: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Remember the route. options: those of APIRouter.add_api_route."""
        self._declared.append((path, endpoint, options))

    def add_to(self, router: APIRouter) -> None:
        """Build the routes as those of `router`, in the order in which they were declared."""
        for path, endpoint, options in self._declared:
            own: dict[str, Any] = {
                "tags": [*self.tags, *(options.get("tags") or [])],
                "include_in_schema": self.include_in_schema and options.get("include_in_schema", True),
            }
            if isinstance(options.get("response_class", self.default_response_class), DefaultPlaceholder):
                own["response_class"] = self.default_response_class
            router.add_api_route(self.prefix + path, endpoint, **(options | own))


Part = TypeVar("Part")


def provide(app: FastAPI, *parts: object) -> None:
    """Let the handlers of `app` depend on `parts`, each by its class."""
    app.state.parts = {type(part): part for part in parts}


def provided(kind: type[Part]) -> Callable[[Request], Coroutine[Any, Any, Part]]:
    """Return the dependency on the part of a class: `Annotated[Templates, Depends(provided(Templates))]`."""

    async def find(request: Request) -> Part:  # a coroutine, so that FastAPI takes no thread for it
        return part_of(request, kind)

    return find


def part_of(request: Request, kind: type[Part]) -> Part:
    """Return the part of a class. For what every route depends on: `provided` would be built once for each route."""
    part: Part = request.app.state.parts[kind]
    return part
