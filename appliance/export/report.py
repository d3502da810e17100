"""What an export holds and what it left out, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from appliance.export.folder import Format
from appliance.export.sample import SPLITS, Exported, Split

NOT_REVIEWED = "not reviewed"
LASTS = "still lasting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """pictures: by part; alerts: `right` and `false alarm` that gave pictures; left_out: alerts by reason.

    reused: alerts whose pictures an earlier run had made. bytes: of the pictures of this run.
    """

    site: str
    format: Format
    labels: tuple[str, ...]
    pictures: Mapping[Split, int]
    boxes: int
    backgrounds: int
    alerts: Mapping[str, int]
    left_out: Mapping[str, int]
    reused: int = 0

    @property
    def left_out_words(self) -> str:
        """`12 not reviewed, 1 without a picture`."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.items() if count) or "none"


def report_of(
    exported: Iterable[Exported],
    skipped: Mapping[str, int],
    site: str,
    format_: Format,
    labels: tuple[str, ...],
    reused: int,
) -> Report:
    """Count. skipped: alerts that were not looked into, by reason."""
    pictures: Counter[Split] = Counter(dict.fromkeys(SPLITS, 0))
    alerts = Counter({"right": 0, "false alarm": 0})
    left_out = Counter({reason: count for reason, count in skipped.items() if count})
    boxes = backgrounds = 0
    for each in exported:
        if not each.samples:
            left_out[each.left_out] += 1
            continue
        pictures[each.split] += len(each.samples)
        alerts["false alarm" if each.background else "right"] += 1
        boxes += sum(len(sample.drawn) for sample in each.samples)
        backgrounds += len(each.samples) if each.background else 0
    return Report(
        site=site, format=format_, labels=labels, pictures=dict(pictures), boxes=boxes, backgrounds=backgrounds,
        alerts=dict(alerts), left_out=dict(left_out), reused=reused,
    )  # fmt: skip
