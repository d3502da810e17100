"""Uses the broker's stream of verdicts: stores one, looks one up; asks a site whether it still waits."""

from __future__ import annotations

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from appliance.base.clock import Clock
from appliance.base.errors import VedetteError
from appliance.broker.nats_connection import broker_errors, complaint
from appliance.broker.nats_link import NatsLink, site_consumer_name
from appliance.wire import (
    STREAM_VERDICT,
    TRACEPARENT,
    Escalation,
    Verdict,
    answer_message_ids,
    verdict_message_id,
    verdict_subject,
    wanted_subject,
)

WANTED_S_MAX = 2.0  # a round trip to a site; one that is silent is taken to want it
PUBLISH_S_MAX = 5.0  # to be acknowledged by the broker
_NEVER_STORED = {"Nats-Rollup": "none"}  # `sub` and `all` are its values: anything else is refused by every stream
_ROLLUP_FAILED = 10111  # nats-server: "rollup failed"


class VerdictRefused(VedetteError):
    """The broker will never store this message, too large for the stream, say; its connection is fine."""


class NotWanted(VedetteError):
    """The site has the answer from another region."""


class SiteElsewhere(VedetteError):
    """The site is not connected here, and may be asking another region."""


class VerdictStream:
    """The verdicts of a region's broker. No state; each call waits for a connection if there is none."""

    def __init__(self, link: NatsLink, clock: Clock) -> None:
        self._link = link
        self._clock = clock

    async def publish(self, verdict: Verdict, trace: str, judged_at: float | None = None) -> None:
        """Store the verdict with the broker.

        trace: of its escalation, as this worker goes on with it.

        Raise UplinkError, or VerdictRefused when trying again would be in vain.
        """
        client: Client = await self._link.client()
        if judged_at is not None:
            timings = {**verdict.timings, "publish": round(self._clock.monotonic() - judged_at, 4)}
            verdict = verdict.model_copy(update={"timings": timings})
        headers = {"Nats-Msg-Id": verdict_message_id(verdict), TRACEPARENT: trace}
        subject, body = verdict_subject(verdict.site), verdict.to_json()
        with broker_errors("a verdict could not be stored, and is sent again"):
            try:
                publishing = client.jetstream(timeout=PUBLISH_S_MAX).publish(
                    subject, body, stream=STREAM_VERDICT, headers=headers
                )
                await self._link.while_up(publishing)
            except (nats.js.errors.BadRequestError, nats.errors.MaxPayloadError) as error:
                raise VerdictRefused(f"the broker refuses the verdict: {complaint(error)}") from None

    async def holds_answer(self, escalation: Escalation) -> bool:
        """Return True if the broker holds the answer to this step, a final verdict or a request for more evidence.

        The broker looks for duplicates before it refuses a rollup of no kind: an empty message with one is told to be
        a duplicate if its id is known. Nothing is stored. Neither expectation of the last message does: a replicated
        stream of nats-server 2.15.1 that has refused a last *id* takes no message any more, and a single server
        compares a last sequence number before it looks for duplicates. Raise UplinkError.
        """
        client = await self._link.client()
        jetstream, subject = client.jetstream(timeout=PUBLISH_S_MAX), verdict_subject(escalation.site)
        with broker_errors("the broker cannot be asked for a verdict"):
            for name in answer_message_ids(escalation):
                probe = {"Nats-Msg-Id": name, **_NEVER_STORED}
                try:
                    await self._link.while_up(jetstream.publish(subject, b"", stream=STREAM_VERDICT, headers=probe))
                except nats.js.errors.APIError as error:
                    if error.err_code != _ROLLUP_FAILED:
                        raise
                else:
                    return True
        return False

    async def check_wanted(self, escalation: Escalation) -> None:
        """Ask the site, where another region may have answered meanwhile. Raise NotWanted, SiteElsewhere, UplinkError.

        A site that is not connected here reads no verdict here either, so that waiting for it costs nothing. A site
        that does not answer is taken to want it.
        """
        client = await self._link.client()
        with broker_errors("the site cannot be asked whether it still waits"):
            try:
                subject, name = wanted_subject(escalation.site), escalation.id.encode()
                if (await client.request(subject, name, timeout=WANTED_S_MAX)).data == b"no":
                    raise NotWanted(f"{escalation.id} was answered in another region")
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                consumer = site_consumer_name(escalation.site)
                try:
                    found = await client.jetstream(timeout=PUBLISH_S_MAX).consumer_info(STREAM_VERDICT, consumer)
                except nats.js.errors.NotFoundError:
                    return
                if not found.num_waiting:
                    raise SiteElsewhere(f"{escalation.site} is not connected here") from None
