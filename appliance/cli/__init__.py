"""The `vedette` command: check a site file, run the appliance, replay footage, show the demo.

Exit codes: 0 done, 1 something is wrong with the footage or a camera, 2 wrong use or configuration.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from appliance.base.command_exit import os_error_text, report, run_to_end
from appliance.base.errors import ConfigError, UsageError, VedetteError
from appliance.base.telemetry import configure_logging
from appliance.cli.appliance_options import APPLIANCE
from appliance.cli.command_table import build_parser
from appliance.cli.lab_options import LAB
from appliance.cli.models_options import MODELS
from appliance.cli.replay_options import REPLAY

logger = logging.getLogger(__name__)

# As `vedette --help` lists them.
_ORDER = (
    "check", "run", "replay", "scenario", "tune", "evaluate", "bench", "cassette", "calibrate", "export", "egress",
    "notify", "models", "advise", "candidate", "users", "diagnostics", "backup", "restore", "cameras", "judge", "demo",
)  # fmt: skip
COMMANDS = sorted(
    (command for table in (APPLIANCE, MODELS, LAB, REPLAY) for command in table.rows),
    key=lambda command: _ORDER.index(command.name.split()[0]),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:2] == ["replay", "diff"]:  # a clip of that name is written ./diff
        words[:2] = ["replay-diff"]
    before = os.umask(0o077)  # recordings, and what is made of them, show people: nobody else's on this machine
    try:
        return run_to_end(lambda: _run(words))
    finally:
        os.umask(before)


def _run(words: list[str]) -> int:
    # The command that is named, with its verbs; all of them where none is, as for `--help`: they take 14 ms.
    named = [each for each in COMMANDS if words and words[0] in (each.name.split()[0], each.name.replace(" ", "-"))]
    options = build_parser(named or COMMANDS).parse_args(words)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    as_json = getattr(options, "as_json", False)
    try:
        code: int = options.command(options)
        return code
    except ConfigError as error:
        return report(error.problems, code=2, file=error.source, as_json=as_json)
    except VedetteError as error:
        return report([str(error)], code=2 if isinstance(error, UsageError) else 1, as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:  # a file or folder that somebody named, and no command had a better word for
        logger.debug("where it was refused", exc_info=True)
        return report([os_error_text(error)], code=1, as_json=as_json)
