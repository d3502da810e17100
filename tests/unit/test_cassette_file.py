"""Cassettes as files: what makes two questions the same, and what a damaged or hostile file is told."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance import wire
from appliance.base.errors import UsageError
from appliance.replay import cassette_file
from appliance.replay.cassette_file import (
    CassetteHeader,
    CassetteLine,
    CassettePlayer,
    CassetteReader,
    CassetteWriter,
    Judge,
    key_of,
    media_of,
    query_of,
)
from appliance.replay.verdict_source import (
    FootageRef,
    OracleJudge,
    OracleOpinion,
    OracleOptions,
    OracleSettings,
    ReplayEscalation,
    parse_verdict_source,
)

JUDGE = Judge(engine="openai", model="vlm", prompt_version="1")
CLIP = FootageRef("door.mp4")


def ref(n: int, kind: str = "frame") -> wire.MediaRef:
    sha256 = f"{n:064x}"
    return wire.MediaRef(
        id=sha256[-32:], kind=kind, mime="image/jpeg", bytes=10, sha256=sha256, chunks=1, t=float(n), box=(0, 0, 1, 1)
    )


def body(t: float = 2.8, pictures: tuple[int, ...] = (1, 2), **changes: Any) -> wire.Escalation:
    said: dict[str, Any] = {
        "id": "esc-1", "site": "depot", "camera": "gate", "alert": "a1", "rule": "intruder", "kind": "enter",
        "label": "person", "severity": "alert", "question": "Is it?", "t": t, "created_t": t, "zone": "yard",
        "media": tuple(map(ref, pictures)),
    }  # fmt: skip
    return wire.Escalation(**{**said, **changes})


def line(asked: wire.Escalation, decision: str = "confirmed", *, utc: bool = False, clip: str = "door.mp4") -> Any:
    said = query_of(asked, t=asked.t, utc=utc, clip="" if utc else clip)
    verdict = wire.Verdict(
        escalation=asked.id, site=asked.site, alert=asked.alert, decision=decision, reason="Seen.", engine="openai",
        model="vlm", prompt_version="1", seconds=1.0, judged_t=1.0,
    )  # fmt: skip
    return CassetteLine(
        key=key_of(said, media_of(asked)), asked=said, media=media_of(asked), verdict=verdict, total_s=2.0
    )


def write(path: Path, *lines: CassetteLine) -> Path:
    writer = CassetteWriter(path)
    writer.begin(CassetteHeader(judges=(JUDGE,), recorded="2026-11-20T10:00:00Z"))
    for each in lines:
        writer.write(each)
    writer.close()
    return path


def said(player: CassettePlayer, asked: wire.Escalation, place: FootageRef = CLIP) -> str | None:
    answer = player.answer(ReplayEscalation(asked, "high"), place)
    return None if answer is None else f"{answer.verdict.decision} {answer.match}"


@pytest.mark.parametrize(
    "change",
    [
        {"site": "elsewhere"}, {"camera": "yard"}, {"id": "esc-2"}, {"alert": "a2"}, {"t": 9.9}, {"created_t": 1e9},
        {"score": 0.1}, {"model": "other"}, {"media": (ref(2), ref(1))},
        {"media": (ref(1).model_copy(update={"box": (0, 0, 0.5, 0.5), "t": 7.0}), ref(2))},
    ],
    ids=str,
)  # fmt: skip
def test_what_differs_between_an_appliance_and_its_replay_is_no_part_of_the_key(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    player = CassettePlayer(write(tmp_path / "c.jsonl", line(body())))
    assert said(player, body(**change)) == "confirmed exact"


@pytest.mark.parametrize(
    "change",
    [
        {"question": "Or is it?"}, {"rule": "loiterer"}, {"kind": "dwell"}, {"label": "car"}, {"zone": "door"},
        {"media": (ref(1),)}, {"media": (ref(1), ref(3))}, {"media": (ref(1), ref(2), ref(3, "clip"))},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_asked_and_shown_is_all_of_it(tmp_path: Path, change: dict[str, Any]) -> None:
    player = CassettePlayer(write(tmp_path / "c.jsonl", line(body())))
    assert said(player, body(**change)) is None


def test_escalations_without_images_are_distinguished_by_what_their_judge_is_shown(tmp_path: Path) -> None:
    player = CassettePlayer(write(tmp_path / "c.jsonl", line(body(pictures=(), score=0.75))))
    assert said(player, body(t=99.0, pictures=(), score=0.75)) == "confirmed exact"
    assert said(player, body(pictures=(), score=0.5)) is None
    assert said(player, body(pictures=(), score=0.75, camera="yard")) is None


def test_a_clip_counts_by_being_there_since_no_replay_has_its_bytes(tmp_path: Path) -> None:
    asked = body(media=(ref(1), ref(5, "clip")))
    player = CassettePlayer(write(tmp_path / "c.jsonl", line(asked)))
    answer = player.answer(ReplayEscalation(body(pictures=(1,)), "high", clip=True), CLIP)
    assert answer is not None
    assert said(player, body(pictures=(1,))) is None


def test_of_two_answers_to_the_same_escalation_the_later_one_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body()), line(body(), "rejected"))
    player = CassettePlayer(path)
    assert (said(player, body()), len(player)) == ("rejected exact", 1)


def test_nearest_is_of_the_same_camera_rule_label_and_clip_within_half_a_second_and_once(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body(2.8)), line(body(3.2, (3,)), "rejected"))
    assert said(CassettePlayer(path), body(2.9, (9,))) is None, "off unless wished"
    for asked, place, expected in (
        (body(2.9, (9,)), CLIP, "confirmed nearest"),
        (body(3.1, (9,)), CLIP, "rejected nearest"),
        (body(3.2, (3,)), CLIP, "rejected exact"),
        (body(3.71, (9,)), CLIP, None),
        (body(2.9, (9,), camera="yard"), CLIP, None),
        (body(2.9, (9,), rule="loiterer"), CLIP, None),
        (body(2.9, (9,), label="car"), CLIP, None),
        (body(2.9, (9,)), FootageRef("other.mp4"), None),
        (body(2.9, (9,)), FootageRef("door.mp4", t_from=1e9), None),
    ):
        assert said(CassettePlayer(path, "nearest"), asked, place) == expected, (asked, place)
    player = CassettePlayer(path, "nearest")
    found = [said(player, body(2.9, (n,))) for n in (7, 8, 9)]
    assert found == ["confirmed nearest", "rejected nearest", None], "each line answers one question by nearness"


def test_a_recording_is_compared_by_its_utc_time(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body(1_700_000_010.0), utc=True))
    player = CassettePlayer(path, "nearest")
    assert said(player, body(4.2, (9,)), FootageRef("recording of gate", t_from=1_700_000_006.0)) == "confirmed nearest"


def change_line(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change_file(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        lines[number - 1] = change(lines[number - 1])
        path.write_bytes(b"".join(lines))

    return change_file


def swap(number: int, old: bytes, new: bytes) -> Callable[[Path], None]:
    return change_line(number, lambda each: each.replace(old, new))


def put(number: int, new: bytes) -> Callable[[Path], None]:
    return change_line(number, lambda each: new + b"\n")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change_line(3, lambda each: each[:-30]), r"line 3 is cut off: record again into the same file.*or remove"),
        (put(2, b"{}"), r"line 2 cannot be used: key: Field required; remove that line"),
        (put(2, b"\xff\xfe\x00"), r"line 2 cannot be used: line: Invalid JSON.*remove that line"),
        (put(2, b"[" * 100_000), r"line 2 cannot be used: line: Invalid JSON.*recursion"),
        (put(2, b'{"a":"' + b"x" * 200_000 + b'"}'), r"line 2 .*over 131072 bytes; remove that"),
        (swap(2, b'"total_s":2.0', b'"total_s":1e999'), "line 2 cannot be used: total_s"),
        (swap(2, b'"total_s":2.0', b'"total_s":-1'), "line 2 cannot be used: total_s"),
        (swap(2, b'"confirmed"', b'"maybe"'), "line 2 cannot be used: verdict.decision"),
        (swap(2, b"Is it?", b"Is it!"), "line 2 .*its key is not that of its question"),
        (swap(1, b'"version":1', b'"version":2'), "version 2; this Vedette reads 1"),
        (put(1, b'{"type":"header","log":"vedette.replay"}'), "is not a verdict cassette.*make one"),
        (swap(1, b'"judges":[', b'"judgez":['), "line 1 .*record the cassette anew"),
        (lambda path: path.write_bytes(b""), "is not a verdict cassette"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_reported_with_file_line_and_remedy(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    path = write(tmp_path / "c.jsonl", line(body()), line(body(9.0, (4,))))
    damage(path)
    with pytest.raises(UsageError, match=f"(?s)c.jsonl.*{sentence}"):
        CassettePlayer(path)


def test_a_huge_file_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "c.jsonl", *(line(body(float(n), (n,))) for n in range(5)))
    monkeypatch.setattr(cassette_file, "LINES_MAX", 4)
    with pytest.raises(UsageError, match="over 4 lines: split it"):
        CassettePlayer(path)
    monkeypatch.setattr(cassette_file, "FILE_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="a cassette has at most 100: split it"):
        CassettePlayer(path)


def test_fields_of_a_newer_vedette_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body()))
    lines = [json.dumps({**json.loads(each), "mood": "sunny"}) for each in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    assert said(CassettePlayer(path), body()) == "confirmed exact"


def test_the_digest_is_of_the_answers_not_of_when_they_were_recorded(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", line(body())), tmp_path / "b.jsonl"
    second.write_bytes(first.read_bytes().replace(b"2026-11-20", b"2027-01-01"))
    third = write(tmp_path / "c.jsonl", line(body(), "rejected"))
    digests = [CassettePlayer(path).answered_by.digest for path in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]


def test_a_torn_last_line_is_dropped_when_recording_continues(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body()), line(body(9.0, (4,))))
    path.write_bytes(path.read_bytes()[:-20])
    writer = CassetteWriter(path)
    writer.write(line(body(9.0, (4,)), "rejected"))
    writer.close()
    decisions = [placed.line.verdict.decision for placed in CassetteReader(path).lines()]
    assert decisions == ["confirmed", "rejected"]


def test_a_recording_that_goes_on_leaves_no_file_open(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", line(body()))
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        CassetteWriter(path).close()
    assert [str(each.message) for each in left] == []


def test_names_are_as_long_as_the_wire_lets_them_be(tmp_path: Path) -> None:
    """The model of a local server is often the path of its file."""
    name = "m" * wire.TEXT_CHARS_MAX
    asked = body(zone=name, label=name)
    long = line(asked)
    verdict = long.verdict.model_copy(update={"engine": name, "model": name, "prompt_version": name})
    long = long.model_copy(update={"verdict": verdict})
    (read,) = CassetteReader(write(tmp_path / "c.jsonl", long)).lines()
    assert read.line.judge == Judge(engine=name, model=name, prompt_version=name)
    assert (read.line.asked.zone, read.line.asked.label) == (name, name)


def test_a_pipe_that_nobody_writes_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe or a device: a cassette is a file"):
        CassettePlayer(tmp_path / "pipe")


def test_a_file_of_another_kind_is_not_recorded_over(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the only copy, without a line end")
    with pytest.raises(UsageError, match="is there and is not a verdict cassette: it is not written over"):
        CassetteWriter(notes)
    assert notes.read_text() == "the only copy, without a line end"


def test_names_in_a_cassette_cannot_reach_the_terminal_as_commands() -> None:
    assert str(Judge(engine="x\x1b[2J", model="m")) == "x?[2J m"


class Always:
    """Everything is true."""

    def about(self, escalation: wire.Escalation) -> OracleOpinion:
        return OracleOpinion("confirmed", "it happened")


def test_the_oracle_errs_as_often_as_set_and_by_escalation_alone() -> None:
    def wrong(error: float, seed: int) -> list[float]:
        maker = OracleJudge(Always(), OracleSettings(error, seed))
        escalations = [ReplayEscalation(body(float(n)), "high") for n in range(1000)]
        return [each.body.t for each in escalations if maker.answer(each, CLIP).verdict.decision == "rejected"]

    assert wrong(0.0, 1) == []
    assert 30 <= len(wrong(0.05, 1)) <= 70
    assert wrong(0.05, 1) == wrong(0.05, 1) != wrong(0.05, 2)
    assert set(wrong(0.05, 1)) < set(wrong(0.2, 1)), "a larger share errs there, and elsewhere as well"


def test_the_oracle_names_itself_in_every_verdict() -> None:
    maker = OracleJudge(Always(), OracleSettings(1.0, 3))
    verdict = maker.answer(ReplayEscalation(body(), "high"), CLIP).verdict
    assert (verdict.engine, verdict.reason) == ("stand-in", "stand-in: it happened; turned round on purpose")
    assert str(maker.answered_by) == "stand-in (answers made from the truth, 100 % of them turned round, seed 3)"


def test_the_command_line_distinguishes_a_cassette_from_the_oracle() -> None:
    assert parse_verdict_source("c.jsonl") == Path("c.jsonl")
    assert parse_verdict_source("./stand-in") == Path("stand-in")
    assert parse_verdict_source("stand-in") == OracleOptions()
    options = parse_verdict_source("stand-in:error=0.05,seed=1,latency=2,truth=x.scenario.yaml")
    assert options == OracleOptions(OracleSettings(0.05, 1, 2.0), Path("x.scenario.yaml"))
    for wrong in ("stand-in:error=2", "stand-in:", "stand-in:eror=0.1", "stand-in:seed=x", "stand-in:latency=nan"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"a stand-in takes error=0\.\.1, seed=NUMBER"):
            parse_verdict_source(wrong)
