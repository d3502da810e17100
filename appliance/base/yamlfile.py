"""Loads a YAML file into a pydantic model, with errors that name the line, the key and the nearest right name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from appliance.base.errors import ConfigError, printable
from appliance.base.local_files import is_special

FILE_BYTES_MAX = 1024 * 1024  # one of 4 MB was checked for a minute
NODES_MAX = 100_000  # values of ten bytes in FILE_BYTES_MAX
DEPTH_MAX = 40  # levels; a site file has fewer than ten, and recursion ends at 1000 frames
_TOO_LARGE = f"over {NODES_MAX} values or nested too deep"
_TOO_LONG = (
    f"the file is over {FILE_BYTES_MAX // 1024} kB, more than a configuration may have: take out what is written twice "
    "(YAML's anchors say it once), or divide the cameras among more appliances"
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NAMES = {  # patterns of names, in words
    r"^[a-z0-9][a-z0-9_-]{0,31}$": "a name is of small letters, digits, - and _, at most 32, - and _ not first",
    r"^[A-Za-z0-9_-]{1,64}$": "a name is of letters, digits, - and _, at most 64",
}
_PLAIN_WORD = re.compile(r"[a-z]{1,10}", re.IGNORECASE)  # such as stand in the sentences themselves
_NO_TEXT = {"int", "float", "bool", "null", "timestamp"}  # what YAML makes of 1, 1.5, on, ~ and 2026-01-31
_SECTION = "must be a section of `key: value` lines"
_Key = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """A loader of our own, which constructors that others add to SafeLoader do not reach. It counts as it reads."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODES_MAX or self._depth > DEPTH_MAX:
            raise yaml.YAMLError(_TOO_LARGE)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def load(path: Path, model: type[Model], variables: Mapping[str, str] | None = None) -> Model:
    """Read, expand `${NAME}` (or `${NAME:-default}`), validate. Raises ConfigError.

    variables: what a name may stand for; None: the environment.
    """
    return loads(read_text(path), model, str(path), variables)


def loads(
    text: str, model: type[Model], source: str = "configuration", variables: Mapping[str, str] | None = None
) -> Model:
    """Parse and validate a text as `load` does; errors call it `source`."""
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(source, [_TOO_LONG])
    root = _compose(text, source)
    _bound(root, source)
    keys = list(_keys(root))
    lines = {key: line for key, line, _ in keys}
    problems = [
        f"line {line}: {'.'.join(map(str, key))}: the key is written twice" for key, line, twice in keys if twice
    ]
    known = _Variables(os.environ if variables is None else variables, lines, problems)
    data = _expand(_construct(root, source), (), known.expand)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        problems.append("it must hold `key: value` lines, and is a list or a single value")
    if problems:
        raise ConfigError(source, problems)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults: dict[str, int] = {}  # each text once, with its line
        for each in found:
            if (name := _name_of_no_text(each, root, data)) is not None:
                key, text = name, f'YAML does not read this name as a text: write "{name[-1]}", in quotes'
            else:
                key = _keys_in_file(each["loc"], data)
                text = _explain(each, key, model, data, known.used)
            faults[f"{place_in_file(key, lines)}: {text}"] = _line_in_file(key, lines)
        raise ConfigError(source, sorted(faults, key=faults.__getitem__)) from None


def line_numbers(path: Path) -> dict[tuple[str | int, ...], int]:
    """Return the line of every key and list item of a loaded file, for faults that only another file shows."""
    return {key: line for key, line, _ in _keys(_compose(read_text(path), str(path)))}


def read_text(path: Path) -> str:
    """Return the text of a configuration file. Raise ConfigError if it is absent, too long, or not UTF-8."""
    try:
        if is_special(path):
            raise ConfigError(str(path), ["a pipe or a device, which can be read once or has no end: give a file"])
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(str(path), [_TOO_LONG])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), ["no such file"]) from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), ["not a text file in UTF-8"]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from None


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, source, text) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise ConfigError(source, [f"not valid YAML for a configuration: {_brief(error)}"]) from None


def _brief(error: Exception) -> str:
    return str(error)[:100] or type(error).__name__


