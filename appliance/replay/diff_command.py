"""`vedette replay diff` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from appliance.errors import UsageError
from appliance.replay.diff import compare
from appliance.replay.diff_words import words
from appliance.replay.difference import Difference
from appliance.replay.reader import read_log

_difference: TypeAdapter[Difference] = TypeAdapter(Difference)


def diff_command(before: Path, after: Path, *, as_json: bool) -> int:
    """Explain what differs. Returns 0: the same was decided, 1: not. Raises UsageError when one is no replay log."""
    if before.is_dir() != after.is_dir():
        raise UsageError("compare two logs, or two folders of logs")
    pairs, lonely = _pairs(before, after) if before.is_dir() else ([(before, after)], [])
    found = [compare(read_log(one), read_log(other)) for one, other in pairs]
    same = all(each.same for each in found) and not lonely
    if as_json:
        print(json.dumps(_json(found, lonely, same, folders=before.is_dir())))
        return 0 if same else 1
    for each in found:
        if before.is_dir():
            print(f"{each.before}:")
        for line in words(each):
            print(f"  {line}" if before.is_dir() else line)
    for name in lonely:
        print(f"{name}: only in one of the folders")
    return 0 if same else 1


def _pairs(before: Path, after: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """The logs that both folders have, by name, and the names of those that only one has."""
    names = [{path.name for path in folder.glob("*.jsonl")} for folder in (before, after)]
    if not names[0] | names[1]:
        raise UsageError(f"there is no .jsonl in {before} or {after}")
    both = sorted(names[0] & names[1])
    return [(before / name, after / name) for name in both], sorted(names[0] ^ names[1])


def _json(found: list[Difference], lonely: list[str], same: bool, *, folders: bool) -> dict[str, Any]:
    told = [_difference.dump_python(each, mode="json") for each in found]
    if not folders:
        one: dict[str, Any] = told[0]
        return one
    return {"same": same, "logs": told, "only_in_one": lonely}
