"""kill -9 at random moments of install and switch: afterwards a working model is in force, and installing goes on."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import pytest

from appliance.bundle.bundle_store import BundleStore
from tests.support.model_publisher import ModelPublisher, TrustingSite


def switch_for_ever(folder: Path) -> None:
    """Install, switch, prove, go back and remove, until it is killed."""
    site = TrustingSite(folder)
    while True:
        for version in ("2", "3"):
            site.store.put_in_force(site.install(version), state="probation")
            site.store.settle(proven=True)
            site.store.roll_back()
            for ref in site.store.installed():
                if ref not in site.store.in_force().used():
                    site.store.remove(ref)


@pytest.mark.timeout(1800)
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
        # A fork has all modules loaded: it is at work within a millisecond.
        child = multiprocessing.get_context("fork").Process(target=switch_for_ever, args=(site.folder,))
        child.start()
        child.join(drawn.uniform(0, 0.4))
        assert child.is_alive(), "it ended by itself: installing or switching failed after a kill"
        child.kill()
        child.join()
        store = BundleStore(site.folder)
        slot = store.in_force().of("gate")
        if slot is None:  # went back twice in a row: what comes with Vedette, which nothing here can harm
            slot = store.put_in_force(site.install("1"))
        seen.add((slot.bundle.version, slot.state))
        for ref in {slot.bundle, *store.installed()}:
            store.check(ref)
    store.put_in_force(site.install("3"))
    assert len(seen) > 1 or kills < 20, "it was always killed before a switch"
