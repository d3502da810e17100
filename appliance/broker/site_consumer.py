"""The durable consumer through which a site reads its verdicts: its settings, and what must be so when it is there."""

from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from appliance.base.errors import UplinkError
from appliance.wire import STREAM_VERDICT, verdict_subject

ACK_WAIT_S = 10.0  # what a lost connection carried comes again; a disk that takes longer gets it twice, which is once


def site_consumer_name(site: str) -> str:
    return f"site-{site}"


async def make_site_consumer(jetstream: JetStreamContext, site: str) -> None:
    """Make it, or leave the one that is the same. Raises nats errors.

    Its name and filter are part of the request's subject, so that rights can be given for exactly this consumer.
    """
    name = site_consumer_name(site)
    wanted = ConsumerConfig(
        name=name,
        durable_name=name,
        filter_subject=verdict_subject(site),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_S,
        max_deliver=-1,
    )
    await jetstream.add_consumer(STREAM_VERDICT, wanted)


def check_site_consumer(found: ConsumerConfig, site: str) -> None:
    """Raise UplinkError when the consumer of this name reads anything but this site's verdicts, or hands them on."""
    name = site_consumer_name(site)
    if found.filter_subject != verdict_subject(site) or found.deliver_subject:
        reads = found.filter_subject or "everything"
        to = f" and hands it to {found.deliver_subject}" if found.deliver_subject else ""
        raise UplinkError(
            f"the consumer {name} at the broker reads {reads}{to}: somebody else made it; delete it there"
        )
