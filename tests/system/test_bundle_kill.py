"""kill -9 at random moments of install and switch: afterwards a working model is in force, and installing goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.bundle.bundle_store import BundleStore
from tests.support.model_publisher import ModelPublisher, TrustingSite

SWITCHING = """
import sys
from pathlib import Path
from tests.support.model_publisher import TrustingSite
site = TrustingSite(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for version in ("2", "3"):
        site.store.put_in_force(site.install(version), state="probation")
        site.store.settle(proven=True)
        site.store.roll_back()
        for ref in site.store.installed():
            if ref not in site.store.in_force().used():
                site.store.remove(ref)
"""


@pytest.mark.parametrize("kills", [pytest.param(8, id="few"), pytest.param(200, id="all", marks=pytest.mark.slow)])
def test_a_working_model_is_in_force_whenever_it_is_killed(kills: int, tmp_path: Path) -> None:
    publisher, site = ModelPublisher(tmp_path / "publisher"), TrustingSite(tmp_path / "site")
    for version in (1, 2, 3):
        publisher.publish(str(version), head=version, backbone=version, backbone_bytes=200_000)
    site.trust(publisher)
    site.store.put_in_force(site.install("1"))
    drawn = random.Random(26)
    seen = set()
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", SWITCHING, str(site.folder)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(drawn.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = BundleStore(site.folder)
        slot = store.in_force().of("gate")
        assert slot is not None
        store.check(slot.bundle)
        seen.add(slot.bundle.version)
        for ref in store.installed():
            store.check(ref)
    store.put_in_force(site.install("3"))
    assert len(seen) > 1 or kills < 20, "it was always killed before a switch"
