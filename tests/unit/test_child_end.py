"""A child process is given time to end by itself, and killed if it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from appliance.base.child_processes import end_child

OBEYS, IGNORES = "input()", "import signal; signal.pause()"


@pytest.mark.parametrize(("program", "asked_s", "code"), [(OBEYS, 60.0, 1), (IGNORES, 0.0, -9)])
def test_a_child_ends_by_itself_or_is_killed(program: str, asked_s: float, code: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert child.stdin is not None
    child.stdin.close()
    end_child(child, asked_s=asked_s)
    assert child.returncode == code


def test_a_child_that_does_not_even_die_is_left_in_the_end() -> None:
    class Stuck(subprocess.Popen[bytes]):
        killed = False

        def kill(self) -> None:
            self.killed = True

    child = Stuck([sys.executable, "-c", IGNORES])
    try:
        end_child(child, killed_s=0.01)
        assert child.killed
        assert child.returncode is None
    finally:
        subprocess.Popen.kill(child)
        child.wait(60)
