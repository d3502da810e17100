"""The `vedette` command: check a site file, run the appliance, replay footage, show the demo.

Exit codes: 0 done, 1 something is wrong with the footage or a camera, 2 wrong use or configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from appliance.cli import parser
from appliance.errors import ConfigError, SourceError, UsageError, VedetteError
from appliance.lab import lab_arguments as replay_arguments
from appliance.telemetry import configure_logging


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if replay_arguments.is_replay_diff(typed):
        typed[:2] = ["replay-diff"]
    options = parser.build().parse_args(typed)
    configure_logging(level="DEBUG" if options.verbose else "INFO", as_json=options.log_json)
    try:
        code: int = options.command(options)
        return code
    except ConfigError as error:
        return _wrong_file(error, as_json=getattr(options, "json", False))
    except UsageError as error:
        return _say(str(error), 2)
    except (SourceError, VedetteError) as error:
        return _say(str(error), 1)
    except BrokenPipeError:  # `vedette … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _wrong_file(error: ConfigError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"ok": False, "file": error.source, "problems": error.problems}))
        return 2
    print(f"{error.source}: {len(error.problems)} problem{'s' if len(error.problems) != 1 else ''}", file=sys.stderr)
    for problem in error.problems:
        print(f"  {problem}", file=sys.stderr)
    return 2


def _say(sentence: str, code: int) -> int:
    print(f"vedette: {sentence}", file=sys.stderr)
    return code