def _not_yaml(error: yaml.YAMLError, source: str, text: str = "") -> ConfigError:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return ConfigError(source, [f"line {line}: not valid YAML: the character {printable(chr(error.character))}"])
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    problem = str(getattr(error, "problem", None) or error)
    if "'\\t'" in problem:
        problem = "a tab; YAML is indented by spaces"
    return ConfigError(source, [f"{where}not valid YAML: {problem}"])


def _bound(root: yaml.Node | None, source: str) -> None:
    """Refuse what aliases can make of a small file: cycles, and trees that grow without end."""
    nodes = 0
    stack = [(root, 0)] if root else []
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if nodes > NODES_MAX or depth > DEPTH_MAX:
            raise ConfigError(source, [f"not valid YAML for a configuration: {_TOO_LARGE}"])
        if isinstance(node, yaml.MappingNode):
            for name, _ in node.value:
                if not isinstance(name, yaml.ScalarNode):
                    raise ConfigError(
                        source, [f"line {name.start_mark.line + 1}: a key is a word, not a list or a section"]
                    )
            stack += [(child, depth + 1) for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            stack += [(child, depth + 1) for child in node.value]


def _construct(node: yaml.Node | None, source: str) -> Any:
    if node is None:
        return {}
    try:
        return _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        raise _not_yaml(error, source) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # 2001-02-30, a number of 5,000 digits
        raise ConfigError(source, [f"a value in it cannot be understood: {_brief(error)}"]) from None


def _keys(node: yaml.Node | None, parent: _Key = ()) -> Iterator[tuple[_Key, int, bool]]:
    """Yield every key and list item: where it stands, its line, and whether the key stood there before."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            key = (*parent, str(name.value))
            yield key, name.start_mark.line + 1, name.value in seen
            seen.add(name.value)
            yield from _keys(value, key)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*parent, index), value.start_mark.line + 1, False
            yield from _keys(value, (*parent, index))


def _expand(value: Any, key: _Key, expand_text: Callable[[str, _Key], str]) -> Any:
    """Return `value` with every text in it expanded."""
    if isinstance(value, dict):
        return {name: _expand(item, (*key, str(name)), expand_text) for name, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, (*key, index), expand_text) for index, item in enumerate(value)]
    return expand_text(value, key) if isinstance(value, str) else value


class _Variables:
    """Puts the values of variables into texts. used: what was written for each value, and each text with one in it."""

    def __init__(self, variables: Mapping[str, str], lines: dict[_Key, int], problems: list[str]) -> None:
        """problems: gets one for each text that cannot be expanded."""
        self._variables, self._lines, self._problems = variables, lines, problems
        self.used: dict[str, str] = {}

    def expand(self, text: str, key: _Key) -> str:
        if "\0" in text:  # no name and no path may hold one, and few who are given it say so
            self._problems.append(
                f"{place_in_file(key, self._lines)}: holds the character \\0, which no value here may"
            )
        expanded = _VARIABLE.sub(lambda match: self._value(match, key), text)
        if expanded != text:
            self.used[expanded] = text
        return expanded

    def _value(self, match: re.Match[str], key: _Key) -> str:
        name, default = match.group(1), match.group(2)
        found = self._variables.get(name) or default  # as in a shell: an empty variable is as good as none
        if found is None:
            state = "empty" if name in self._variables else "not set"
            self._problems.append(
                f"{place_in_file(key, self._lines)}: the environment variable {name} is {state} "
                f"(export it, or write ${{{name}:-default}})"
            )
            return ""
        self.used[found] = match.group()
        return found


def place_in_file(key: tuple[str | int, ...], lines: Mapping[tuple[str | int, ...], int]) -> str:
    """Write `line 12: cameras.gate.rules.0.labels.1`, by what `line_numbers` found."""
    dotted, line = ".".join(str(part) for part in key) or "file", _line_in_file(key, lines)
    return f"line {line}: {dotted}" if line else dotted


def _line_in_file(key: _Key, lines: Mapping[_Key, int]) -> int:
    """Return the line of a key, or of the section that it would stand in; 0: there is none."""
    while key and key not in lines:
        key = key[:-1]
    return lines[key] if key else 0


def _explain(problem: Any, key: _Key, model: type[BaseModel], data: Any, used: Mapping[str, str]) -> str:
    if problem["type"] == "extra_forbidden":
        names = _siblings(model, key[:-1], data)
        near = difflib.get_close_matches(str(key[-1]), names, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys here: {', '.join(sorted(names))}"
        return f"unknown key; {hint}"
    if problem["type"] == "missing":
        return "this key is required"
    if problem["type"] in ("model_type", "model_attributes_type") and (names := _siblings(model, key, data)):
        return f"{_SECTION}; known keys here: {', '.join(names)}"
    return _without_values(_in_words(problem), used)


def _name_of_no_text(problem: Any, root: yaml.Node | None, data: Any) -> _Key | None:
    """Return the key that YAML takes for a number, a date or yes or no; None where the problem is a value."""
    loc = problem["loc"]
    if problem["type"] != "invalid_key" and (problem["type"], *loc[-1:]) != ("string_type", "[key]"):
        return None
    parent = _keys_in_file((*loc[: -2 if loc[-1] == "[key]" else -1], "[key]"), data)
    node = root
    for part in parent:
        node = _child_node(node, part)
    written = node.value if isinstance(node, yaml.MappingNode) else ()
    for name, _ in written:
        if name.tag.rpartition(":")[2] in _NO_TEXT:
            return (*parent, str(name.value))
    return None


def _child_node(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        found: yaml.Node = node.value[part]
        return found
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if str(name.value) == str(part)), None)


def _without_values(text: str, used: Mapping[str, str]) -> str:
    """Return `text` with what the file says in place of a variable's value, which may be a secret.

    A plain word is replaced only in quotes or in an address: elsewhere it is the sentence's own, and a variable in its
    place would tell the secret.
    """
    values = {value.lower(): written for value, written in used.items() if value}
    words = "|".join(map(_value_pattern, sorted(values, key=len, reverse=True)))
    return re.sub(words, lambda found: values.get(found[0].lower(), "…"), text, flags=re.IGNORECASE) if values else text


def _value_pattern(value: str) -> str:
    word = rf"(?<!\w){re.escape(value)}(?!\w)"
    return rf"(?<=[`'\"@/:=]){word}|{word}(?=[`'\"@/])" if _PLAIN_WORD.fullmatch(value) else word


def _in_words(problem: Any) -> str:
    """Return pydantic's error in the words of a site file."""
    limits = problem.get("ctx", {})
    match problem["type"]:
        case "union_tag_not_found":
            return f"the key {limits['discriminator']} is required, and says what it is"
        case "union_tag_invalid":
            return f"{limits['discriminator']} `{limits['tag']}` is none of {limits['expected_tags']}"
        case "string_pattern_mismatch":
            return _NAMES.get(limits["pattern"], f"must be written as {limits['pattern']} says")
        case "tuple_type" | "list_type":
            return "must be a list: [a, b]"
        case "dict_type" | "model_type" | "model_attributes_type" | "dataclass_type":
            return _SECTION
        case "too_short":
            return f"must have at least {limits['min_length']}, and has {limits['actual_length']}"
        case "too_long":
            return f"may have at most {limits['max_length']}"
    message: str = problem["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _keys_in_file(loc: tuple[str | int, ...], data: Any) -> _Key:
    """Return `loc` without the parts pydantic adds for unions and discriminators: only keys that stand in the file."""
    key: list[str | int] = []
    node = data
    for index, part in enumerate(loc):
        child = _child(node, part)
        last_and_absent = index == len(loc) - 1 and isinstance(node, dict) and isinstance(part, str)
        if child is not None or (last_and_absent and part != "[key]"):
            node = child
            key.append(part)
    return tuple(key)


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return node[part]
    return None


def _siblings(model: type[BaseModel], parent: _Key, data: Any) -> list[str]:
    """Return the names allowed in the section at `parent`."""
    candidates = _descend([model], parent, data)
    fields = [pair for candidate in candidates for pair in candidate.model_fields.items()]
    return sorted({field.alias or name for name, field in fields})


def _descend(models: list[type[BaseModel]], key: _Key, data: Any) -> list[type[BaseModel]]:
    for part in key:
        following: list[type[BaseModel]] = []
        data = _child(data, part)
        for model in models:
            if isinstance(part, str) and part in model.model_fields:
                following += _models_in(model.model_fields[part].annotation)
        models = following or models
    if isinstance(data, dict) and "kind" in data:
        exact = [model for model in models if data["kind"] in _kinds(model)]
        return exact or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
