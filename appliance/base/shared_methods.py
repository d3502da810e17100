"""Methods that `dataclass` writes for each class anew, shared by all: 24,000 Python objects less in the core.

Only what is rarely called: a representation, and the refusals of a frozen class. Comparison and hash stay as written.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from reprlib import recursive_repr
from types import FunctionType

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
