"""Frees what imports leave behind and a process that has started does not read again.

Annotations that only editors and type checkers read: 1.3 MB of the core, 0.8 of ingest. Methods that `dataclass` writes
for each class anew, which then share one: 24,000 Python objects of the core. Only what is rarely called is shared: a
representation, and the refusals of a frozen class. Comparison and hash stay as written.
"""

from __future__ import annotations

import sys
import typing
from dataclasses import FrozenInstanceError, fields
from reprlib import recursive_repr
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


_WRITTEN = "<string>"  # the file that code made by dataclasses names


@recursive_repr()
def _represent(self: object) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    if _is_frozen(type(self), name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: object, name: str) -> None:
    if _is_frozen(type(self), name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(kind: type, name: str) -> bool:
    """Tell whether it is a field or the class a dataclass itself; a plain subclass may have attributes of its own."""
    return "__dataclass_params__" in vars(kind) or name in kind.__dataclass_fields__  # type: ignore[attr-defined]


_SHARED = {"__repr__": _represent, "__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}


def share_methods(package: str = "appliance") -> int:
    """Have the dataclasses of a package loaded so far share what was written for each; return how many methods.

    Call it after the imports and before anything that stays is made, which then takes the memory.
    """
    replaced = 0
    for kind in _subclasses(object):
        if "__dataclass_params__" not in vars(kind) or not f"{kind.__module__}.".startswith(f"{package}."):
            continue
        for name, shared in _SHARED.items():
            if _is_written(vars(kind).get(name)):
                setattr(kind, name, shared)
                replaced += 1
    return replaced


def _is_written(method: object) -> bool:
    """Tell whether dataclasses made the method; its representation is wrapped."""
    method = getattr(method, "__wrapped__", method)
    return isinstance(method, FunctionType) and method.__code__.co_filename == _WRITTEN


def _subclasses(kind: type) -> set[type]:
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        new: set[type] = set(type.__subclasses__(waiting.pop())) - found
        found |= new
        waiting += new
    return found
