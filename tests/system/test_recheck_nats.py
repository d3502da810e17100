"""An outage that ends, over a real nats-server: first the box's own word, then the cloud's, which stands above it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.base.threads import Service, ServiceGroup
from appliance.config import SiteConfig
from appliance.dashboard.schemas import AlertFull
from appliance.detect import detector_loader
from appliance.recheck.recheck_policy import ApplianceStatus, CloudStatus
from appliance.recheck.service import RecheckService, StatusSources
from appliance.recheck.worker import RecheckWorker
from appliance.router.calibration import UNTRAINED
from appliance.router.escalation_planner import build_escalation
from appliance.store.escalations import EscalationStore
from appliance.types import RecheckCommand
from cloud_worker.redetect import Redetect
from tests.servers.nats import NatsServer
from tests.servers.site import RULE, Site, evidence_image, site
from tests.servers.worker import ScriptedDetector, worker
from tests.support.recheck_yard import alert_of, record
from tests.support.waiting import until
from tests.system.test_escalation_nats import make_streams

T0_AGO_S = 30.0
CONFIG = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}})


@contextmanager
def rechecks(here: Site) -> Iterator[None]:
    """The appliance's side, in threads of its own, with its detector."""
    eye = detector_loader.load(DetectorConfig(model="vedette-nano"))

    def cloud() -> CloudStatus:
        link = here.service.link
        return CloudStatus(
            configured=True, down_s=None if link.up else 60.0, silent=link.up and link.breaker != "closed"
        )

    def send(command: RecheckCommand) -> bool:
        recheck_worker.submit(command)
        return True

    sources = StatusSources(lambda: ApplianceStatus(starts=1), cloud, lambda: UNTRAINED)
    service = RecheckService(
        CONFIG.second_look,
        CONFIG.escalation.router,
        here.db,
        here.meter,
        here.clock,
        send,
        sources,
    )
    recheck_worker = RecheckWorker(here.root, lambda: eye, service.receive, here.clock)
    parts = ServiceGroup()
    recheck_worker.start()
    parts.start(Service("rechecks", service.run, service.stop))
    try:
        yield
    finally:
        parts.stop()
        assert parts.wait() == 0
        recheck_worker.stop()


def shown(here: Site) -> AlertFull:
    detail = here.alerts.get("a1")
    assert detail is not None
    return AlertFull.of(detail)


@pytest.mark.parametrize(
    ("score", "standing"), [(0.0, "doubted"), pytest.param(0.9, "rechecked", marks=pytest.mark.slow)]
)
def test_the_appliance_judges_during_the_outage_and_the_cloud_after_it(
    one_broker: NatsServer, tmp_path: Path, score: float, standing: str
) -> None:
    make_streams(one_broker.url)
    with site(tmp_path / "site", one_broker.url) as here:
        here.cut()
        one_broker.kill()
        t0 = here.clock.now() - T0_AGO_S
        record(here.root, here.db, t0)
        here.connect()
        with rechecks(here):
            alert_of(
                here.db,
                t0,
                ask=lambda alert, event: build_escalation(
                    alert, event, RULE, site=here.name, now=here.clock.now(), model="m"
                ),
            )
            (asked,) = EscalationStore(here.db).waiting_for_evidence(2)
            here.make_ready(asked.body, (evidence_image(1),), (0.3, 0.3, 0.6, 0.9))
            until(lambda: shown(here).alert.edge == "rechecked", 60)
        before = shown(here)
        assert (before.alert.standing, before.alert.verdict) == ("unverified", None)
        assert before.second_look is not None
        assert before.second_look.verdict is not None
        assert before.second_look.why == "the cloud cannot be reached"
        assert (before.second_look.verdict.source, before.second_look.superseded) == ("edge", False)

        one_broker.start()
        with worker(one_broker.url, Redetect(ScriptedDetector(score), 0.3, SystemClock())):
            until(lambda: shown(here).alert.verdict is not None, 60)
        after = shown(here)
        assert after.alert.standing == standing
        assert after.second_look is not None
        assert not after.second_look.superseded, "another detector is no better than ours"
        assert after.second_look.verdict == before.second_look.verdict, "what the box said stays on record"
        assert here.service.verdicts.applied == 1
        detail = here.alerts.get("a1")
        assert detail is not None
        assert len(detail.verdicts) == 1
