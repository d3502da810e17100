"""Flat records of grouped values: a log line or a database row has the fields of all groups side by side.

A dataclass with KEYS, the keys of its record in their order, has a flat record. A dataclass in it that has no KEYS of
its own is a group: its fields stand beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

Value = TypeVar("Value")


def flat(value: Any) -> Any:
    """Return the flat record of a value."""
    found = dict(_items(value))
    return record_class(value.__class__)(**{key: found[key] for key in value.KEYS})


def grouped(cls: type[Value], record: Mapping[str, Any]) -> Value:
    """Return the value of a flat record. A field that the record lacks keeps its default; others are ignored."""
    known: Any = cls
    found = {each.name: record[each.name] for each in fields(known) if each.name in record}
    for each in fields(known):
        if is_dataclass(group := type(each.default)):
            found[each.name] = grouped(group, record.get(each.name, {}) if hasattr(group, "KEYS") else record)
    return cls(**found)


@cache
def record_class(cls: Any) -> Any:
    """Return the dataclass of the flat records of `cls`."""
    columns = {column[0]: column for column in _columns(cls)}
    made = make_dataclass(cls.__name__, [columns[key] for key in cls.KEYS], frozen=True, slots=True, kw_only=True)
    made.__doc__ = cls.__doc__
    return made


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(value):
        held = getattr(value, each.name)
        if is_dataclass(held) and not hasattr(held, "KEYS"):
            yield from _items(held)
        else:
            yield each.name, flat(held) if is_dataclass(held) else held


def _columns(cls: Any) -> Iterator[tuple[str, Any, Any]]:
    kinds = get_type_hints(cls)
    for each in fields(cls):
        kind = kinds[each.name]
        if hasattr(kind, "KEYS"):
            yield each.name, record_class(kind), field(default=flat(each.default))
        elif is_dataclass(kind):
            yield from _columns(kind)
        else:
            yield each.name, kind, field(default=each.default)
