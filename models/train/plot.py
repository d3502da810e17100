"""Draw a run's log as one SVG: python -m models.train.plot RUN > run.svg. No other package is needed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 900, 260, 50
COLOURS = ("#1b6ca8", "#c0392b", "#27834b", "#8e5aa8")


@dataclass(frozen=True, slots=True)
class Curve:
    """A name and its points (step, value)."""

    name: str
    points: tuple[tuple[float, float], ...]


def curves(path: Path) -> tuple[list[Curve], list[Curve]]:
    """Return the losses, and figures on the held-back pictures, of a log.jsonl."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    judged = [line for line in lines if line["type"] == "judge"]
    return (
        [_curve(steps, name) for name in ("total", "classes", "boxes", "teacher")],
        [_curve(judged, name) for name in ("ap50", "person")],
    )


def _curve(lines: list[dict[str, float]], name: str) -> Curve:
    # nan is not equal to itself: a class without boxes has no figure.
    return Curve(name, tuple((line["step"], line[name]) for line in lines if line[name] == line[name]))


def svg(panels: Sequence[Sequence[Curve]]) -> str:
    """Draw one panel below the other, each with its own scale from 0."""
    tall = HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" font-family="sans-serif" font-size="12">'
    ]
    for number, panel in enumerate(panels):
        parts += _panel([curve for curve in panel if curve.points], number * HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Sequence[Curve], top: int) -> list[str]:
    if not panel:
        return []
    last = max(step for curve in panel for step, _ in curve.points) or 1
    most = max(value for curve in panel for _, value in curve.points) or 1
    floor, wide, tall = top + HEIGHT - MARGIN, WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    parts = [f'<path d="M{MARGIN} {top + MARGIN}V{floor}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>']
    parts += [
        f'<text x="4" y="{top + MARGIN}">{most:.3g}</text><text x="{WIDTH - MARGIN}" y="{floor + 16}">{last:g}</text>'
    ]
    for number, curve in enumerate(panel):
        spots = " ".join(f"{MARGIN + wide * x / last:.1f},{floor - tall * y / most:.1f}" for x, y in curve.points)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{MARGIN + 90 * number}" y="{top + MARGIN - 10}" fill="{colour}">{curve.name}</text>')
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture to standard output; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.plot", description=__doc__)
    parser.add_argument("run", type=Path, help="a run's folder or its log.jsonl")
    path = parser.parse_args(arguments).run
    sys.stdout.write(svg(curves(path / "log.jsonl" if path.is_dir() else path)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
