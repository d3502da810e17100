"""Frees what imports leave behind and a process that has started does not read again: 1.3 MB of core, 0.8 of ingest."""

from __future__ import annotations

import sys
import typing
from types import FunctionType

# Functions of FastAPI and classes of pydantic have their documentation in annotations, which only editors and type
# checkers read. Those of FastAPI's forms and security classes are read, as are all of ours.
_FUNCTIONS_OF = ("fastapi.applications", "fastapi.param_functions", "fastapi.params", "fastapi.routing")
_TYPED_DICTS_OF = ("pydantic_core.core_schema",)


def free_import_leftovers() -> None:
    """Free them; call it after the imports and before anything that stays is made, which then takes the memory.

    Modules can still be imported: then their folders are listed again.
    """
    sys.path_importer_cache.clear()
    for forget_types in getattr(typing, "_cleanups", ()):
        forget_types()
    for name in _TYPED_DICTS_OF:
        for kind in _of(name, type):
            if hasattr(kind, "__total__"):  # a TypedDict, be it of typing or of typing_extensions
                kind.__annotations__.clear()
    for name in _FUNCTIONS_OF:
        functions = [*_of(name, FunctionType), *(each for kind in _of(name, type) for each in vars(kind).values())]
        for function in functions:
            if isinstance(function, FunctionType):
                del function.__annotations__


def _of(module: str, kind: type) -> list[typing.Any]:
    """Return what a module defines itself of a kind; nothing if it is not loaded."""
    values = vars(sys.modules[module]).values() if module in sys.modules else ()
    return [each for each in values if isinstance(each, kind) and getattr(each, "__module__", "") == module]
