"""Holds what any web program needs: sign-in, guard, HTTPS, texts, tables, styles."""

import importlib
import sys
import types
from typing import Any

from pydantic import BaseModel, ConfigDict

_OPENAPI = "fastapi.openapi.models"

# FastAPI asks of every class whether it is one of pydantic 1's, and loads all of that for it: 1.5 MB. None of ours is.
sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]


class _NoCommandLine(types.ModuleType):
    """Stands for uvicorn's command line, which loads click and multiprocessing: 1.6 MB. Only the server is used."""

    def __getattr__(self, name: str) -> Any:
        if name == "Server":
            return importlib.import_module("uvicorn.server").Server
        if name in ("main", "run"):  # which the package takes over, and nobody calls
            return None
        raise AttributeError(f"{self.__name__} has no attribute {name}: see {__name__}")


sys.modules.setdefault("uvicorn.main", _NoCommandLine("uvicorn.main"))


def load_fastapi() -> None:
    """Load FastAPI without building its models of an OpenAPI document: 2 MB that are needed only to write one.

    pydantic builds the validators of these models with the first request for the document.

    Call it before anything else loads FastAPI, or nothing changes. Models that are defined later are built as usual.
    """
    if _OPENAPI in sys.modules:
        return
    settings, rebuild = BaseModel.model_config, BaseModel.__dict__["model_rebuild"]

    def rebuild_if_used(model: type[BaseModel], /, **how: Any) -> bool | None:
        """Ignore the call without arguments, by which FastAPI builds three of its models at once."""
        built: bool | None = rebuild.__get__(None, model)(**how) if how else None
        return built

    BaseModel.model_config = ConfigDict(defer_build=True)  # subclasses take it over
    BaseModel.model_rebuild = classmethod(rebuild_if_used)  # type: ignore[assignment, method-assign]
    try:
        importlib.import_module(_OPENAPI)
    finally:
        BaseModel.model_config = settings
        BaseModel.model_rebuild = rebuild  # type: ignore[method-assign]
