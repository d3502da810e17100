"""The command table: what it lists, and that help waits for nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from appliance.cli import COMMANDS, main


def test_lists_every_command_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([*command.name.split(), "--help"])
        assert ended.value.code == 0
        assert command.text.split("\n", maxsplit=1)[0] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = " ".join(capsys.readouterr().out.split())
    for command in COMMANDS:
        if " " not in command.name:
            assert f"{command.name} {command.summary}" in listed


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["scenario", "run", "--help"]])
def test_help_loads_neither_the_lab_nor_a_video_library(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom appliance.cli import main\n"
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
