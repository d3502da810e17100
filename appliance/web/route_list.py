"""The routes of one module of an HTTP program, as declared; FastAPI builds each of them once, for all applications.

An `APIRouter` builds every route when it is declared (its parameters, validators and handler) and again when an
application includes it, with what the application adds, and keeps both: 2.5 MB of the core's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
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
