"""What crosses a border keeps its meaning: old JSON still reads, newer fields are ignored, nonsense is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from appliance import wire
from appliance.base import json_lines
from appliance.base.json_lines import WireError
from appliance.types import FrameBoxes, Gap, TrackedObject
from tests.support import wire_v1

GOLDEN = Path(__file__).parents[2] / "fixtures" / "wire"
ESCALATION = json.loads((GOLDEN / "escalation.1.json").read_text())
VERDICT = json.loads((GOLDEN / "verdict.1.json").read_text())
MESSAGES = [(wire.Escalation, ESCALATION), (wire.Verdict, VERDICT)]
ESCALATION_2 = json.loads((GOLDEN / "escalation.2.json").read_text())
VERDICT_2 = json.loads((GOLDEN / "verdict.2.json").read_text())
NEWER = [(wire.Escalation, ESCALATION_2), (wire.Verdict, VERDICT_2)]
SCHEMA_3 = [
    (model, json.loads((GOLDEN / name).read_text()))
    for model, name in ((wire.Escalation, "escalation.3.json"), (wire.Verdict, "verdict.3.json"))
]
SCHEMA_4 = [
    (model, json.loads((GOLDEN / name).read_text()))
    for model, name in ((wire.Escalation, "escalation.4.json"), (wire.Verdict, "verdict.4.json"))
]
SCHEMA_5 = [
    (model, json.loads((GOLDEN / name).read_text()))
    for model, name in ((wire.Escalation, "escalation.5.json"), (wire.Verdict, "verdict.5.json"))
]
SCHEMA_6 = [
    (model, json.loads((GOLDEN / name).read_text()))
    for model, name in ((wire.Escalation, "escalation.6.json"), (wire.Verdict, "verdict.6.json"))
]
OLDER = [(wire_v1.Escalation, ESCALATION_2), (wire_v1.Verdict, VERDICT_2)]


def lines(name: str) -> list[bytes]:
    return (GOLDEN / name).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(("model", "golden"), MESSAGES, ids=["escalation", "verdict"])
def test_schema_1_still_reads_and_every_field_of_it_is_written_the_same(model: Any, golden: dict[str, Any]) -> None:
    read = model.from_json(json.dumps(golden).encode())
    assert common(json.loads(read.to_json()), golden) == golden, "a field was dropped, renamed or changed"


def common(found: Any, golden: Any) -> Any:
    """`found` without the fields that `golden` does not know."""
    if isinstance(golden, dict):
        return {key: common(found[key], golden[key]) for key in golden if key in found}
    if isinstance(golden, list):
        return [common(*pair) for pair in zip(found, golden, strict=True)]
    return found


@pytest.mark.parametrize(("model", "golden"), NEWER, ids=["escalation", "verdict"])
def test_schema_2_still_reads_and_every_field_of_it_is_written_the_same(model: Any, golden: dict[str, Any]) -> None:
    read = model.from_json(json.dumps(golden).encode())
    assert common(json.loads(read.to_json()), golden) == golden, "a field was dropped, renamed or changed"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_3, ids=lambda each: getattr(each, "__name__", ""))
def test_schema_3_still_reads_and_every_field_of_it_is_written_the_same(model: Any, golden: dict[str, Any]) -> None:
    read = model.from_json(json.dumps(golden).encode())
    assert common(json.loads(read.to_json()), golden) == golden, "a field was dropped, renamed or changed"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_4, ids=lambda each: getattr(each, "__name__", ""))
def test_schema_4_still_reads_and_every_field_of_it_is_written_the_same(model: Any, golden: dict[str, Any]) -> None:
    read = model.from_json(json.dumps(golden).encode())
    assert common(json.loads(read.to_json()), golden) == golden, "a field was dropped, renamed or changed"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_5, ids=lambda each: getattr(each, "__name__", ""))
def test_schema_5_still_reads_and_every_field_of_it_is_written_the_same(model: Any, golden: dict[str, Any]) -> None:
    read = model.from_json(json.dumps(golden).encode())
    assert common(json.loads(read.to_json()), golden) == golden, "a field was dropped, renamed or changed"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_6, ids=lambda each: getattr(each, "__name__", ""))
def test_schema_6_reads_and_writes_the_same(model: Any, golden: dict[str, Any]) -> None:
    assert golden["schema_version"] == wire.WIRE_SCHEMA
    assert json.loads(model.from_json(json.dumps(golden).encode()).to_json()) == golden


@pytest.mark.parametrize(("older", "golden"), OLDER, ids=["escalation", "verdict"])
def test_a_side_of_schema_1_reads_what_schema_2_writes(older: Any, golden: dict[str, Any]) -> None:
    """What it does not know it ignores: a crop has a box of its own, and a request for more reads as `unsure`."""
    read = older.from_json(json.dumps(golden).encode())
    assert common(golden, json.loads(read.to_json())) == json.loads(read.to_json())
    assert getattr(read, "decision", "unsure") == "unsure"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_6, ids=lambda each: getattr(each, "__name__", ""))
def test_a_side_of_schema_1_reads_what_schema_6_writes(model: Any, golden: dict[str, Any]) -> None:
    read = {wire.Escalation: wire_v1.Escalation, wire.Verdict: wire_v1.Verdict}[model].from_json(
        json.dumps(golden).encode()
    )
    assert common(golden, json.loads(read.to_json())) == json.loads(read.to_json())


def test_a_verdict_of_before_schema_3_says_nothing_of_versions_and_archive() -> None:
    verdict = wire.Verdict.from_json(json.dumps(VERDICT_2).encode())
    assert (verdict.worker_version, verdict.answer_schema, verdict.looks, verdict.archive) == ("", "", 1, ())


@pytest.mark.parametrize(
    ("said", "kind", "decision"),
    [
        ({"engine": "openai"}, "vlm", "confirmed"),  # of a worker of before schema 4
        ({"engine": "redetect"}, "detector", "rechecked"),
        ({"engine": "home-made"}, "unknown", "rechecked"),
        ({"engine": "home-made", "kind": "vlm"}, "vlm", "confirmed"),
        ({"engine": "home-made", "kind": "person"}, "person", "confirmed"),
        ({"engine": "home-made", "kind": "detector"}, "detector", "rechecked"),
        ({"engine": "redetect", "kind": "vlm"}, "detector", "rechecked"),  # it is none by saying so
        ({"engine": "openai", "kind": "oracle of a later day"}, "unknown", "rechecked"),
        ({"engine": "openai", "kind": ["vlm"]}, "unknown", "rechecked"),
    ],
)
def test_only_a_language_model_and_a_person_confirm(said: dict[str, Any], kind: str, decision: str) -> None:
    bare = {key: value for key, value in VERDICT.items() if key != "engine"}
    verdict = wire.Verdict.from_json(json.dumps({**bare, **said}).encode())
    assert (verdict.kind, verdict.decision) == (kind, decision)
    rejected = wire.Verdict.from_json(json.dumps({**bare, **said, "decision": "rejected"}).encode())
    assert rejected.decision == "rejected", "whoever judges may reject"


def test_an_escalation_of_schema_1_offers_nothing_and_so_is_never_asked_for_more() -> None:
    read = wire.Escalation.from_json(json.dumps(ESCALATION).encode())
    assert (read.step, read.can, read.image_free, read.media[0].region) == (0, (), False, None)
    verdict = wire.Verdict.from_json(json.dumps(VERDICT).encode())
    assert (verdict.need, verdict.step) == (None, None)


def test_a_decision_that_comes_before_its_reason_is_a_message_of_its_own() -> None:
    whole = wire.Verdict.from_json(json.dumps(SCHEMA_5[1][1]).encode())
    early = whole.model_copy(update={"provisional": True})
    assert wire.verdict_message_id(early) != wire.verdict_message_id(whole)
    assert not wire.Verdict.from_json(json.dumps(VERDICT).encode()).provisional, "of an older worker none is"


def test_each_step_and_each_request_has_a_message_id_of_its_own_and_there_is_one_last_word() -> None:
    verdict = wire.Verdict.from_json(json.dumps(VERDICT_2).encode())
    asked = wire.Escalation.from_json(json.dumps(ESCALATION_2).encode())
    ids = [wire.escalation_message_id(asked.model_copy(update={"step": step})) for step in range(wire.STEPS_MAX)]
    ids += [wire.verdict_message_id(verdict.model_copy(update={"step": step})) for step in range(wire.STEPS_MAX)]
    assert len(set(ids)) == 2 * wire.STEPS_MAX
    assert ids[0] == wire.escalation_message_id(asked.model_copy(update={"step": 0})), "the same each time"
    later = asked.model_copy(update={"created_t": asked.created_t + 1e-4})
    assert wire.escalation_message_id(later) not in ids, "nobody knows it who does not know all of the message"
    last = [wire.verdict_message_id(verdict.model_copy(update={"need": None, "step": step})) for step in (None, 0, 2)]
    assert set(last) == {"depot-7.esc-0123456789abcdef.verdict"}


@pytest.mark.parametrize(("model", "golden"), MESSAGES, ids=["escalation", "verdict"])
def test_fields_of_a_newer_side_are_ignored(model: Any, golden: dict[str, Any]) -> None:
    newer = {**golden, "schema_version": 2, "mood": "sunny", "extra": {"deep": [1, 2, 3]}}
    assert model.from_json(json.dumps(newer).encode()) == model.from_json(json.dumps(golden).encode()).model_copy(
        update={"schema_version": 2}
    )


def test_an_image_of_a_newer_side_may_have_more_fields() -> None:
    newer = {**ESCALATION, "media": [{**ESCALATION["media"][0], "depth": 3}]}
    assert wire.Escalation.from_json(json.dumps(newer).encode()).media[0].chunks == 2


@pytest.mark.parametrize("line", lines("ingest.1.jsonl"), ids=lambda line: json.loads(line)["type"])
def test_the_ingest_channel_of_schema_1_still_reads(line: bytes) -> None:
    golden = json.loads(line)
    assert common(json.loads(json_lines.encode_ingest(json_lines.decode_ingest(line))), golden) == golden
    newer = json.dumps({**json.loads(line), "mood": "sunny"}).encode()
    assert json_lines.decode_ingest(newer) == json_lines.decode_ingest(line)


@pytest.mark.parametrize("line", lines("log.1.jsonl"), ids=lambda line: json.loads(line)["type"])
def test_a_replay_log_of_schema_1_still_reads(line: bytes) -> None:
    assert json_lines.encode_log(json_lines.decode_log(line)) == line
    newer = json.dumps({**json.loads(line), "mood": "sunny"}).encode()
    assert json_lines.decode_log(newer) == json_lines.decode_log(line)


def test_not_examined_is_not_the_same_as_nothing_there() -> None:
    blind, empty = (
        FrameBoxes(camera="c", seq=0, frame=0, t=0.0, looked=looked, objects=()) for looked in (False, True)
    )
    assert json_lines.decode_ingest(json_lines.encode_ingest(blind)) == blind != empty


def test_boxes_come_back_exactly() -> None:
    thing = TrackedObject(track=1, label="person", score=0.123, box=(0.0001, 0.3333, 0.6667, 1.0))
    boxes = FrameBoxes(camera="c", seq=0, frame=0, t=0.1 + 0.2, looked=True, objects=(thing,))
    assert json_lines.decode_ingest(json_lines.encode_ingest(boxes)) == boxes


def test_a_gap_that_lasts_has_no_end() -> None:
    gap = Gap(camera="c", t_start=1.0, t_end=None, reason="gone")
    assert b'"t_end":null' in json_lines.encode_ingest(gap)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"id": "../../etc/passwd"}, "id"),
        ({"id": "a.b"}, "id"),  # a dot would be a level of a NATS subject
        ({"site": "a>b"}, "site"),
        ({"site": ""}, "site"),
        ({"severity": "apocalyptic"}, "severity"),
        ({"t": None}, "t"),
        ({"t": float("nan")}, "message"),
        ({"question": "x" * 2001}, "question"),
        ({"media": [ESCALATION["media"][0]] * 17}, "media"),
    ],
)
def test_an_escalation_that_cannot_be_right_is_refused_with_the_field(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(WireError, match=rf"^({names}|t|message)\b"):
        wire.Escalation.from_json(json.dumps({**ESCALATION, **changes}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "9F86D081884C7D659A2FEAA0C55AD015"},
        {"id": "short"},
        {"sha256": "z" * 64},
        {"bytes": 0},
        {"bytes": wire.MEDIA_BYTES_MAX + 1},
        {"chunks": 0},
        {"chunks": 10_000},
        {"mime": "text/html"},
        {"width": 100_000},
    ],
)
def test_a_hostile_image_reference_is_refused(changes: dict[str, Any]) -> None:
    hostile = {**ESCALATION, "media": [{**ESCALATION["media"][0], **changes}]}
    with pytest.raises(WireError, match=r"^media\.0\."):
        wire.Escalation.from_json(json.dumps(hostile).encode())


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b'"text"', b"\xff\xfe", b"{", b"[" * 50_000, b"x" * (wire.MESSAGE_BYTES_MAX + 1)]
)
def test_what_is_no_message_at_all_is_refused(data: bytes) -> None:
    for read in (wire.Escalation.from_json, wire.Verdict.from_json, json_lines.decode_ingest, json_lines.decode_log):
        with pytest.raises(WireError):
            read(data)


def test_subjects_keep_sites_and_images_apart() -> None:
    assert wire.escalation_subject("depot-7", "high") == "vedette.depot-7.escalation.high"
    assert wire.media_subject("depot-7", "ab", 3) == "vedette.depot-7.media.ab.3"
    assert wire.verdict_subject("depot-7") == "vedette.depot-7.verdict"
    assert wire.message_id("depot-7", "ab", 3) != wire.message_id("depot-8", "ab", 3)


# bounds ---------------------------------------------------------------------------------------------------------------


def unbounded(model: type[BaseModel]) -> list[str]:
    """Fields of a message, and of what is in it, that may be as long or as large as the other side likes."""
    schema = model.model_json_schema()

    def walk(node: dict[str, Any], where: str) -> Iterator[str]:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        for each in node.get("anyOf", ()):
            yield from walk(each, where)
        match node.get("type"):
            case "string" if not ({"enum", "const", "maxLength"} & set(node) or "}$" in node.get("pattern", "")):
                yield where
            case "number" | "integer" if "maximum" not in node and "exclusiveMaximum" not in node:
                yield where
            case "array":
                if "maxItems" not in node:
                    yield where
                for each in [*node.get("prefixItems", ()), *([node["items"]] if "items" in node else [])]:
                    yield from walk(each, where)
            case "object":
                if "properties" not in node and "maxProperties" not in node:
                    yield where
                for name, each in {**node.get("properties", {}), **node.get("patternProperties", {})}.items():
                    yield from walk(each, f"{where}.{name}")

    return list(walk(schema, model.__name__))


@pytest.mark.parametrize("model", [wire.Escalation, wire.Verdict, wire.PoolStatus])
def test_every_field_that_another_side_fills_has_a_bound(model: type[BaseModel]) -> None:
    assert unbounded(model) == []


@pytest.mark.parametrize("t", [1e308, -1.0, 4e9 + 1])
@pytest.mark.parametrize("field", ["t", "judged_t", "archive"])
def test_a_time_that_is_no_date_is_refused(field: str, t: float) -> None:
    changes: dict[str, Any] = {
        "t": {"support": [{"media": "m", "t": t, "supports": "yes"}]},
        "judged_t": {"judged_t": t},
        "archive": {"archive": [{"kind": "clip", "key": "k", "expires_t": t}]},
    }[field]
    with pytest.raises(WireError, match=r"less than|greater than"):
        wire.Verdict.from_json(json.dumps({**VERDICT_2, **changes}).encode())


@pytest.mark.parametrize("key", ["a" * 60_000, "line\n2026-01-01 error core: forged", "\x1b[2J\x1b]0;title\x07"])
def test_an_error_quotes_another_side_in_one_short_plain_line(key: str) -> None:
    """Such a key froze the core for 2.8 s while passwords were looked for in it, and forged a line of its log."""
    started = time.perf_counter()
    with pytest.raises(WireError) as caught:
        wire.Verdict.from_json(json.dumps({**VERDICT_2, "timings": {key: "x"}}).encode())
    assert time.perf_counter() - started < 1.0
    assert len(str(caught.value)) <= json_lines.ERROR_CHARS_MAX
    assert str(caught.value).isprintable()


def test_what_a_verdict_says_for_people_moves_no_cursor() -> None:
    hostile = "A cat\x1b[31m\n2026-11-22 00:00:00 info: all is well\u202e\x07"
    read = wire.Verdict.from_json(json.dumps({**VERDICT_2, "reason": hostile, "model": hostile}).encode())
    assert read.reason.isprintable()
    assert read.model.isprintable()
    assert read.reason.startswith("A cat [31m 2026")
    assert wire.Verdict.from_json(read.to_json()) == read


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "https://a b/", "file:///etc/passwd"])
def test_a_link_of_a_verdict_is_one_to_follow(url: str) -> None:
    with pytest.raises(WireError, match=r"^archive\.0\.url"):
        wire.Verdict.from_json(
            json.dumps({**VERDICT_2, "archive": [{"kind": "clip", "key": "k", "url": url}]}).encode()
        )


def test_what_an_older_version_has_stored_is_still_read() -> None:
    """It had fewer limits: an alert whose verdict was let in then has a page all the same."""
    stored = {
        **VERDICT_2,
        "support": [{"media": "m" * 5000, "t": 1e308, "supports": "yes"}, {"media": "m", "t": -5.0, "supports": "no"}],
        "timings": {"a" * 900: 1.0, "model": 2.0},
        "engine": "e" * 5000,
        "reason": "r" * 300,
    }
    read = wire.Verdict.from_stored(json.dumps(stored).encode())
    assert [each.t for each in read.support] == [wire.TIME_MAX, 0.0]
    assert (read.timings, len(read.engine)) == ({"model": 2.0}, wire.TEXT_CHARS_MAX)
    assert wire.Verdict.from_stored(json.dumps(VERDICT_2).encode()) == wire.Verdict.from_json(
        json.dumps(VERDICT_2).encode()
    )
    with pytest.raises(WireError, match="decision"):
        wire.Verdict.from_stored(json.dumps({**stored, "decision": "perhaps"}).encode())


def test_a_trace_goes_on_from_the_escalation_to_what_follows() -> None:
    escalation = wire.Escalation.from_json(json.dumps(ESCALATION_2).encode())
    sent = wire.traceparent_of(escalation)
    assert wire.escalation_headers(escalation)[wire.TRACEPARENT] == sent == wire.traceparent_of(escalation)
    version, trace, span, flags = sent.split("-")
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
    later = wire.traceparent_of(escalation.model_copy(update={"step": escalation.step + 1}))
    judged = wire.traceparent_after(sent, "judge")
    assert {each.split("-")[1] for each in (sent, later, judged)} == {trace}, "one trace"
    assert len({each.split("-")[2] for each in (sent, later, judged)}) == 3, "three spans"
    wrong = (
        "",
        "00-" + "0" * 32 + f"-{span}-01",
        f"00-{trace}-{'0' * 16}-01",
        f"ff-{trace}-{span}-01",
        sent + "\r\nX: y",
    )
    assert [wire.traceparent_after(each, "judge") for each in wrong] == [""] * len(wrong)
