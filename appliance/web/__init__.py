"""Holds what any web program needs: sign-in, guard, HTTPS, texts, tables, styles."""

import importlib
import sys
import types
from typing import Any

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
