"""What crosses a border keeps its meaning: old JSON still reads, newer fields are ignored, nonsense is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wire_v1

from appliance import wire
from appliance.types import FrameBoxes, Gap, TrackedObject
from appliance.wire import WireError

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
    if (GOLDEN / name).exists()
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
def test_schema_3_reads_and_writes_the_same(model: Any, golden: dict[str, Any]) -> None:
    assert golden["schema_version"] == wire.WIRE_SCHEMA
    assert json.loads(model.from_json(json.dumps(golden).encode()).to_json()) == golden


@pytest.mark.parametrize(("older", "golden"), OLDER, ids=["escalation", "verdict"])
def test_a_side_of_schema_1_reads_what_schema_2_writes(older: Any, golden: dict[str, Any]) -> None:
    """What it does not know it ignores: a crop has a box of its own, and a request for more reads as `unsure`."""
    read = older.from_json(json.dumps(golden).encode())
    assert common(golden, json.loads(read.to_json())) == json.loads(read.to_json())
    assert getattr(read, "decision", "unsure") == "unsure"


@pytest.mark.parametrize(("model", "golden"), SCHEMA_3, ids=lambda each: getattr(each, "__name__", ""))
def test_a_side_of_schema_1_reads_what_schema_3_writes(model: Any, golden: dict[str, Any]) -> None:
    read = {wire.Escalation: wire_v1.Escalation, wire.Verdict: wire_v1.Verdict}[model].from_json(
        json.dumps(golden).encode()
    )
    assert common(golden, json.loads(read.to_json())) == json.loads(read.to_json())


def test_a_verdict_of_before_schema_3_says_nothing_of_versions_and_archive() -> None:
    verdict = wire.Verdict.from_json(json.dumps(VERDICT_2).encode())
    assert (verdict.worker_version, verdict.answer_schema, verdict.looks, verdict.archive) == ("", "", 1, ())


def test_an_escalation_of_schema_1_offers_nothing_and_so_is_never_asked_for_more() -> None:
    read = wire.Escalation.from_json(json.dumps(ESCALATION).encode())
    assert (read.step, read.can, read.image_free, read.media[0].region) == (0, (), False, None)
    verdict = wire.Verdict.from_json(json.dumps(VERDICT).encode())
    assert (verdict.need, verdict.step) == (None, None)


def test_each_step_and_each_request_has_a_message_id_of_its_own_and_there_is_one_last_word() -> None:
    verdict = wire.Verdict.from_json(json.dumps(VERDICT_2).encode())
    ids = [wire.escalation_message_id("s", "esc-1", step) for step in range(wire.STEPS_MAX)]
    ids += [wire.verdict_message_id(verdict.model_copy(update={"step": step})) for step in range(wire.STEPS_MAX)]
    assert len(set(ids)) == 2 * wire.STEPS_MAX
    assert ids[0] == wire.message_id("s", "esc-1"), "as it always was"
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
    assert common(json.loads(wire.encode_ingest(wire.decode_ingest(line))), golden) == golden
    newer = json.dumps({**json.loads(line), "mood": "sunny"}).encode()
    assert wire.decode_ingest(newer) == wire.decode_ingest(line)


@pytest.mark.parametrize("line", lines("log.1.jsonl"), ids=lambda line: json.loads(line)["type"])
def test_a_replay_log_of_schema_1_still_reads(line: bytes) -> None:
    assert wire.encode_log(wire.decode_log(line)) == line
    newer = json.dumps({**json.loads(line), "mood": "sunny"}).encode()
    assert wire.decode_log(newer) == wire.decode_log(line)


def test_not_examined_is_not_the_same_as_nothing_there() -> None:
    blind, empty = (
        FrameBoxes(camera="c", seq=0, frame=0, t=0.0, looked=looked, objects=()) for looked in (False, True)
    )
    assert wire.decode_ingest(wire.encode_ingest(blind)) == blind != empty


def test_boxes_come_back_exactly() -> None:
    thing = TrackedObject(track=1, label="person", score=0.123, box=(0.0001, 0.3333, 0.6667, 1.0))
    boxes = FrameBoxes(camera="c", seq=0, frame=0, t=0.1 + 0.2, looked=True, objects=(thing,))
    assert wire.decode_ingest(wire.encode_ingest(boxes)) == boxes


def test_a_gap_that_lasts_has_no_end() -> None:
    gap = Gap(camera="c", t_start=1.0, t_end=None, reason="gone")
    assert b'"t_end":null' in wire.encode_ingest(gap)


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
    for read in (wire.Escalation.from_json, wire.Verdict.from_json, wire.decode_ingest, wire.decode_log):
        with pytest.raises(WireError):
            read(data)


def test_subjects_keep_sites_and_images_apart() -> None:
    assert wire.escalation_subject("depot-7", "high") == "vedette.depot-7.escalation.high"
    assert wire.media_subject("depot-7", "ab", 3) == "vedette.depot-7.media.ab.3"
    assert wire.verdict_subject("depot-7") == "vedette.depot-7.verdict"
    assert wire.message_id("depot-7", "ab", 3) != wire.message_id("depot-8", "ab", 3)
