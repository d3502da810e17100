"""Which broker is connected to: in order, to another region and back, and never where residency forbids it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from appliance.base.broker_config import BrokerAddress
from appliance.base.clock import ManualClock
from appliance.broker.nats_link import BrokerChoice
from appliance.config import UplinkConfig
from cloud_worker.config import NatsConfig

URLS = [
    {"url": "nats://a1:4222", "region": "eu"}, {"url": "nats://a2:4222", "region": "eu"},
    {"url": "nats://b1:4222", "region": "us"},
]  # fmt: skip


def choice(clock: ManualClock, **limits: float) -> BrokerChoice:
    found = UplinkConfig(urls=URLS)  # type: ignore[call-arg,arg-type]  # url is the first of them
    return BrokerChoice(found.addresses, limits.get("failover_s", 10), limits.get("failback_s", 60), clock)


def test_all_servers_of_a_region_are_tried_before_it_is_left() -> None:
    clock = ManualClock()
    brokers = choice(clock)
    assert (brokers.region, brokers.address.url) == ("eu", "nats://a1:4222")
    assert not brokers.failed()
    assert brokers.address.url == "nats://a2:4222"
    clock.advance(11)
    assert brokers.failed()
    assert (brokers.region, brokers.failovers) == ("us", 1)


def test_a_connection_that_does_not_last_is_none() -> None:
    clock = ManualClock()
    brokers = choice(clock)
    for _ in range(4):  # eleven seconds of connections that are lost at once
        brokers.connected()
        assert not brokers.failed()
        clock.advance(2.75)
    brokers.connected()
    assert brokers.failed()
    clock.advance(20)
    brokers = choice(clock)
    brokers.connected()
    clock.advance(10)
    assert not brokers.failed(), "one that lasted begins anew"


def test_it_returns_to_a_region_that_lasts_and_later_to_one_that_flaps() -> None:
    clock = ManualClock()
    brokers = choice(clock)
    assert brokers.failed(at_once=True)
    assert [each.url for each in brokers.better()] == ["nats://a1:4222", "nats://a2:4222"]
    assert not brokers.probed(["eu"])
    clock.advance(40)
    assert not brokers.probed([]), "it was silent once: its time begins anew"
    assert not brokers.probed(["eu"])
    clock.advance(60)
    assert brokers.probed(["eu"])
    assert brokers.region == "eu"
    assert brokers.failed(at_once=True)
    brokers.probed(["eu"])
    clock.advance(60)
    assert not brokers.probed(["eu"]), "it was left soon after the return: twice as long"
    clock.advance(60)
    assert brokers.probed(["eu"])


def test_residency_forbids_a_region() -> None:
    allowed = UplinkConfig(urls=URLS, residency=["us"])  # type: ignore[call-arg,arg-type]
    assert [each.url for each in allowed.addresses] == ["nats://b1:4222"]
    brokers = BrokerChoice(allowed.addresses, 10, 60, ManualClock())
    assert not brokers.failed(at_once=True)
    assert brokers.region == "us"
    for wrong in ({"urls": URLS, "residency": ["ch"]}, {"url": "nats://a1:4222", "residency": ["eu"]}):
        with pytest.raises(ValidationError, match="no broker is there"):
            UplinkConfig(**wrong)  # type: ignore[arg-type]


def test_a_single_url_stays_what_it_was() -> None:
    plain = UplinkConfig(url="nats://hub:4222")
    assert plain.addresses == (BrokerAddress.model_construct(url="nats://hub:4222", region=""),)
    with pytest.raises(ValidationError, match="url is not among urls"):
        UplinkConfig(url="nats://other:4222", urls=URLS)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="a worker serves one region"):
        NatsConfig(urls=URLS)  # type: ignore[arg-type]
