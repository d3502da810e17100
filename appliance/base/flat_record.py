"""Flat records of grouped values: a log line or a database row has the fields of all groups side by side.

A group is a field whose default is a dataclass; the fields of a value and of its groups have different names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Any, TypeVar, get_type_hints

Value = TypeVar("Value")


def flat(value: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Return these fields of a dataclass and of its groups, in the order of `keys`."""
    found = dict(_items(value))
    return {key: found[key] for key in keys}


def grouped(cls: type[Value], record: Mapping[str, Any]) -> Value:
    """Return the value of a flat record. A field that the record lacks keeps its default; others are ignored."""
    known: Any = cls
    own = {each.name: record[each.name] for each in fields(known) if each.name in record}
    groups = [each for each in fields(known) if _is_group(each) and each.name not in own]
    return cls(**own, **{each.name: grouped(type(each.default), record) for each in groups})


def record_class(cls: type, keys: Sequence[str], **nested: type) -> Any:
    """Return the dataclass of the flat records of `cls`, for pydantic. nested: records in it, by their keys."""
    columns = {column[0]: column for column in _columns(cls, nested)}
    made = make_dataclass(cls.__name__, [columns[key] for key in keys], frozen=True, slots=True, kw_only=True)
    made.__doc__ = cls.__doc__
    return made


def _is_group(each: Field[Any]) -> bool:
    return is_dataclass(each.default)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        held = getattr(value, each.name)
        yield each.name, held
        if _is_group(each):
            yield from _items(held)


def _columns(cls: Any, nested: Mapping[str, type]) -> Iterator[tuple[str, Any, Any]]:
    kinds = get_type_hints(cls)
    for each in fields(cls):
        if each.name in nested:
            yield each.name, nested[each.name], field(default=nested[each.name]())
        elif _is_group(each):
            yield from _columns(type(each.default), {})
        else:
            yield each.name, kinds[each.name], field() if each.default is MISSING else field(default=each.default)
