"""The `vedette` command: check a site file, run the appliance, replay footage, show the demo.

Exit codes: 0 done, 1 something is wrong with the footage or a camera, 2 wrong use or configuration. `python -m
appliance` is the same. `main` loads the table of commands, so that Ctrl-C is an exit code from the beginning.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it; whatever this module imports is loaded before Ctrl-C is an exit code
if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.cli.command_table import Command

_ORDER = (
    "check", "run", "replay", "scenario", "tune", "evaluate", "bench", "cassette", "calibrate", "export", "egress",
    "notify", "models", "advise", "candidate", "users", "diagnostics", "backup", "restore", "cameras", "judge", "demo",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. arguments: None: those of this process."""
    try:
        from appliance.base.child_processes import end_with_parent
        from appliance.base.command_exit import run_to_end

        known = commands()  # loads them, before anything else is done
        if arguments is None:
            end_with_parent()
        words = list(sys.argv[1:] if arguments is None else arguments)
        if words[:2] == ["replay", "diff"]:  # a clip of that name is written ./diff
            words[:2] = ["replay-diff"]
        before = os.umask(0o077)  # recordings, and what is made of them, show people: nobody else's on this machine
        try:
            return run_to_end(lambda: _run(words, known))
        finally:
            os.umask(before)
    except KeyboardInterrupt:
        return 130


def commands() -> list[Command]:
    """Return the rows of all tables, as `vedette --help` lists them."""
    from appliance.cli.appliance_options import APPLIANCE
    from appliance.cli.lab_options import LAB
    from appliance.cli.models_options import MODELS
    from appliance.cli.replay_options import REPLAY

    rows = [command for table in (APPLIANCE, MODELS, LAB, REPLAY) for command in table.rows]
    return sorted(rows, key=lambda command: _ORDER.index(command.name.split()[0]))


def _run(words: list[str], known: list[Command]) -> int:
    import logging

    from appliance.base.command_exit import os_error_text, report
    from appliance.base.errors import ConfigError, UsageError, VedetteError
    from appliance.base.telemetry import configure_logging
    from appliance.cli.command_table import build_parser

    # The command that is named, with its verbs; all of them where none is, as for `--help`: they take 14 ms.
    named = [each for each in known if words and words[0] in (each.name.split()[0], each.name.replace(" ", "-"))]
    options = build_parser(named or known).parse_args(words)
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
        # Not __name__: what `python -m` calls this module is no part of Vedette's log.
        logging.getLogger("appliance.cli").debug("where it was refused", exc_info=True)
        return report([os_error_text(error)], code=1, as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
