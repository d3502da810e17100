"""Attacks a real `vedette run`, a worker and a nats-server on loopback: expected are 0 errors, hangs and doors.

    python -m benchmarks.attack            # over 30,000 tries, some minutes
    python -m benchmarks.attack --quick    # some hundred

Exit 1 when something was found. The same seed makes the same tries.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.attack import http_attack, wire_attack
from benchmarks.attack.target import CAMERA_SECRET, CANARY, TOKEN, Tally, Target

ALERT_S_MAX = 90.0
BUG = re.compile(r"Traceback|a fault in the worker|stopped by a bug|met a bug|Exception in ASGI")


@dataclass(frozen=True, slots=True)
class Size:
    """How many tries of each kind; 0: not that part."""

    http: int
    idle: int
    slow: int
    verdicts: int
    escalations: int
    media: int


FULL = Size(http=24_000, idle=1300, slow=250, verdicts=3000, escalations=2500, media=600)
QUICK = Size(http=400, idle=120, slow=20, verdicts=80, escalations=80, media=30)
QUICKEST = replace(QUICK, idle=0, slow=0, media=0)  # a silent socket is closed after ten seconds


def attack(folder: Path, size: Size, seed: int, say: Callable[[str], None] = lambda text: None) -> list[Tally]:
    """Make all attacks, against processes of its own in `folder`."""
    with Target(folder) as target:
        if size.http > QUICK.http:
            _wait_for_alert(target)
        parts = [http_attack.run(target, size.http, seed)]
        say(parts[-1].line())
        parts.append(http_attack.guess(target, size.http // 40))
        say(parts[-1].line())
        _wait_for_alert(target)
        parts += wire_attack.run(target, size.verdicts, size.escalations, size.media, seed)
        for part in parts[2:]:
            say(part.line())
        parts.append(http_attack.flood(target, size.idle, size.slow))
        say(parts[-1].line())
        parts.append(_aftermath(target))
        say(parts[-1].line())
    return parts


def _wait_for_alert(target: Target) -> None:
    """Wait until there is an alert to speak of."""
    deadline = time.monotonic() + ALERT_S_MAX
    while time.monotonic() < deadline and not target.json("/api/v1/alerts").get("alerts"):
        time.sleep(0.5)


def _aftermath(target: Target) -> Tally:
    """Check that all processes live, are well, and have logged neither a bug nor a secret."""
    tally = Tally("aftermath")
    for name, alive in target.alive().items():
        tally.count("alive" if alive else "dead")
        if not alive:
            tally.door(f"{name} has died: {target.log(name)[-300:]}")
        text = target.log(name)
        for line in [line for line in text.splitlines() if BUG.search(line)][:20]:
            tally.error(f"{name}: {line}")
        for secret in (TOKEN, CAMERA_SECRET, CANARY):
            if secret in text:
                tally.door(f"{name} has logged {secret[:6]}…")
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
            tally.door(f"{name} has logged control characters")
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/alerts"):
        status, _ = target.get(path)
        tally.count(str(status) if path != "/readyz" else "asked", path)
    if (answer := target.worker_ready())[0] != 200:
        tally.door(f"the worker is not ready: {answer}")
    return tally


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="some hundred tries instead of over 30,000")
    parser.add_argument("--seed", type=int, default=14)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    began = time.monotonic()
    print(f"{'part':<22} {'tries':>7} {'5xx':>5} {'hangs':>6} {'doors':>6}  answers", flush=True)
    with tempfile.TemporaryDirectory(prefix="vedette-attack-") as folder:
        parts = attack(
            Path(folder), QUICK if options.quick else FULL, options.seed, lambda text: print(text, flush=True)
        )
    total = Tally("all", *(sum(getattr(part, name) for part in parts) for name in ("tries", "errors", "hangs")))
    total.doors = [door for part in parts for door in part.doors]
    print(f"{total.line()}{time.monotonic() - began:.0f} s, seed {options.seed}")
    for part in parts:
        for words in [*part.doors, *part.faults[:20]]:
            print(f"  {part.name}: {words}")
    return 0 if total.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
