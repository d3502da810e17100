"""Mean of the weights of two networks: python -m models.train.mean OLD.onnx NEW.onnx --share 0.4 --out MEAN.onnx.

Both are exports of one design (`models.train.export`), and the new one was trained from the old one, or from one that
the old one was trained from. Their mean often keeps what the old one knew of pictures that the new one has not seen
again (WiSE-FT, arXiv:2109.01903). It takes no training and costs nothing when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def mean(old: onnx.ModelProto, new: onnx.ModelProto, share: float) -> onnx.ModelProto:
    """Return the old network with (1 - share) of its own weights and `share` of the new one's. Raise ValueError.

    Only float32 tensors of more than one value count as weights; sizes and indices stay the old one's.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"--share {share:g}: a share is between 0 and 1")
    others = {each.name: numpy_helper.to_array(each) for each in new.graph.initializer}
    made = onnx.ModelProto()
    made.CopyFrom(old)
    for each in made.graph.initializer:
        values = numpy_helper.to_array(each)
        if values.dtype != np.float32 or values.size < 2:
            continue
        other = others.get(each.name)
        if other is None or other.shape != values.shape:
            raise ValueError(f"{each.name} is not the same in both: they are not of one design")
        # What both have in common, constants of the cells' places too, stays as it is to the bit.
        mixed = np.where(values == other, values, values * (1 - share) + other * share).astype(np.float32)
        each.CopyFrom(numpy_helper.from_array(mixed, each.name))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write the mean; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.train.mean", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="its metadata and everything but the weights are taken over")
    parser.add_argument("new", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the new one's weights (default 0.5)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        made = mean(onnx.load(str(options.old)), onnx.load(str(options.new)), options.share)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    onnx.save(made, str(options.out))
    print(f"{options.out}: {1 - options.share:g} of {options.old.name} and {options.share:g} of {options.new.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
