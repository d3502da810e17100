"""The meaning of a network's scores on the common scale: one line through the log-odds for each kind of object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from appliance.base.errors import ModelError

KINDS: Mapping[str, tuple[str, ...]] = {"person": ("person",), "vehicle": ("car", "bus", "truck", "van")}
"""The labels that are calibrated together."""
ScoreLines = Mapping[str, tuple[float, float]]
"""Kind to (slope, offset): logit of the share of answers that are right = slope * logit(score) + offset (Platt)."""
REFERENCE: ScoreLines = {"person": (1.0, 0.28), "vehicle": (1.9, 1.07)}
"""The lines of the first vedette-nano, with which all default thresholds were chosen: the common scale."""
METADATA_KEY = "vedette_calibration"
LINE_MAX = 20.0  # slopes and offsets beyond it make every score 0 or 1


def to_common_scale(own: ScoreLines, labels: Sequence[str]) -> dict[str, tuple[float, float]]:
    """By label: (slope, offset) from a network's log-odds to those of the common scale; none where both are one."""
    found = {}
    for kind, (slope, offset) in own.items():
        reference = REFERENCE.get(kind)
        if reference is None or reference == (slope, offset):
            continue
        line = (round(slope / reference[0], 4), round((offset - reference[1]) / reference[0], 4))
        found.update({label: line for label in KINDS[kind] if label in labels})
    return found


def checked_lines(lines: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the lines. Raise ValueError with the fault."""
    for kind, (slope, offset) in lines.items():
        if kind not in KINDS:
            raise ValueError(f"`{kind}` is no kind that scores are calibrated for ({', '.join(KINDS)})")
        if not 0 < slope <= LINE_MAX or not abs(offset) <= LINE_MAX:
            raise ValueError(f"{kind}: a slope above 0 and two numbers of at most {LINE_MAX:g}, not {slope}, {offset}")
    return dict(lines)


def lines_from_metadata(model: str, metadata: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the file's metadata `vedette_calibration`: `{"person": [1.2, 0.3]}`; {}: none. Raise ModelError."""
    text = metadata.get(METADATA_KEY)
    if not text:
        return {}
    try:
        value = json.loads(text)
        return checked_lines({str(kind): (float(line[0]), float(line[1])) for kind, line in value.items()})
    except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise ModelError(f"{model}: its metadata `{METADATA_KEY}` cannot be understood: {error}") from None
