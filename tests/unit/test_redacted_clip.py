"""A clip that may be handed over, on rendered footage with truth: what is outside the object's box is mosaic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.errors import EvidenceError
from appliance.media.recorded import ClipRedaction, ExaminedMoment, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader, SandboxedReader
from appliance.store.paths import EXPORTS, SEGMENTS
from appliance.types import Box

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
WIDTH, HEIGHT, FPS = 960, 540, 15
T0 = 1_700_000_000.0
COLUMNS, ROWS = 7, 4  # of the mosaic of a 960x540 frame: squares of 135 pixels
CODING_MAX = 12  # levels of 255 by which H.264 at this quality moves a flat pixel


def truth(name: str) -> dict[int, dict[int, Box]]:
    """Return the boxes of frame (from 0) and object, as shares of the frame."""
    found: dict[int, dict[int, Box]] = {}
    for line in (CLIPS / f"{name}.gt.txt").read_text().splitlines():
        frame, key, x, y, w, h = map(int, line.split(",")[:6])
        box = (x / WIDTH, y / HEIGHT, (x + w) / WIDTH, (y + h) / HEIGHT)
        found.setdefault(frame - 1, {})[key] = box
    return found


def ordered(name: str, own: int, every: int, *, hide: str = "surroundings") -> ClipRedaction:
    """Return the redaction that leaves object `own` visible, from every so-manieth frame of the truth."""
    boxes = truth(name)
    moments = tuple(
        ExaminedMoment(
            T0 + n / FPS,
            tuple((str(key), box) for key, box in boxes.get(n, {}).items() if key == own),
            tuple(box for key, box in boxes.get(n, {}).items() if key not in (own, 5)),  # 5 is the van
        )
        for n in range(0, 930, every)
    )
    return ClipRedaction(hide, (), moments)  # type: ignore[arg-type]


def made(
    folder: Path,
    name: str,
    span: tuple[float, float],
    redaction: ClipRedaction,
    reader: RecordingReader = READ_DIRECTLY,
) -> Path:
    source = folder / SEGMENTS / f"{name}.mp4"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes((CLIPS / f"{name}.mp4").read_bytes())
    path = folder / EXPORTS / "clip.mp4"
    segment = RecordedSegment(source, T0, T0 + 62)
    clip = reader.redacted_clip([segment], T0 + span[0], T0 + span[1], path, redaction)
    assert (clip.size, clip.note, clip.sound) == ((WIDTH, HEIGHT), "", False)
    assert clip.frames == round((span[1] - span[0]) * FPS) + 1
    return path


def lumas(path: Path, first: int = 0, last: int | None = None) -> Iterator[tuple[float, NDArray[np.int16]]]:
    """Yield the time in the clip and the brightness (H, W) of each frame, from frame `first` to `last`."""
    with av.open(str(path)) as opened:
        assert not opened.streams.audio
        for frame in itertools.islice(opened.decode(video=0), first, None if last is None else last + 1):
            yield float(frame.pts * frame.time_base), frame.to_ndarray(format="gray").astype(np.int16)


def outside(box: Box | None) -> NDArray[np.bool_]:
    mask = np.ones((HEIGHT, WIDTH), bool)
    if box is not None:
        x1, y1, x2, y2 = box
        top, bottom = math.floor(y1 * HEIGHT + 1e-6), math.ceil(y2 * HEIGHT - 1e-6)
        mask[top:bottom, math.floor(x1 * WIDTH + 1e-6) : math.ceil(x2 * WIDTH - 1e-6)] = False
    return mask


def not_mosaic(luma: NDArray[np.int16], hidden: NDArray[np.bool_]) -> int:
    """Count the hidden pixels that differ by more than coding does from their square and from those beside it."""
    columns, rows = np.arange(WIDTH) * COLUMNS // WIDTH, np.arange(HEIGHT) * ROWS // HEIGHT
    flat = luma.copy()
    for column in range(COLUMNS):
        for row in range(ROWS):
            where = np.ix_(rows == row, columns == column)
            if hidden[where].any():
                flat[where] = np.median(luma[where][hidden[where]])
    block = np.ones((17, 17), np.uint8)  # a transform's block of 8 pixels mixes what lies on both sides of an edge
    low, high = cv2.erode(flat, block), cv2.dilate(flat, block)
    return int((hidden & ((luma < low - CODING_MAX) | (luma > high + CODING_MAX))).sum())


def between(boxes: dict[int, dict[int, Box]], own: int, n: float, every: int) -> Box | None:
    """Return the object's box at frame `n`, on the line between the examined frames around it."""
    low = math.floor(n / every + 1e-6) * every
    high = low if abs(low - n) < 1e-3 else low + every
    first, last = boxes.get(low, {}).get(own), boxes.get(high, {}).get(own)
    if first is None or last is None:
        return None
    share = (n - low) / every
    x1, y1, x2, y2 = (a + (b - a) * share for a, b in zip(first, last, strict=True))
    return x1, y1, x2, y2


