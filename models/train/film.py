"""Reads frames from films for data sets; no other module of training opens a container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.media.frames import quarter_turns, upright_bgr, upright_size
from models.train.index import IndexFault

Size = tuple[int, int]


def frames(
    path: Path, every: int, *, scaled: Callable[[int, int], Size] | None = None
) -> Iterator[tuple[int, NDArray[np.uint8], Size]]:
    """Yield (0-based number, BGR picture, width and height in the film) of every `every`th frame, upright as shown.

    `scaled` turns a frame's width and height into those in which it is wanted, for the decoder to scale it.

    A film that breaks off gives what came before the damage. Raise IndexFault if it does not open at all.
    """
    given = False
    try:
        with av.open(str(path)) as container:
            for index, frame in enumerate(container.decode(video=0)):
                if index % every:
                    continue
                size, turns = upright_size(frame), quarter_turns(frame)
                width, height = scaled(*size) if scaled else size
                across, down = (height, width) if turns % 2 else (width, height)
                given = True
                yield index, upright_bgr(frame.reformat(width=across, height=down, format="bgr24"), frame), size
    except (av.FFmpegError, OSError, IndexError) as error:
        if not given:
            raise IndexFault(f"{path}: no frame can be decoded: {error}") from None
