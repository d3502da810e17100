"""What commands say of their progress where no terminal shows a bar, as in the log of a CI."""

from __future__ import annotations

import pytest
from rich.progress import TextColumn

from appliance.base import console
from appliance.lab.scenario.scenario_command import progress_status
from tests.support.waiting import until


class StandardError:
    """All that was written to it so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def holds(self, line: str) -> bool:
        self._text += self._capsys.readouterr().err
        return line in self._text


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> StandardError:
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.01)
    return StandardError(capsys)


def test_a_log_is_told_how_far_it_is(log: StandardError) -> None:
    with console.CommandProgress(TextColumn("{task.description}")) as bar:
        task = bar.add_task("replaying \\[gate].mp4", total=200)
        bar.update(task, completed=50)
        until(lambda: log.holds("vedette: replaying [gate].mp4: 25 %\n"), 5)
        bar.update(task, completed=200)
        until(lambda: log.holds("vedette: replaying [gate].mp4: 100 %\n"), 5)


def test_what_has_no_length_is_named_again_and_again(log: StandardError) -> None:
    with progress_status("2/3 yard", quiet=False):
        until(lambda: log.holds("vedette: 2/3 yard\nvedette: 2/3 yard\n"), 5)


def test_who_wants_json_is_told_nothing(log: StandardError) -> None:
    with console.CommandProgress(quiet=True) as quiet, console.CommandProgress() as bar:
        quiet.add_task("quiet", total=None)
        bar.add_task("loud", total=None)
        until(lambda: log.holds("loud\nvedette: loud\n"), 5)
    assert not log.holds("quiet")
