"""A site that tells people, in a process of its own: raises alert a1 and goes on until it is killed.

python -m tests.servers.notifying_process FOLDER URL HOW

HOW: `asked` of the cloud; `written`: kill -9 by itself once the alert is; or nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from appliance.base.clock import ManualClock
from tests.support.notification_site import NotifyingSite, hook
from tests.support.sample_rows import T0


def main() -> None:
    folder, url, how = sys.argv[1:]
    site = NotifyingSite(Path(folder), ManualClock(T0), phone=hook(url))
    if how != "written":
        site.start()
    site.alert(asked=how == "asked")
    if how == "written":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()


if __name__ == "__main__":
    main()
