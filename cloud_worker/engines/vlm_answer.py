"""Reads and checks the reply of a model about an escalation, and makes an opinion of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from appliance.wire import Escalation, FrameSupport
from cloud_worker.engines.chat_completion import Choice, Completion, read_completion
from cloud_worker.engines.chat_endpoint import complaint
from cloud_worker.images import ShownImage
from cloud_worker.judge import Opinion
from cloud_worker.prompt import (
    ANSWER_SCHEMAS,
    AnswerOrder,
    BoxesAnswer,
    ObjectBox,
    ReasonAnswer,
    VlmAnswer,
    parse_answer,
    parse_decision,
    prompt_version,
    wanted_language,
)

FOREIGN_SHARE_MAX = 0.2  # of the letters outside ASCII: names and accents may be, whole words of another script not


@dataclass(frozen=True, slots=True)
class AskedCase:
    """The images that the model is shown, what it took to make them, the escalation, its trace, the answer's order."""

    shown: Sequence[ShownImage]
    preprocess_s: float
    escalation: Escalation
    traceparent: str = ""
    order: AnswerOrder = "reason_first"

    def opinion(self, status: int, body: bytes) -> Opinion:
        """Return what the server's reply says of the case."""
        if status != 200:
            return self.unusable(complaint(status, body), {})
        completion = read_completion(body)
        if completion is None:
            return self.unusable("its server's reply is not a chat completion", {})
        counts = completion.tokens()
        answer = read_answer(completion, len(self.shown), self.escalation.language, order=self.order)
        if isinstance(answer, str):
            return self.unusable(answer, counts)
        return replace(self.believed(answer), **counts)

    def unusable(self, why: str, counts: dict[str, Any]) -> Opinion:
        """Return the opinion of a reply that cannot be used, and why."""
        reason = f"The model gave no usable answer: {why}."
        words: dict[str, Any] = {
            "prompt": prompt_version(self.escalation),
            "answer_schema": ANSWER_SCHEMAS[self.order],
        }
        return Opinion(decision="unsure", reason=reason, preprocess_s=self.preprocess_s, **words, **counts)

    def believed(self, answer: VlmAnswer) -> Opinion:
        """Return the opinion of an answer that can be believed."""
        supports = {each.picture: each.supports for each in answer.pictures}
        return Opinion(
            decision=answer.decision,
            reason=answer.reason,
            confidence=answer.confidence,
            support=tuple(
                FrameSupport(media=each.source.ref.id, t=each.t, supports=supports[n])
                for n, each in enumerate(self.shown, 1)
                if n in supports
            ),
            preprocess_s=self.preprocess_s,
            more=answer.decision == "unsure",
            prompt=prompt_version(self.escalation),
            answer_schema=ANSWER_SCHEMAS[self.order],
        )

    def early(self, text: str) -> VlmAnswer | None:
        """Return the decision of an answer that has begun, once it is known and sure."""
        answer = parse_decision(text)
        if answer is None or answer.decision == "unsure":
            return None
        return None if _contradiction(answer, len(self.shown), self.escalation.language) else answer


def read_answer(
    completion: Completion, images: int, language: str = "en", *, order: AnswerOrder = "reason_first"
) -> VlmAnswer | str:
    """Return the answer, or the reason why it cannot be believed. `language`: in which the reason was wanted."""
    if not completion.choices:
        return "an empty reply"
    choice = completion.choices[0]
    if choice.message.tool_calls:
        return "it called a tool instead of answering"
    if choice.finish_reason != "stop":
        return _unfinished(choice)
    text = (choice.message.content or "").strip()
    if not text:
        return "an empty answer" + (" (a refusal)" if choice.message.refusal else "")
    try:
        answer = parse_answer(text, order)
    except ValidationError as error:
        return _not_valid(text, error)
    return _contradiction(answer, images, language) or answer


def read_reason(completion: Completion | None, images: int, language: str, early: VlmAnswer) -> VlmAnswer | str:
    """Return the reason that was asked for after a decision, or why it cannot be believed."""
    if completion is None or not completion.choices:
        return "an empty reply"
    choice = completion.choices[0]
    if choice.finish_reason != "stop":
        return _unfinished(choice)
    try:
        given = ReasonAnswer.model_validate_json(choice.message.content or "")
    except ValidationError as error:
        return _not_valid(choice.message.content or "", error)
    answer = given.of(early.decision, early.confidence)
    return _contradiction(answer, images, language) or answer


def read_boxes(completion: Completion | None, labels: Sequence[str]) -> list[ObjectBox]:
    """Return the boxes of an answer to `boxes_request` that have an area and a label that was asked for."""
    if completion is None or not completion.choices or completion.choices[0].finish_reason != "stop":
        return []
    try:
        given = BoxesAnswer.model_validate_json(completion.choices[0].message.content or "")
    except ValidationError:
        return []
    has_area = [each for each in given.objects if each.box[0] < each.box[2] and each.box[1] < each.box[3]]
    return [each for each in has_area if each.label in labels]


def _unfinished(choice: Choice) -> str:
    text = choice.message.content or ""
    if choice.finish_reason == "length":
        blanks = len(text) - len("".join(text.split()))
        return "it filled its answer with blanks" if blanks * 2 > len(text) > 0 else "it was cut off at the token limit"
    return f"it stopped early ({str(choice.finish_reason)[:40]})"


def _not_valid(text: str, error: ValidationError) -> str:
    if text.startswith("```"):
        return "the answer is wrapped in Markdown"
    if not text.startswith("{"):
        return "prose instead of JSON"
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return "the JSON is broken or cut off"
    return f"`{'.'.join(map(str, first['loc'])) or 'answer'}` is wrong: {first['msg'][:120]}"


def _contradiction(answer: VlmAnswer, images: int, language: str) -> str:
    """Return why a well-formed answer is still not believed; an empty text when it is believed.

    A text that a person holds into the camera gets further than this check only when it also turns the answer to every
    single image.
    """
    numbers = [each.picture for each in answer.pictures]
    if len(set(numbers)) != len(numbers) or any(number > images for number in numbers):
        return f"it speaks of pictures it was not shown ({images} were)"
    if answer.decision == "confirmed" and not any(each.supports == "yes" for each in answer.pictures):
        return "it confirms, and says of no picture that it supports the claim"
    if answer.decision == "rejected":
        support = {each.supports for each in answer.pictures}
        if "yes" in support:
            return "it rejects, and says of a picture that it supports the claim"
        if "no" not in support:
            return "it rejects, and says of no picture that it speaks against the claim"
    if wanted_language(language) != "English":
        return ""
    letters = [char for char in answer.reason if char.isalpha()]
    if sum(not char.isascii() for char in letters) > FOREIGN_SHARE_MAX * len(letters):
        return "the reason is not in English"
    return ""
