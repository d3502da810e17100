"""The questions of a replay as they would be sent, step by step, for whoever answers them."""

from __future__ import annotations

from typing import Protocol

from appliance import wire
from appliance.escalate.media import Message
from appliance.replay.answers import Question
from appliance.replay.pictures import Pictures
from appliance.types import Alert, Event


class Album(Protocol):
    """Where pictures come from; see appliance.replay.pictures."""

    def pictures(self, alert: Alert, event: Event, *, need: wire.Need | None = None, step: int = 0) -> Pictures:
        """Those of a later message, of an object that the judge needs to see more of."""
        ...


def question_of(
    album: Album, alert: Alert, event: Event, body: wire.Escalation, pictures: Pictures, priority: str
) -> Question:
    """`body` (what the router asks, or the message before) with the pictures of this message.

    Of what a later message brings the pictures are cut when it is asked for, so `album` must still be where it was.
    """
    media = {ref.id: ref for ref in (*body.media, *pictures.refs)}
    whole = body.model_copy(
        update={"media": tuple(media.values()), "can": pictures.can, "image_free": pictures.image_free}
    )

    def more(need: wire.Need) -> Question | None:
        step = whole.step + 1
        if need not in pictures.can:
            return None
        later = album.pictures(alert, event, need=need, step=step)
        if not later.shown and need != "clip":
            return None
        return question_of(album, alert, event, whole.model_copy(update={"step": step}), later, priority)

    facts = question_message(whole, priority)
    return Question(whole, priority, pictures.shown, pictures.clip, facts.size + pictures.bytes, more)


def question_message(body: wire.Escalation, priority: str) -> Message:
    """As the uplink publishes it."""
    headers = {"Nats-Msg-Id": wire.question_message_id(body.site, body.id, body.step)}
    return Message(wire.escalation_subject(body.site, priority), body.to_json(), headers, "facts")
