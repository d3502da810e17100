"""One connection to a NATS server, kept for as long as the process lives; shared by the uplink and the worker.

nats-py's own reconnection is switched off: it hands over messages that were published during an outage although
`publish` has already failed, it gives up for ever when a server that restarts refuses the credentials once, and its
first connect behaves differently from the later ones. Here a lost connection is simply over, and the next one is new.
"""

from __future__ import annotations

from appliance.broker.broker_choice import BrokerChoice
from appliance.broker.nats_connection import NATS_ERRORS, LinkState, broker_errors, complaint
from appliance.broker.nats_link import (
    NatsLink,
    check_site_consumer,
    end_tasks,
    make_site_consumer,
    site_consumer_name,
    stay_subscribed,
    until_set,
)

__all__ = [
    "NATS_ERRORS",
    "BrokerChoice",
    "LinkState",
    "NatsLink",
    "broker_errors",
    "check_site_consumer",
    "complaint",
    "end_tasks",
    "make_site_consumer",
    "site_consumer_name",
    "stay_subscribed",
    "until_set",
]
