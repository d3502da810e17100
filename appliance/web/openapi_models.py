"""Loads FastAPI without building its models of an OpenAPI document: 2 MB that the core needs only to write one."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict

_MODELS = "fastapi.openapi.models"


def load_unbuilt() -> None:
    """Load FastAPI; pydantic builds the validators of its own models with the first request for the document.

    Call it before anything else loads FastAPI, or nothing changes. Models that are defined later are built as usual.
    """
    if _MODELS in sys.modules:
        return
    settings, rebuild = BaseModel.model_config, BaseModel.__dict__["model_rebuild"]

    def rebuild_if_used(model: type[BaseModel], /, **how: Any) -> bool | None:
        """Ignore the call without arguments, by which FastAPI builds three of its models at once."""
        built: bool | None = rebuild.__get__(None, model)(**how) if how else None
        return built

    BaseModel.model_config = ConfigDict(defer_build=True)  # subclasses take it over
    BaseModel.model_rebuild = classmethod(rebuild_if_used)  # type: ignore[assignment, method-assign]
    try:
        importlib.import_module(_MODELS)
    finally:
        BaseModel.model_config = settings
        BaseModel.model_rebuild = rebuild  # type: ignore[method-assign]
