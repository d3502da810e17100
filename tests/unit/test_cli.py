"""The command table: what it lists, and that help waits for nothing."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import get_type_hints

import pytest

from appliance.__main__ import commands, main
from appliance.cli.command_table import Command


def test_lists_every_command_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands():
        with pytest.raises(SystemExit) as ended:
            main([*command.name.split(), "--help"])
        assert ended.value.code == 0
        assert command.text.split("\n", maxsplit=1)[0] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = " ".join(capsys.readouterr().out.split())
    for command in commands():
        if " " not in command.name:
            assert f"{command.name} {command.summary}" in listed


@pytest.mark.parametrize("command", [each for each in commands() if each.run], ids=lambda command: command.name)
def test_the_function_of_a_command_gets_all_that_it_needs_from_the_options(command: Command) -> None:
    given = {each.settings.get("dest", each.flags[-1].lstrip("-").replace("-", "_")) for each in command.options}
    function = command.function()
    kinds = get_type_hints(function)
    assert kinds["return"] is int
    used = set()
    for name, parameter in inspect.signature(function).parameters.items():
        if name in given:
            used.add(name)
        elif dataclasses.is_dataclass(kinds[name]):
            used |= {each.name for each in dataclasses.fields(kinds[name])} & given
        else:
            assert parameter.default is not inspect.Parameter.empty, name
    assert used == given, "an option that nothing reads"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["scenario", "run", "--help"]])
def test_help_loads_neither_the_lab_nor_a_video_library(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom appliance.__main__ import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name.startswith('appliance.lab') or name in ('av', 'cv2', 'fastapi') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["scenario"], ["scenario", "bogus"], ["run", "--config"], ["replay", "diff"]]
)
def test_wrong_use_ends_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
