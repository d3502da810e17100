"""Edits the text of a YAML file by the marks that the parser gives each value: all else stays byte for byte.

An emitter that keeps comments (ruamel.yaml) was tried: it lays out the whole file anew, and puts a new key below the
comment of the section that follows. Every edit is checked: the new text must hold what was asked for and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from appliance.base.errors import ConfigError

KeyPath = tuple[str | int, ...]
REMOVED = object()  # as a value: the key goes
INDENT = 2  # columns, as in deploy/vedette.example.yaml


@dataclass(frozen=True, slots=True)
class SiteChange:
    """Set the value at `path` or, with REMOVED, take the key away. A name selects the list item with that `name`."""

    path: KeyPath
    value: Any


def edit(text: str, changes: Sequence[SiteChange]) -> str:
    """`text` with `changes` made one after the other.

    Raises ConfigError for a path that leads nowhere, and where a YAML alias makes one text stand for several places.
    """
    for change in changes:
        wanted = _changed(yaml.safe_load(text), change)
        for step in _smallest(text, change):
            text = _remove(text, step.path) if step.value is REMOVED else _set(text, step.path, step.value)
        if _load(text) != wanted:
            raise _refusal(change.path, "this part is written in a way that cannot be changed from here")
    return text


def _load(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return REMOVED


def _refusal(path: KeyPath, reason: str) -> ConfigError:
    return ConfigError("site file", [f"{'.'.join(map(str, path)) or 'file'}: {reason}; edit the file by hand"])


# -- which parts change


def _changed(data: Any, change: SiteChange) -> Any:
    """Return the data that the text must hold in the end."""
    root = {} if data is None else copy.deepcopy(data)
    node = root
    for part in change.path[:-1]:
        key = _index(node, part)
        if isinstance(node, dict):
            if node.get(key) is None:
                if change.value is REMOVED:
                    return root if data is not None else data
                node[key] = {}
            node = node[key]
        elif isinstance(node, list) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            raise _refusal(change.path, f"there is no {part}")
    key = _index(node, change.path[-1])
    if change.value is REMOVED:
        if isinstance(node, dict):
            node.pop(key, None)
        elif isinstance(node, list) and isinstance(key, int) and key < len(node):
            del node[key]
    elif isinstance(node, list) and isinstance(key, int):
        node[key:] = [change.value, *node[key + 1 :]]
    elif isinstance(node, dict):
        node[key] = change.value
    else:
        raise _refusal(change.path, f"there are no keys below {change.path[-2]}")
    return root


def _smallest(text: str, change: SiteChange) -> Iterator[SiteChange]:
    """Yield the change as changes of the smallest parts, so that what is equal keeps its comments and layout."""
    node = yaml.safe_load(text)
    for part in change.path:
        key = _index(node, part)
        present = key in node if isinstance(node, dict) else isinstance(node, list) and int(key) < len(node)
        if not present:
            if change.value is not REMOVED:
                yield change
            return
        node = node[key]
    if change.value is REMOVED:
        yield change
    else:
        yield from _differences(change.path, node, change.value)


def _differences(path: KeyPath, old: Any, new: Any) -> Iterator[SiteChange]:
    if isinstance(old, dict) and isinstance(new, dict) and old and new:
        for key, value in new.items():
            yield from _differences((*path, key), old[key], value) if key in old else (SiteChange((*path, key), value),)
        yield from (SiteChange((*path, key), REMOVED) for key in old if key not in new)
        return
    old_names, new_names = _names(old), _names(new)
    kept = [name for name in old_names if name in new_names]
    if kept and new_names[: len(kept)] == kept:  # those that stay in their order, new ones after them
        by_name = {item["name"]: item for item in old}
        for item in new:
            at = (*path, item["name"])
            yield from _differences(at, by_name[at[-1]], item) if at[-1] in by_name else (SiteChange(at, item),)
        yield from (SiteChange((*path, name), REMOVED) for name in old_names if name not in kept)
        return
    if old != new or type(old) is not type(new):
        yield SiteChange(path, new)


def _names(items: Any) -> list[str]:
    """Return the names of a list of named sections; []: it is none, or two have one name."""
    if not isinstance(items, list) or not all(isinstance(item, dict) and "name" in item for item in items):
        return []
    names = [item["name"] for item in items]
    return names if len(set(names)) == len(names) else []


def _index(node: Any, part: str | int) -> str | int:
    """Return the key of a section, or the place of `part` (a number or an item's name) in a list; its end: no such."""
    if not isinstance(node, list):
        return part
    if isinstance(part, int):
        return min(part, len(node))
    return next((i for i, item in enumerate(node) if isinstance(item, dict) and item.get("name") == part), len(node))


# -- where they stand


@dataclass(frozen=True, slots=True)
class _Place:
    """A value in the text. key_end: the end of its key, or of the dash of a list item; parent None: the whole file."""

    node: yaml.Node
    key_start: int
    key_end: int
    parent: yaml.Node | None


def _find(text: str, path: KeyPath) -> tuple[_Place | None, int]:
    """Return the deepest place on the way to `path`, and how many parts of it lead there. None: the file is empty."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return None, 0
    place = _Place(root, root.start_mark.index, root.start_mark.index, None)
    for depth, part in enumerate(path):
        following = _child(text, place, part)
        if following is None:
            return place, depth
        start = following.node.start_mark.index
        if start < following.key_end or text[start : start + 1] == "&":
            raise _refusal(path, "a YAML alias makes it stand for several places")
        place = following
    return place, len(path)


def _child(text: str, place: _Place, part: str | int) -> _Place | None:
    node = place.node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                end = text.index(":", key.end_mark.index) + 1
                return _Place(value, key.start_mark.index, end, node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            if index == part or (isinstance(part, str) and _name_of(item) == part):
                start = item.start_mark.index if node.flow_style else _dash(text, node, item)
                return _Place(item, start, start + (not node.flow_style), node)
    return None


def _dash(text: str, node: yaml.Node, item: yaml.Node) -> int:
    """Where the dash of an item stands: in the column in which the list begins. A comment may stand between."""
    at: int = item.start_mark.index
    while True:
        start = _line_start(text, at)
        dash: int = start + node.start_mark.column
        if dash <= at and text[dash : dash + 1] == "-":
            return dash
        if start == 0:
            raise _refusal((), "a list item without its dash")
        at = start - 1


def _name_of(item: yaml.Node) -> str | None:
    pairs = item.value if isinstance(item, yaml.MappingNode) else ()
    return next((value.value for key, value in pairs if key.value == "name"), None)


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _end(text: str, node: yaml.Node) -> int:
    """Where the content of a value ends, without the comments and empty lines below it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return max(_end(text, part) for part in (last if isinstance(last, tuple) else (last,)))
    end: int = node.end_mark.index
    return len(text[:end].rstrip()) if isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"} else end


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    """Return the index after the line break of the line that `index` stands in."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


# -- the edits


def _set(text: str, path: KeyPath, value: Any) -> str:
    place, depth = _find(text, path)
    if place is None:
        return _with_break(text) + _entry(path[0], _nested(path[1:], value), 0)
    if depth == len(path):
        return _replace(text, place, value)
    value, key = _nested(path[depth + 1 :], value), path[depth]
    node = place.node
    if isinstance(node, yaml.ScalarNode) or not node.value:
        return _replace(text, place, {key: value} if not isinstance(node, yaml.SequenceNode) else [value])
    if not _is_block(node):
        written = yaml.safe_load(text[node.start_mark.index : node.end_mark.index])
        new = [*written, value] if isinstance(written, list) else {**written, key: value}
        return _replace(text, place, new)
    column = node.start_mark.column
    at = _line_end(text, _end(text, node))
    entry = _item(value, column) if isinstance(node, yaml.SequenceNode) else _entry(key, value, column)
    return _with_break(text[:at]) + entry + text[at:]


def _replace(text: str, place: _Place, value: Any) -> str:
    node = place.node
    start, end = node.start_mark.index, _end(text, node)
    if not _is_block(node):
        within_line = place.parent is not None and not _is_block(place.parent)
        if _is_inline(value) or within_line or (isinstance(node, yaml.CollectionNode) and node.value):
            gap = "" if text[start - 1 : start].isspace() or start == 0 else " "
            return text[:start] + gap + _inline(value) + text[end:]
        if place.parent is None or isinstance(place.parent, yaml.MappingNode):
            at = _line_end(text, end)
            line = text[place.key_end : start].rstrip() + text[end:at].rstrip("\n")
            indent = place.key_start - _line_start(text, place.key_start) + INDENT
            below = _block(value, indent if place.parent is not None else 0)
            return text[: place.key_end] + line.rstrip() + "\n" + below + text[at:]
        return text[:start] + _block(value, node.start_mark.column).lstrip().rstrip("\n") + text[end:]
    column = node.start_mark.column
    if _is_inline(value):
        comment = text[place.key_end : _line_start(text, start)].rstrip()
        return text[: place.key_end] + " " + _inline(value) + comment + text[end:]
    if isinstance(place.parent, yaml.MappingNode):  # an item may stand below its key's own column, a section may not
        column = max(column, place.parent.start_mark.column + INDENT)
        return text[: _line_start(text, start)] + _block(value, column).rstrip("\n") + text[end:]
    return text[:start] + _block(value, column).lstrip().rstrip("\n") + text[end:]


def _remove(text: str, path: KeyPath) -> str:
    place, depth = _find(text, path)
    if place is None or depth < len(path):
        return text
    parent, holder = place.parent, path[:-1]
    assert parent is not None
    if not _is_block(parent):
        written = yaml.safe_load(text[parent.start_mark.index : parent.end_mark.index])
        del written[_index(written, path[-1])]
        return _set(text, holder, written)
    if len(parent.value) == 1:
        return _set(text, holder, [] if isinstance(parent, yaml.SequenceNode) else {}) if holder else ""
    start = _line_start(text, place.key_start)
    if text[start : place.key_start].strip():  # the first key of a list item: the next one takes its place
        following = parent.value[1]
        key = following[0] if isinstance(following, tuple) else None
        begin = key.start_mark.index if key is not None else _dash(text, parent, following)
        return text[: place.key_start] + text[begin:]
    return text[:start] + text[_line_end(text, _end(text, place.node)) :]


def _nested(path: KeyPath, value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _with_break(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


# -- how new values are written


class _FlowDumper(yaml.SafeDumper):
    """All in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Dumper(_FlowDumper):
    """Sections in lines; lists of values and of points in one."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)  # items of a list stand further in than its key


def _list(dumper: yaml.SafeDumper, data: Any) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=_is_inline(list(data)))


_Dumper.add_representer(list, _list)
_Dumper.add_representer(tuple, _list)


def _is_inline(value: Any) -> bool:
    """Return True for what stands on the line of its key: a value, an empty section, a list without sections."""
    if isinstance(value, list | tuple):
        return all(not isinstance(item, dict) and _is_inline(item) for item in value)
    return not isinstance(value, dict) or not value


def _inline(value: Any) -> str:
    dumped: str = yaml.dump(
        [value], Dumper=_FlowDumper, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True
    )
    return dumped.strip()[1:-1]


def _block(value: Any, column: int) -> str:
    """Return `value` in lines that begin at `column`."""
    dumped = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=False,
        width=1 << 20,
        allow_unicode=True,
        indent=INDENT,
    )
    return "".join(" " * column + line + "\n" for line in dumped.splitlines())


def _entry(key: str | int, value: Any, column: int) -> str:
    """Return a key with its value, as lines that begin at `column`."""
    name = _inline(key)
    if _is_inline(value):
        return f"{' ' * column}{name}: {_inline(value)}\n"
    return f"{' ' * column}{name}:\n{_block(value, column + INDENT)}"


def _item(value: Any, column: int) -> str:
    """Return a list item, as lines whose dash stands at `column`."""
    return (
        " " * column + "- " + _block(value, column + 2).lstrip()
        if isinstance(value, dict)
        else (f"{' ' * column}- {_inline(value)}\n")
    )
