"""`python -m appliance` is `vedette`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command that is installed as `vedette`.

    It loads the table of commands itself, so that Ctrl-C is an exit code there, too.
    """
    try:
        from appliance.base.child_processes import end_with_parent
        from appliance.cli import main

        end_with_parent()
        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
