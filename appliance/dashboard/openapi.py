"""Makes the OpenAPI document: adds what routes alone do not say (problems, media, roles)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from appliance.dashboard.access_rights import RIGHTS, Right
from appliance.web.problems import PROBLEM_SCHEMA

# Of POST routes that are told nothing: the guard takes a change as JSON only, against forms of other sites.
_ANY_JSON = {
    "description": "Any JSON, such as `{}`; it is not looked at.", "required": True,
    "content": {"application/json": {"schema": {}}},
}  # fmt: skip
_BINARY = {"type": "string", "format": "binary"}


def media(*types: str, ranges: bool = False, etag: bool = True) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that answers with a file: its types, headers and ranges."""
    headers: dict[str, Any] = {}
    if etag:
        headers["ETag"] = _header("Send it as If-None-Match; 304: it is still the same.")
    content = {each: {"schema": {} if each == "application/json" else _BINARY} for each in types}
    found: dict[int | str, dict[str, Any]] = {200: {"content": content, "headers": headers}}
    if etag:
        found[304] = {"description": "Not changed", "headers": headers}
    if ranges:
        headers["Accept-Ranges"] = _header("bytes")
        content = {**content, "multipart/byteranges": {"schema": _BINARY}}
        span = {**headers, "Content-Range": _header("Which bytes of how many")}
        found[206] = {"description": "The bytes that Range asked for", "content": content, "headers": span}
    return found


def operation_id(route: APIRoute) -> str:
    """Return the name of the handler: clients that are made from the OpenAPI name their functions after it."""
    return route.name


def serve_openapi(app: FastAPI) -> None:
    """Let `app` serve its OpenAPI with what this module adds."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(
                get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _described(found: dict[str, Any]) -> dict[str, Any]:
    parts = found.setdefault("components", {})
    parts.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
    parts["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "dashboard.token, or a token made at /users"},
        "session": {"type": "apiKey", "in": "cookie", "name": "vedette_session", "description": "from POST /login"},
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            right = RIGHTS.get((method.upper(), path), Right("admin"))
            operation["security"] = [{}] if right.role is None else [{"bearer": []}, {"session": []}]
            operation["x-role"] = right.role or "nobody"
            if method == "post":
                operation.setdefault("requestBody", _ANY_JSON)
    _plain_tuples(found)
    return found


def _plain_tuples(node: Any) -> None:
    """Write arrays whose places are all alike as such: tools know `items` better than `prefixItems`."""
    if isinstance(node, dict):
        places = node.get("prefixItems")
        if places and all(each == places[0] for each in places):
            node["items"] = node.pop("prefixItems")[0]
        for each in node.values():
            _plain_tuples(each)
    elif isinstance(node, list):
        for each in node:
            _plain_tuples(each)


def _header(text: str) -> dict[str, Any]:
    return {"schema": {"type": "string"}, "description": text}
