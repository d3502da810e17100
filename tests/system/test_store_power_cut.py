"""A core that is killed at any moment: what it had flagged is there, whole, and nothing is there by half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from tests.support.sample_rows import T0

ROOT = Path(__file__).parents[2]
BY_TIME = 4
BY_STATEMENT = 24  # one round of the core's work is some twenty statements: a kill before each of them

# Of each line on standard input it makes a process that writes as the core does, and says on standard output what it
# was promised is written. Given a number, that kills itself before its so-manieth SQL statement.
CORES = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.sample_rows import T0, ended, opened, sample_escalation, sample_frame, sample_verdict
from appliance.base.clock import ManualClock
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.meter import Meter, Metric, MetricName

def say(what, n):
    os.write(1, f"{what} {n}\\n".encode())  # in one piece: a promise is not to be torn

def count_statements(frame, what, called):
    global left
    if what == "c_call" and called.__name__ in ("execute", "executemany"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

for line in sys.stdin:
    path, first, left = line.split()
    first, left, core = int(first), int(left), os.fork()
    if core == 0:
        break
    say("core", core)
    say("ended", os.waitstatus_to_exitcode(os.waitpid(core, 0)[1]))
else:
    sys.exit()
db = Database(Path(path), ManualClock(T0))
alerts, boxes, meter = AlertStore(db), BoxStore(db), Meter(db, "run")
if left:
    sys.setprofile(count_statements)
for n in range(first, first + 100_000):
    name = f"a{n:06}"
    boxes.append("yard", "r1", [sample_frame(T0 + n + i / 10, seq=10 * n + i) for i in range(10)])
    alerts.apply(opened(name, t=T0 + n), escalation=sample_escalation(f"q{n:06}", of=name), priority="high")
    say("opened", n)
    if n % 3 == 0:
        alerts.apply_verdict(sample_verdict(f"q{n:06}", of=name), T0 + n)
        say("settled", n)
    alerts.apply(ended(name, t=T0 + n, t_end=T0 + n + 3), escalation=None, priority="high")
    meter.add("yard", Metric(MetricName.PACKETS), 1)
    meter.flush("2026-01-01")
"""


@pytest.fixture(scope="module")
def cores() -> Iterator[subprocess.Popen[str]]:
    """Start what makes the cores: one that started by itself would take ten times as long to start as to write."""
    command = [sys.executable, "-c", CORES, str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as made:
        yield made
        assert made.stdin is not None
        made.stdin.close()
        made.wait(120)


def promises(
    cores: subprocess.Popen[str], path: Path, life: int, statement: int = 0, kill_after: int = 0, delay_s: float = 0.0
) -> set[str]:
    """Let a core write until it is killed: before its `statement`th, or `delay_s` after its `kill_after`th promise."""
    assert cores.stdin is not None
    assert cores.stdout is not None
    cores.stdin.write(f"{path} {life * 100_000} {statement}\n")
    cores.stdin.flush()
    core, said = int(cores.stdout.readline().removeprefix("core ")), set[str]()
    for line in cores.stdout:
        if line.startswith("ended "):
            assert line == f"ended {-signal.SIGKILL}\n"
            break
        said.add(line.strip())
        if len(said) == kill_after:
            threading.Timer(delay_s, os.kill, [core, signal.SIGKILL]).start()
    return said


def check(path: Path, promised: set[str], lives: int) -> None:
    """Open what the killed core left behind: whole, and with all that was promised."""
    db = Database(path, ManualClock(T0))
    assert db.row("PRAGMA quick_check(1)")[0] == "ok"
    with db.read() as connection:
        alerts = {row["id"]: row for row in connection.execute("SELECT * FROM alert")}
        asked = {row["alert"]: row for row in connection.execute("SELECT * FROM escalation")}
        settled = {row["alert"] for row in connection.execute("SELECT * FROM verdict")}
        pieces = connection.execute("SELECT alert, count(*) AS n FROM evidence GROUP BY alert").fetchall()
        events = {row["alert"] for row in connection.execute("SELECT * FROM event")}
    assert {f"opened {int(name[1:])}" for name in alerts} >= {each for each in promised if each.startswith("opened")}
    assert {f"settled {int(name[1:])}" for name in settled} >= {each for each in promised if each.startswith("settled")}
    assert set(alerts) == set(asked) == events == {row["alert"] for row in pieces}
    assert {row["n"] for row in pieces} <= {3}
    for name, row in alerts.items():
        assert (row["verdict"] is not None) == (asked[name]["state"] == "settled") == (name in settled)
    revs = [row["rev"] for row in alerts.values()]
    assert len(set(revs)) == len(revs)
    assert max(revs, default=0) == db.rev()
    assert AlertStore(db).end_interrupted() <= 1
    assert db.row("SELECT count(*) FROM alert WHERE t_end IS NULL")[0] == 0
    counted = sum(total.amount for total in Meter(db, "run").totals("all"))
    assert len(alerts) - lives <= counted <= len(alerts)
    db.close()


def test_killed_before_any_statement_it_loses_nothing_flagged_and_keeps_nothing_by_half(
    cores: subprocess.Popen[str], tmp_path: Path
) -> None:
    path = tmp_path / "vedette.db"
    promised: set[str] = set()
    for life in range(BY_STATEMENT):
        promised |= promises(cores, path, life, statement=60 + life)
        check(path, promised, life + 1)
    assert len(promised) > BY_STATEMENT


def test_killed_at_any_time_likewise(cores: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "vedette.db"
    chance = random.Random(7)
    promised: set[str] = set()
    for life in range(BY_TIME):
        promised |= promises(cores, path, life, kill_after=chance.randint(3, 60), delay_s=chance.random() * 0.02)
        check(path, promised, life + 1)
