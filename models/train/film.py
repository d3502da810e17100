"""Reads frames from films for data sets; no other module of training opens a container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from models.train.index import IndexFault

Size = tuple[int, int]


def frames(
    path: Path, every: int, *, scaled: Callable[[int, int], Size] | None = None
) -> Iterator[tuple[int, NDArray[np.uint8], Size]]:
    """Yield (0-based number, BGR picture, width and height in the film) of every `every`th frame.

    `scaled` turns a frame's width and height into those in which it is wanted, for the decoder to scale it.

    A film that breaks off gives what came before the damage. Raise IndexFault if it does not open at all.
    """
    given = False
    try:
        with av.open(str(path)) as container:
            for index, frame in enumerate(container.decode(video=0)):
                if index % every:
                    continue
                size = (frame.width, frame.height)
                width, height = scaled(*size) if scaled else size
                given = True
                yield index, np.asarray(frame.to_ndarray(format="bgr24", width=width, height=height), np.uint8), size
    except (av.FFmpegError, OSError, IndexError) as error:
        if not given:
            raise IndexFault(f"{path}: no frame can be decoded: {error}") from None
