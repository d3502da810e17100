"""Gives a handler the parts that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request

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
    """Return the part of a class, for a dependency of every route: FastAPI builds each parameter once a route."""
    part: Part = request.app.state.parts[kind]
    return part
