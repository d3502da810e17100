"""The JSON Schema of a replay log's lines; published as log.schema.json beside this file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from appliance.replay.header import LogHeader
from appliance.types import Alert, Event, FrameBoxes, Gap, HealthEvent, LogEnd, LogVerdict, Route, StreamHeader

_Line = Annotated[
    FrameBoxes | Event | Route | Alert | LogVerdict | Gap | HealthEvent | LogEnd, Field(discriminator="type")
]
_line: TypeAdapter[Any] = TypeAdapter(LogHeader | StreamHeader | _Line)


def log_schema() -> dict[str, Any]:
    """What every line of a log is one of; the first is a `LogHeader`. Readers ignore fields they do not know."""
    schema = _line.json_schema(mode="serialization")
    for part in schema["$defs"].values():
        if "const" in part.get("properties", {}).get("type", {}):  # always written, and what tells lines apart
            part["required"] = ["type", *(name for name in part.get("required", ()) if name != "type")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a Vedette replay log, version 3",
        "description": "One JSON object a line; the first line is a LogHeader. Version 2 has no verdicts, and is still "
        "what a log without them says. See docs/replay.md.",
        **schema,
    }
