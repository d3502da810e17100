"""The four JetStream streams and the consumers on them, as they should be.

VEDETTE_ESCALATION is a work queue: a question leaves it when it is answered, so that its size is the backlog (what an
autoscaler wants to read) and a full stream means questions nobody answered. VEDETTE_MEDIA and VEDETTE_VERDICT keep by
limits: pictures may be needed by a second delivery, a verdict must still be there for a site that was away. Questions
and media refuse what is new when full, and the sites' outboxes wait; verdicts drop the oldest, as a worker that cannot
publish would judge the same question again and again. VEDETTE_DEAD holds the questions that could not be judged.

Each site and priority has a consumer of its own, a *lane*, made by the first worker that sees a question there: a queue
is fair among its sites only if it can be asked for the next question of *one* site. A lane that nobody has used for
LANE_IDLE_S is removed by the server; what is stored for it stays, and it is made anew.
"""

from __future__ import annotations

import re

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from appliance.wire import (
    CHUNK_BYTES,
    MESSAGE_BYTES_MAX,
    PRIORITIES,
    STREAM_ESCALATION,
    STREAM_MEDIA,
    STREAM_VERDICT,
    escalation_subject,
)
from cloud_worker.config import Streams

STREAM_DEAD = "VEDETTE_DEAD"
HEADER_BYTES_MAX = 4096
LANE_IDLE_S = 86400.0
QUESTIONS = "vedette.*.escalation.*"
ACK_PENDING_MAX = 4096
_GB = 1024**3
_DAY_S = 86400.0
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def plan(settings: Streams) -> tuple[StreamConfig, ...]:
    """The streams as they should be."""
    window_s = settings.duplicate_minutes * 60

    def stream(
        name: str, subject: str, days: float, gb: float, discard: DiscardPolicy, retention: RetentionPolicy, size: int
    ) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=[subject],
            retention=retention,
            discard=discard,
            storage=StorageType.FILE,
            max_age=days * _DAY_S,
            max_bytes=int(gb * _GB),
            max_msg_size=size + HEADER_BYTES_MAX,
            duplicate_window=min(window_s, days * _DAY_S),
            num_replicas=settings.replicas,
            allow_direct=True,
        )

    work, limits = RetentionPolicy.WORK_QUEUE, RetentionPolicy.LIMITS
    new, old = DiscardPolicy.NEW, DiscardPolicy.OLD
    days, gb = settings.escalation_days, settings.escalation_gb
    dead_bytes_max = MESSAGE_BYTES_MAX + HEADER_BYTES_MAX  # a question, its headers included, and why it is there
    return (
        stream(STREAM_ESCALATION, "vedette.*.escalation.>", days, gb, new, work, MESSAGE_BYTES_MAX),
        stream(STREAM_MEDIA, "vedette.*.media.>", settings.media_days, settings.media_gb, new, limits, CHUNK_BYTES),
        stream(STREAM_VERDICT, "vedette.*.verdict", settings.verdict_days, settings.verdict_gb, old, limits, 64 * 1024),
        stream(STREAM_DEAD, "vedette.*.dead", settings.dead_days, settings.dead_gb, old, limits, dead_bytes_max),
    )


def lane_name(site: str, priority: str) -> str:
    return f"worker-{priority}-{site}"


def lane_of(subject: str) -> tuple[str, str] | None:
    """(site, priority) of a question's subject; None when no site asks there."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[3] not in PRIORITIES or not _NAME.match(parts[1]):
        return None
    return parts[1], parts[3]


def lane_plan(site: str, priority: str, ack_wait_s: float) -> ConsumerConfig:
    """The durable pull consumer of one site and priority, shared by all workers.

    max_deliver is unlimited on purpose: a message past the server's limit stays in a work queue, delivered to nobody.
    The worker counts the deliveries itself and ends them with a verdict.
    """
    return ConsumerConfig(
        durable_name=lane_name(site, priority),
        filter_subject=escalation_subject(site, priority),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ack_wait_s,
        max_deliver=-1,
        max_ack_pending=ACK_PENDING_MAX,
        inactive_threshold=LANE_IDLE_S,
    )
