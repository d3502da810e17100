"""What the owner forbids after a question was made does not leave, over a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.config import SiteConfig
from appliance.evidence.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.uplink.uplink_service import UplinkService
from cloud_worker.redetect import Redetect
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site, evidence_image
from tests.servers.worker import ScriptedDetector, worker
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not find_nats_servers(), reason="no nats-server")


class Guarded(Site):
    """A site whose file has become `privacy`."""

    privacy: dict[str, object] = {}

    def _service(self) -> UplinkService:
        config = SiteConfig.model_validate({"cameras": {"gate": {"url": "file:x", "privacy": self.privacy}}})
        return UplinkService(
            self.settings, self.name, self.deps, self.clock,
            egress_policy=PrivacyEgressPolicy(
                PrivacyRules(config.site, config.cameras, None), config.cameras, self.alerts.events_of
            ),
        )  # fmt: skip


def pictures_sent(site: Site) -> int:
    with site.db.read() as connection:
        return int(connection.execute("SELECT count(*) FROM audit WHERE kind != 'facts'").fetchone()[0])


@pytest.mark.parametrize(
    ("privacy", "state", "decision"),
    [
        ({}, "settled", "rechecked"),
        ({"blur": "people"}, "settled", "unsure"),
        ({"never": True}, "expired", None),
    ],
    ids=["free", "veiled since", "forbidden since"],
)
def test_rules_hold_for_what_waits_already(
    tmp_path: Path, privacy: dict[str, object], state: str, decision: str | None
) -> None:
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    site = Guarded(tmp_path / "site", broker.url)
    site.privacy = privacy
    site.ask(1, (evidence_image(1),))
    try:
        with worker(broker.url, Redetect(ScriptedDetector(0.9), 0.3, SystemClock())):
            site.connect()
            until(lambda: site.detail(1).escalation.state == state, 20)  # type: ignore[union-attr]
        verdict = site.verdict(1)
        assert (verdict.decision if verdict else None) == decision
        assert pictures_sent(site) == (1 if privacy == {} else 0), "not one pixel left"
        row = site.detail(1).escalation
        assert row is not None
        assert (row.bytes_sent > 0) == (state == "settled")
    finally:
        site.close()
        broker.stop()
