"""Declares torchvision's operators before it is imported.

Beside PyTorch's CPU build it lacks them and cannot be imported, though nobody here calls them. Loaded by whoever has
this folder in PYTHONPATH; with a PyTorch that knows CUDA nothing is done.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

OPERATORS = ("nms", "qnms")
KEPT: list[object] = []  # what it declares ends with its last reference


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Looks for torchvision once, and leaves the finding to the others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare()
        return None


def declare() -> None:
    import torch

    if torch.version.cuda is None and "cpu" in torch.__version__:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in OPERATORS:
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


if importlib.util.find_spec("torch") is not None:
    sys.meta_path.insert(0, BeforeTorchvision())
