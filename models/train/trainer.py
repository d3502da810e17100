"""Runs the training: takes batches, makes steps, logs figures, keeps checkpoints."""

from __future__ import annotations

import argparse
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from models.train import augment, checkpoint, dataset
from models.train.checkpoint import Average, Progress, RunLog, judge
from models.train.dataset import Entry, IndexFault
from models.train.distillation import Imitation, YoloxTeacher
from models.train.export import load, transfer, weights
from models.train.loader import Batch, Draws, batches, gauging_pictures, plan_of, weights_of
from models.train.loss import Lesson, Loss, loss
from models.train.network import DESIGNS, Network, cells

log = logging.getLogger(__name__)
GRADIENT_MAX = 10.0
CPU_FLAGS = ("avx512_bf16", "amx_bf16")  # of CPUs that multiply in bfloat16
# Settings that may differ when a run goes on. Most do not change what is learnt; `index` and `weight` bring other
# pictures, and `steps` makes a run longer: with --grow-steps and before its rate falls, it is then the longer run.
FREE = frozenset(
    {
        "index",
        "weight",
        "out",
        "cache",
        "workers",
        "device",
        "threads",
        "minutes",
        "init",
        "nice",
        "steps",
        "judge_every",
        "save_every",
        "log_every",
    }
)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a run.

    `images_s` is pictures a second of wall time. `cpu_ms` is the CPU time a picture of the training process alone,
    which other work on the machine changes little; the loader's processes are not in it.
    """

    images_s: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Moment:
    """Wall and CPU time in seconds at one moment."""

    wall: float
    cpu: float

    @staticmethod
    def now() -> Moment:
        """Return this moment."""
        return Moment(time.monotonic(), time.process_time())

    def speed(self, images: int) -> Speed:
        """Return the speed of `images` pictures since then."""
        now = Moment.now()
        return Speed(images / max(now.wall - self.wall, 1e-9), (now.cpu - self.cpu) * 1000 / max(images, 1))


class Trainer:
    """Owns network, average, optimizer and the run's folder; one thread, and the loader's processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Read everything, decode what is not decoded yet, take up the last checkpoint. Raise IndexFault."""
        self._options = options
        self._device = _device(options.device)
        torch.manual_seed(options.seed)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        self._entries, root = _entries(options)
        path = options.cache or root / "pictures.bin"
        self._cache = dataset.decoded(root, self._entries, path)
        self._plan = plan_of(options)
        self._draws = Draws(self._cache, self._entries, weights_of(options, self._entries), self._plan)
        some = partial(gauging_pictures, self._draws, self._entries, options.size)
        self._network = _network(options, some).to(self._device)
        self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network.freeze(options.freeze)
        self._average = Average(self._network, options.average or 1 - 10 / max(20, options.steps))
        self._teacher = _teacher(options.teacher, self._device) if options.teacher else None
        self._imitation = self._imitating()
        parameters = groups(self._network, options.decay)
        if self._imitation:
            parameters += groups(self._imitation, options.decay)
        self._reduced = reduced(options.precision, self._device)
        self._optimizer = torch.optim.AdamW(parameters, lr=options.rate, fused=True)
        self._stop = False
        self._lesson: Loss | None = None  # the last one that the teacher was asked for

    def run(self) -> bool:
        """Train; whether all steps are done (else the same command goes on)."""
        options, out = self._options, self._options.out
        out.mkdir(parents=True, exist_ok=True)
        progress = self._resume()
        begun, since, images = time.monotonic(), Moment.now(), 0
        journal = RunLog(out / "log.jsonl", progress.step)
        journal.write(
            "start", step=progress.step, settings=self._settings(), parameters=self._network.parameters_count()
        )
        augment.warn_without_h264()
        step, best = progress.step, progress.best
        with self._signals():
            pin = self._device.type == "cuda"
            source = batches(self._draws, self._plan, step, options.workers, pin=pin, nice=options.nice)
            for batch, pictures, lesson in self._taught(source):
                parts = self._learn(batch, pictures, lesson)
                step, images = batch.step + 1, images + options.batch
                if step % options.log_every == 0:
                    self._note(journal, step, parts, since.speed(images))
                    since, images = Moment.now(), 0
                if step % options.judge_every == 0 or step == options.steps:
                    best = self._judge(journal, step, best)
                    since, images = Moment.now(), 0
                over = self._stop or bool(options.minutes and time.monotonic() - begun > options.minutes * 60)
                if step % options.save_every == 0 or step == options.steps or over:
                    _must_be_finite(parts, step)
                    self._save(step, best)
                if over:
                    break
        done: bool = step >= options.steps
        log.info("%s at step %d of %d", "done" if done else "stopped, run again to go on", step, options.steps)
        journal.close()
        return done

    def _imitating(self) -> Imitation | None:
        """Return the comparison of the pupil's views with the teacher's, or None if they are not to be compared."""
        if not self._teacher or not self._options.imitate:
            return None
        picture = torch.zeros(1, 3, 64, 64, device=self._device)
        with torch.no_grad():
            mine = self._average.network.watched(picture)[1]
        imitation = Imitation(mine, self._teacher(picture).views)
        if self._options.init and self._options.init.suffix != ".onnx":
            kept = torch.load(self._options.init, map_location="cpu", weights_only=True).get("imitation")
            if kept:
                imitation.load_state_dict(kept)
        return imitation.to(self._device)

    def _taught(self, source: Iterator[Batch]) -> Iterator[tuple[Batch, Tensor, Lesson | None]]:
        """Yield each batch, its pictures RGB 0..1 on the device and the teacher's lesson if it is due.

        On a CPU the teacher looks at the next batch in a thread of its own while the network learns from this one.
        """
        ahead = 1 if self._device.type == "cpu" and self._teacher else 0
        waiting: deque[tuple[Batch, Tensor, Future[Lesson] | Lesson | None]] = deque()
        with ThreadPoolExecutor(1, "teacher", torch.set_num_threads, (self._options.threads or 1,)) as thread:
            for batch in source:
                there = batch.pictures.to(self._device, non_blocking=True, memory_format=torch.channels_last)
                given = there.float() / 255
                lesson: Future[Lesson] | Lesson | None = None
                if self._teacher and batch.step % self._options.teacher_every == 0:
                    lesson = thread.submit(self._teacher, given) if ahead else self._teacher(given)
                waiting.append((batch, given, lesson))
                if len(waiting) > ahead:
                    yield _answered(waiting.popleft())
            while waiting:
                yield _answered(waiting.popleft())

    def _learn(self, batch: Batch, pictures: Tensor, lesson: Lesson | None) -> Loss:
        """Take one optimiser step."""
        options, network = self._options, self._network.train()
        network.freeze(options.freeze)
        for group in self._optimizer.param_groups:
            group["lr"] = rate(batch.step, options.steps, options.rate, options.warmup, options.fall)
        truth = batch.truth.to(self._device)
        side = pictures.shape[-1]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._reduced):
            answer, views = network.watched(pictures)
            unlike = self._imitation(views, lesson) if self._imitation and lesson else answer.new_zeros(())
        found = loss(answer, cells(side, side).to(self._device), truth, lesson, options.teacher_gain)
        found = replace(found, total=found.total + options.imitate * unlike, unlike=unlike)
        self._lesson = found if lesson else self._lesson
        self._optimizer.zero_grad(set_to_none=True)
        found.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_MAX)
        self._optimizer.step()
        self._average.update(network, batch.step)
        return found

    def _note(self, journal: RunLog, step: int, parts: Loss, speed: Speed) -> None:
        _must_be_finite(parts, step)
        numbers = parts.parts()
        if self._lesson is not None:
            numbers |= {name: self._lesson.parts()[name] for name in ("teacher", "unlike")}
        epoch = step * self._options.batch / self._draws.epoch_length()
        lr = self._optimizer.param_groups[0]["lr"]
        measured = {"images_s": round(speed.images_s, 1), "cpu_ms": round(speed.cpu_ms, 1)}
        journal.write("step", step=step, epoch=round(epoch, 3), rate=lr, **measured, **numbers)
        log.info("step %6d  epoch %6.2f  loss %7.3f  (%.0f pictures/s)", step, epoch, numbers["total"], speed.images_s)

    def _judge(self, journal: RunLog, step: int, best: float) -> float:
        """Look at the held-back pictures with the average; keep it if it does best."""
        side = "train" if self._options.limit else "val"
        places = [number for number, entry in enumerate(self._entries) if entry.split == side]
        verdict = judge(self._average.network, self._cache, self._entries, places, self._options.size)
        journal.write("judge", step=step, ap50=verdict.mean, person=verdict.person, classes=verdict.classes)
        log.info("step %6d  AP50 %.3f, person %.3f on %d pictures", step, verdict.mean, verdict.person, len(places))
        if verdict.mean >= best:
            checkpoint.save_best(self._options.out, self._average, Progress(step, verdict.mean, self._settings()))
        return max(best, verdict.mean)

    def _resume(self) -> Progress:
        kept = checkpoint.restore(
            self._options.out, self._network, self._average, self._optimizer, self._device, self._imitation,
            settings=self._settings(), free=FREE,
        )  # fmt: skip
        if kept is None:
            return Progress(0, 0.0, self._settings())
        log.info("going on at step %d", kept.step)
        return kept

    def _save(self, step: int, best: float) -> None:
        progress = Progress(step, best, self._settings())
        checkpoint.save(self._options.out, self._network, self._average, self._optimizer, progress, self._imitation)

    def _settings(self) -> dict[str, Any]:
        """Return the options as plain values, for log and checkpoint."""
        given = vars(self._options)
        return {name: value if isinstance(value, (int, float, list)) else str(value) for name, value in given.items()}

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end the run after the step in hand, with a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stop = True

        before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _must_be_finite(found: Loss, step: int) -> None:
    """Raise IndexFault: such weights would replace the last checkpoint that the run can go on from."""
    if not math.isfinite(total := float(found.total.detach())):
        raise IndexFault(f"the loss is {total} at step {step}: lower --rate, and look at the labels")


def _answered(
    taught: tuple[Batch, Tensor, Future[Lesson] | Lesson | None],
) -> tuple[Batch, Tensor, Lesson | None]:
    """Wait for the teacher if its lesson is still being made."""
    batch, pictures, lesson = taught
    return batch, pictures, lesson.result() if isinstance(lesson, Future) else lesson


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise IndexFault("--device cuda: PyTorch sees no GPU here")
    return torch.device(name)


def _teacher(path: Path, device: torch.device) -> Callable[[Tensor], Lesson]:
    if device.type == "cpu":
        # Not on a GPU machine, which need not have ONNX Runtime.
        from models.train.distillation import CpuTeacher

        return CpuTeacher(path, torch.get_num_threads())
    return YoloxTeacher(path).to(device).eval()


def _entries(options: argparse.Namespace) -> tuple[list[Entry], Path]:
    path: Path = options.index
    root = path if path.is_dir() else path.parent
    entries = dataset.read(path)
    if options.limit:
        entries = list(dataset.of(entries, "train"))[: options.limit]
    return entries, root


def _network(options: argparse.Namespace, pictures: Callable[[], Tensor]) -> Network:
    """Return the network to start with; `pictures` are asked for where its norms have to be measured."""
    if options.design not in DESIGNS:
        raise IndexFault(f"--design {options.design}: one of {', '.join(DESIGNS)}")
    if not 0 <= options.freeze <= len(DESIGNS[options.design].widths) + 1:
        raise IndexFault(f"--freeze {options.freeze}: 0 to {len(DESIGNS[options.design].widths) + 1} parts")
    if options.init and options.init.suffix == ".onnx":
        network = Network(DESIGNS[options.design])
        taken = transfer(network, weights(options.init), pictures())
        log.info("%d convolutions taken over, %d start anew", len(taken.kept), len(taken.fresh))
        return network
    if options.init:
        network = load(options.init)
        if network.design.name != options.design:
            raise IndexFault(f"--init {options.init} is of the design {network.design.name}, not {options.design}")
        return network
    return Network(DESIGNS[options.design])


def rate(step: int, steps: int, peak: float, warmup: int, fall: float = 1.0, floor: float = 0.02) -> float:
    """Return the learning rate at `step`.

    It is linear to `peak` over `warmup` steps, then flat, then over the last share `fall` of the steps half a cosine
    down to `floor` of it. A run that stays flat for long can be made longer (arXiv:2405.18392).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    begin = max(warmup, round(steps * (1 - fall)))
    done = (step - begin) / max(1, steps - begin)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, max(0.0, done)))) / 2)


def groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weights decay; norms and biases do not."""
    many = [each for each in network.parameters() if each.ndim > 1]
    one = [each for each in network.parameters() if each.ndim <= 1]
    return [{"params": many, "weight_decay": decay}, {"params": one, "weight_decay": 0.0}]


def reduced(wanted: str, device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether to train in bfloat16.

    With `auto` this is so on every GPU, and on CPUs that multiply it in hardware. Elsewhere a CPU converts it to
    float32 and back, which is slower than float32 itself.
    """
    if wanted != "auto":
        return wanted == "bf16"
    if device.type != "cpu":
        return True
    try:
        words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False
    return any(flag in words for flag in CPU_FLAGS)
