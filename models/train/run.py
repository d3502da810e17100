"""Train the detector: python -m models.train.run --index vedette-data/set --out vedette-data/run.

Needs PyTorch (pip install '.[train]'). One GPU or the CPU, the same command. A run that was killed goes on where its
last checkpoint stood when the same command is given again; with --minutes it stops by itself in time and says so.

Exit status: 0 all steps are done; 2 a setting or the set is wrong, with the reason in a line; 3 stopped before the last
step, by --minutes or a signal: give the same command again.

Watch it:      python -m models.train.plot vedette-data/run
Deliver it:    python -m models.train.export --checkpoint vedette-data/run/best.pt --out vedette-nano.onnx
Measure it:    python -m models.evaluate vedette-nano.onnx --index vedette-data/set
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.base.command_exit import whole_number_between
from appliance.base.errors import UsageError

HELP_FREEZE = "keep the stem and the first N - 1 stages as they start, norms too (default 0: all learn)"
HELP_PRECISION = "number format of the network's arithmetic; auto: bf16 on a GPU and on CPUs that have it in hardware"
HELP_WINDOW = "compose pictures at this side and cut windows of the batch's side out of them (default: shrink them)"
HELP_FIRST = (
    "try --recipe plain --limit 20 --steps 300 --warmup 30 --size 224 first: it must learn twenty pictures by heart"
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all of the run's settings."""
    made = argparse.ArgumentParser(
        prog="python -m models.train.run",
        description=__doc__,
        epilog=HELP_FIRST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count = made.add_argument, whole_number_between(1, 10**9, "count")
    add("--index", type=Path, required=True, help="the assembled set: its folder or its index.jsonl")
    add("--out", type=Path, required=True, help="the run's folder: last.pt, best.pt, log.jsonl")
    add("--cache", type=Path, help="file of decoded pictures (default: pictures.bin beside the index; ~0.5 MB each)")
    add("--design", default="dense", help="one of models.train.network.DESIGNS (default dense)")
    add("--size", type=int, default=416, help="input side in pixels, a multiple of 32 (default 416)")
    add("--size-from", type=int, default=0, help="begin with this smaller side and grow to --size (default: --size)")
    add("--grow-steps", type=int, default=0, help="steps until they have grown (default: three quarters of --steps)")
    add("--scales", type=int, default=3, help="also train at up to N x 32 px more and less; 0: only --size (default 3)")
    add("--window-from", type=int, default=0, help=HELP_WINDOW)
    help_steps = "optimiser steps of the whole run; fixes the schedule (default 30000)"
    add("--steps", type=count, default=30000, help=help_steps)
    add("--batch", type=count, default=64, help="pictures a step (default 64)")
    add("--rate", type=float, default=2e-3, help="peak learning rate of AdamW (default 0.002)")
    add("--decay", type=float, default=0.05, help="weight decay (default 0.05)")
    add("--warmup", type=int, default=500, help="steps of rising rate, fewer than --steps (default 500)")
    add("--fall", type=float, default=1.0, help="last share of the steps in which the rate falls (default 1: all)")
    add("--calm", type=float, default=0.12, help="last share of the run on whole, undistorted pictures (default 0.12)")
    add("--recipe", choices=("full", "plain"), default="full", help="augmentation (default full)")
    add("--teacher", type=Path, help="yolox_nano_416.onnx: learn also from its answer to every picture")
    add("--teacher-gain", type=float, default=1.0, help="weight of the teacher's lesson (default 1)")
    add("--teacher-every", type=count, default=1, help="ask the teacher in every Nth step only (default 1)")
    add(
        "--imitate",
        type=float,
        default=10.0,
        help="weight of matching the teacher's features; 0: do not (default 10)",
    )
    add("--precision", choices=("auto", "bf16", "fp32"), default="auto", help=HELP_PRECISION)
    add("--threads", type=int, default=0, help="of PyTorch on the CPU (default: one for each core)")
    add("--weight", action="append", default=[], metavar="SOURCE=N", help="show a source N times an epoch; 0 drops it")
    add("--limit", type=int, default=0, help="use only the first N training pictures, and judge by them (for a trial)")
    add("--freeze", type=int, default=0, metavar="N", help=HELP_FREEZE)
    add("--init", type=Path, help="start from the averaged weights of this last.pt or best.pt, or one of our .onnx")
    add("--average", type=float, default=0.0, help="decay of the moving average (default: over a tenth of the steps)")
    help_judge = "steps between two looks at the held-back pictures (default 1000)"
    add("--judge-every", type=count, default=1000, help=help_judge)
    add("--save-every", type=count, default=250, help="steps between two checkpoints (default 250)")
    add("--log-every", type=count, default=20, help="steps between two lines of the log (default 20)")
    add("--minutes", type=float, default=0, help="save and stop after so many minutes; run again to go on (0: never)")
    add("--workers", type=int, default=-1, help="processes that prepare pictures (default: one for each core but one)")
    add("--nice", type=int, default=0, help="added to the niceness of those processes (default 0)")
    add("--device", default="auto", help="auto, cpu or cuda (default auto)")
    add("--seed", type=int, default=0, help="of the first weights, the order and the distortions (default 0)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the steps are done, the minutes are over or a signal comes; returns the exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if options.workers < 0:
        options.workers = max(0, len(os.sched_getaffinity(0)) - 1)
    if options.warmup >= options.steps:
        cure = f"add --warmup {options.steps // 10}, or take more --steps"
        print(f"--warmup {options.warmup} never ends within --steps {options.steps}: {cure}", file=sys.stderr)
        return 2
    try:
        import torch  # noqa: F401
    except ImportError:
        print("training needs PyTorch: pip install '.[train]'", file=sys.stderr)
        return 2
    from models.train.trainer import Trainer

    try:
        return 0 if Trainer(options).run() else 3
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