@pytest.mark.parametrize(("name", "own", "span", "every"), [
    ("yard", 1, (12.0, 16.0), 1), ("yard", 4, (48.0, 52.0), 3), ("gate", 3, (48.0, 52.0), 3),
])  # fmt: skip
def test_no_pixel_outside_the_objects_box_is_anything_but_mosaic(
    tmp_path: Path, name: str, own: int, span: tuple[float, float], every: int
) -> None:
    path = made(tmp_path, name, span, ordered(name, own, every))
    boxes, shown, bare = truth(name), 0, 0
    for t, luma in lumas(path):
        box = between(boxes, own, (span[0] + t) * FPS, every)
        bare += not_mosaic(luma, outside(box))
        shown += 0 if box is None else not_mosaic(luma, ~outside(box))
    assert bare == 0
    assert shown > 10_000, "nothing of the object is to be seen"


def test_only_the_others_are_hidden_on_request_and_all_where_nobody_looked(tmp_path: Path) -> None:
    boxes, span = truth("yard"), (50.0, 53.0)
    redaction = ordered("yard", 4, 3, hide="people")
    unseen = ClipRedaction("people", (), tuple(each for each in redaction.moments if each.t < T0 + 51))
    first, last_frame = (round(t * FPS) for t in span)
    original = dict(enumerate(lumas(CLIPS / "yard.mp4", first, last_frame), start=first))
    for n, (_, luma) in enumerate(lumas(made(tmp_path, "yard", span, redaction))):
        frame = first + n
        x1, y1, x2, y2 = boxes[frame][3]
        middle = np.s_[int((y1 + 0.03) * HEIGHT) : int((y2 - 0.03) * HEIGHT), int(x1 * WIDTH) + 9 : int(x2 * WIDTH) - 9]
        assert luma[:40].std() > 5, "the rest of the picture is to be seen"
        mine = boxes[frame][4]
        if mine[2] < x1 or mine[0] > x2:  # nobody is in front of the other
            assert np.abs(luma[middle] - original[frame][1][middle]).mean() > 5
            assert np.unique(luma[middle] // 16).size <= 8, "a square has one brightness"
    *_, (_, last) = lumas(made(tmp_path, "yard", span, unseen))
    assert not_mosaic(last, outside(None)) == 0


def test_the_sandbox_makes_the_same_clip_and_says_what_cannot_be_made(tmp_path: Path) -> None:
    reader = SandboxedReader(tmp_path)
    try:
        path = made(tmp_path, "yard", (12.0, 13.0), ordered("yard", 1, 3), reader)
        assert len(list(lumas(path))) == 16
        source = RecordedSegment(tmp_path / SEGMENTS / "yard.mp4", T0, T0 + 62)
        with pytest.raises(EvidenceError, match="holds no frame"):
            reader.redacted_clip([source], T0 + 90, T0 + 95, path, ClipRedaction("surroundings", (), ()))
        assert [each.name for each in path.parent.iterdir()] == ["clip.mp4"], "nothing unfinished is left"
    finally:
        reader.close()
