"""The `vedette` command: check a site file, run the appliance, replay footage, show the demo.

Exit codes: 0 done, 1 something is wrong with the footage or a camera, 2 wrong use or configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from appliance.cli.appliance_commands import APPLIANCE
from appliance.cli.command_table import build_parser
from appliance.cli.detector_commands import DETECTOR
from appliance.cli.replay_commands import REPLAY
from appliance.cli.scenario_commands import SCENARIO
from appliance.errors import ConfigError, UsageError, VedetteError
from appliance.telemetry import configure_logging

# As `vedette --help` lists them.
_ORDER = (
    "check", "run", "replay", "scenario", "tune", "evaluate", "bench", "cassette", "calibrate", "export", "egress",
    "notify", "models", "users", "diagnostics", "backup", "restore", "cameras", "demo",
)  # fmt: skip
_ROWS = [row for table in (APPLIANCE, REPLAY, SCENARIO, DETECTOR) for row in table.rows]
COMMANDS = sorted(_ROWS, key=lambda command: _ORDER.index(command.name.split()[0]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:2] == ["replay", "diff"]:  # a clip of that name is written ./diff
        words[:2] = ["replay-diff"]
    options = build_parser(COMMANDS).parse_args(words)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    try:
        code: int = options.command(options)
        return code
    except ConfigError as error:
        return _report_config_error(error, as_json=getattr(options, "json", False))
    except VedetteError as error:
        print(f"vedette: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # `vedette … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _report_config_error(error: ConfigError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"ok": False, "file": error.source, "problems": error.problems}))
        return 2
    print(f"{error.source}: {len(error.problems)} problem{'s' if len(error.problems) != 1 else ''}", file=sys.stderr)
    for problem in error.problems:
        print(f"  {problem}", file=sys.stderr)
    return 2
