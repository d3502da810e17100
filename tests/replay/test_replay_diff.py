"""What `vedette replay diff` says: in words, by place and time, and with the right exit code."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import UsageError
from appliance.base.json_lines import encode_log
from appliance.config import LocalJudgeConfig, SiteConfig
from appliance.lab.replay_diff_command import diff_texts
from appliance.replay import replay_diff_match
from appliance.replay.replay_diff import compare_logs, setting_changes
from appliance.replay.replay_diff_match import LogDifference, LoggedTrack, match_tracks
from appliance.replay.replay_log_writer import Replayed, encode_header, opening, settings_of
from appliance.replay.replay_result import read_log
from appliance.types import (
    Alert,
    Box,
    Event,
    FrameBoxes,
    LogEnd,
    LogLine,
    Route,
    RouteCost,
    StreamHeader,
    TrackedObject,
)
from tests.support.block_footage import BrightBlock, block_clip, site
from tests.support.clip_replay import replay

LEFT: Box = (0.1, 0.2, 0.2, 0.6)
RIGHT: Box = (0.55, 0.2, 0.65, 0.6)


class Person:
    """Seen five times a second from one moment to another, in one place."""

    def __init__(self, track: int, t_start: float, t_end: float, box: Box = LEFT, label: str = "person") -> None:
        self.track, self.t_start, self.t_end, self.box, self.label = track, t_start, t_end, box, label

    def at(self, t: float) -> tuple[TrackedObject, ...]:
        there = self.t_start <= t <= self.t_end
        return (TrackedObject(track=self.track, label=self.label, score=0.8, box=self.box),) if there else ()


def boxes(*people: Person, seconds: float = 20.0) -> list[LogLine]:
    times = [round(index / 5, 3) for index in range(int(seconds * 5) + 1)]
    return [
        FrameBoxes(
            camera="gate",
            seq=seq,
            frame=seq * 3,
            t=t,
            looked=True,
            objects=tuple(found for person in people for found in person.at(t)),
        )
        for seq, t in enumerate(times)
    ]


def entered(t: float, *, track: int = 1) -> Event:
    return Event(
        camera="gate", rule="intruder", kind="enter", track=track, label="person", t=t, zone="yard", id=f"e{track}-{t}"
    )


def alert(t: float, t_end: float, *, tracks: tuple[int, ...] = (1,), rules: tuple[str, ...] = ("intruder",)) -> Alert:
    return Alert(
        camera="gate",
        id=f"a{t}",
        rules=rules,
        severity="alert",
        t_start=t,
        t_end=t_end,
        tracks=tracks,
        labels=("person",),
    )


def asked(t: float, bytes_: int) -> Route:
    cost = RouteCost(bytes=bytes_)
    return Route(camera="gate", alert=f"a{t}", event="e", t=t, ask=True, priority="high", reason="r", cost=cost)


def end(t: float) -> LogEnd:
    return LogEnd(
        camera="gate",
        run="r",
        t=t,
        reason="end of clip",
        frames=300,
        examined=100,
        unlooked=0,
        decode_errors=0,
        time_jumps=0,
        footage_bytes=1000,
    )


def test_the_password_of_the_local_judge_is_in_no_log() -> None:
    config = site().for_decisions()
    judge = LocalJudgeConfig(url="http://vedette:MARK@127.0.0.1:8000/v1?key=MARK", api_key="MARK")
    config = replace(config, escalation=config.escalation.model_copy(update={"local_judge": judge}))
    first = opening([], settings_of(config, ["gate"], BrightBlock()))
    assert b"MARK" not in encode_header(first)
    assert first.settings.escalation.local_judge.model == judge.model


Writes = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Writes:
    def write(name: str, *lines: LogLine, config: SiteConfig | None = None, ended: bool = True) -> Path:
        replayed = Replayed(camera="gate", kind="clip", clip="door.mp4", run="r")
        first = opening([replayed], settings_of((config or site()).for_decisions(), ["gate"], BrightBlock()))
        begun = first.begun_by(StreamHeader(camera="gate", clip="door.mp4", model="m", size=(320, 240), run="r"))
        path = tmp_path / f"{name}.jsonl"
        tail = [encode_log(end(20.0))] if ended else []
        ordered = sorted(lines, key=lambda line: line.t_start if isinstance(line, Alert) else line.t)  # type: ignore[union-attr]
        path.write_bytes(b"".join([encode_header(begun), *map(encode_log, ordered), *tail]))
        return path

    return write


def difference(one: Path, other: Path) -> LogDifference:
    return compare_logs(read_log(one), read_log(other))


def texts_of(one: Path, other: Path) -> list[str]:
    return list(diff_texts(difference(one, other)))


def test_other_footage_is_told_in_the_order_of_the_log_and_by_what_differs(written: Writes) -> None:
    """Names of cameras that a set would give in another order at each start."""
    header = read_log(written("a")).header
    names = [f"cam{number}" for number in range(9)]
    one = tuple(Replayed(camera=name, kind="clip", clip="a.mp4", run="r") for name in names)
    other = tuple(reversed([each.model_copy(update={"clip": "b.mp4", "run": "s"}) for each in one]))
    before, after = (replace(header, replayed=each) for each in (one, other))
    assert setting_changes(before, after) == tuple(f"footage of {name}: a.mp4 → b.mp4" for name in names)

    night = Replayed(camera="gate", kind="recording", clip="gate", run="r", t_from=0.0, t_to=60.0)
    for update, text in (
        ({"files": 2}, "files 1 → 2"),
        ({"t_from": 1.5}, "from 1970-01-01T00:00:00.000Z → 1970-01-01T00:00:01.500Z"),
        ({"files": 3, "t_to": None}, "files 1 → 3, to 1970-01-01T00:01:00.000Z → no known time"),
    ):
        pair = (replace(header, replayed=(each,)) for each in (night, night.model_copy(update=update)))
        assert setting_changes(*pair) == (f"footage of gate: {text}",)
    assert setting_changes(header, header) == ()


def test_equal_logs_are_equal(written: Writes) -> None:
    lines = [*boxes(Person(1, 2, 9)), entered(3.0), alert(3.0, 9.0)]
    assert texts_of(written("a", *lines), written("b", *lines)) == ["the same was decided"]


def test_a_track_that_is_lost_earlier_and_found_later(written: Writes) -> None:
    a = written("a", *boxes(Person(7, 2.0, 14.0)))
    b = written("b", *boxes(Person(3, 2.8, 12.6)))
    lines = texts_of(a, b)
    assert "track 7 (person) found 0.8 s later (at 0:02.8), lost 1.4 s earlier (at 0:12.6)" in lines
    assert "first difference at 0:02.0 on gate" in lines


def test_a_new_track_has_a_length_and_a_place(written: Writes) -> None:
    a = written("a", *boxes(Person(1, 0, 20)))
    b = written("b", *boxes(Person(1, 0, 20), Person(9, 5.0, 8.2, RIGHT)))
    assert texts_of(a, b)[-1] == "track 9 (person) is new: 3.2 s from 0:05.0, near (0.6, 0.4)"
    assert texts_of(b, a)[-1] == "track 9 (person) is missing: 3.2 s from 0:05.0, near (0.6, 0.4)"
    assert texts_of(a, b)[0] == "1 track more"


def test_numbers_are_only_names(written: Writes) -> None:
    a = written("a", *boxes(Person(1, 0, 9), Person(2, 5, 9, RIGHT)))
    b = written("b", *boxes(Person(5, 0, 9), Person(1, 5, 9, RIGHT)))
    assert difference(a, b).same


def test_a_track_that_broke_is_reported_as_such(written: Writes) -> None:
    a = written("a", *boxes(Person(4, 0, 12)))
    b = written("b", *boxes(Person(4, 0, 7), Person(6, 8, 12)))
    lines = texts_of(a, b)
    assert "track 4 (person) lost 5.0 s earlier (at 0:07.0)" in lines
    assert "track 6 (person) is new: 4.0 s from 0:08.0, near (0.15, 0.4); track 4 of the first log broke here" in lines


def test_another_label_is_reported(written: Writes) -> None:
    a, b = (written(name, *boxes(Person(1, 0, 9, label=label))) for name, label in (("a", "person"), ("b", "dog")))
    assert "track 1 (person) is taken for a dog" in texts_of(a, b)


def test_events_are_missing_new_or_moved(written: Writes) -> None:
    people = boxes(Person(1, 0, 20), Person(2, 0, 20, RIGHT))
    a = written("a", *people, entered(3.0), entered(8.0, track=2), entered(11.0))
    b = written("b", *people, entered(3.4), entered(11.0), entered(19.0))
    lines = texts_of(a, b)
    assert "event intruder (person) at 0:03.0 comes 0.4 s later" in lines
    assert "event intruder (person) at 0:08.0 is missing" in lines
    assert "event intruder (person) at 0:19.0 is new" in lines
    assert len([line for line in lines if line.startswith("event")]) == 3


def test_alerts_and_bytes(written: Writes) -> None:
    people = boxes(Person(1, 0, 20))
    a = written("a", *people, alert(2.0, 6.0), alert(12.0, 15.0), asked(2.0, 40_000), asked(12.0, 30_100))
    b = written("b", *people, alert(2.0, 7.5, tracks=(1, 2)), asked(2.0, 40_000))
    lines = texts_of(a, b)
    assert lines[0] == "1 alert fewer, 1 question fewer, 30.1 kB less to send (70.1 kB → 40.0 kB)"
    assert "alert intruder at 0:12.0 is missing" in lines
    assert "alert intruder at 0:02.0: ends 1.5 s later, 2 tracks instead of 1" in lines
    assert lines[-1] == "router: r: 2 → 1"


def test_what_changed_in_the_settings_is_reported_first(written: Writes) -> None:
    one = site()
    gate = one.cameras["gate"]
    rules = (gate.rules[0].model_copy(update={"score_min": 0.7, "severity": "info"}), *gate.rules[2:])
    other = one.model_copy(
        update={
            "detector": one.detector.model_copy(update={"score_min": 0.3}),
            "alerts": one.alerts.model_copy(update={"merge_s": 20.0}),
            "cameras": {
                "gate": gate.model_copy(
                    update={
                        "zones": {"yard": ((0.6, 0.0), *gate.zones["yard"][1:])},
                        "rules": rules,
                        "detect": gate.detect.model_copy(update={"fps": 2.0}),
                    }
                )
            },
        }
    )
    people = boxes(Person(1, 0, 9))
    lines = texts_of(written("a", *people), written("b", *people, config=other))
    assert lines == [
        "the same was decided, with other settings",
        "settings: detector.score_min 0.1 → 0.3",
        "settings: alerts.merge_s 8 → 20",
        "settings: gate: detect.fps 5 → 2",
        "settings: gate: zone `yard`: 1 of its 4 points moved",
        "settings: gate: rule `intruder`: score_min 0.5 → 0.7, severity alert → info",
        "settings: gate: rule `leaver` removed",
    ]


def test_a_log_that_breaks_off_is_not_taken_for_whole(written: Writes) -> None:
    people = boxes(Person(1, 0, 9))
    a, b = written("a", *people), written("b", *people[:50], ended=False)
    lines = texts_of(a, b)
    assert "note: b.jsonl breaks off: its replay was not finished (give the same command again with --resume)" in lines
    assert not difference(a, b).same


def test_a_changed_zone_on_real_footage(tmp_path: Path) -> None:
    clip = block_clip(tmp_path / "walk.mp4", 6, lambda t: 0.1 + 0.25 * min(t, 2.4))
    narrow = site(zones={"yard": [[0.75, 0], [1, 0], [1, 1], [0.75, 1]]})
    for name, config in (("a", site()), ("b", narrow)):
        with (tmp_path / f"{name}.jsonl").open("wb") as log:
            replay(clip, config.for_decisions(), "gate", BrightBlock(), log, clock=ManualClock())
    found = difference(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert [(each.rule, each.change) for each in found.events] == [("intruder", "missing"), ("loiterer", "missing")]
    assert [each.what for each in found.alerts] == [("is warning instead of alert", "without intruder, loiterer")]
    assert found.tracks == ()
    assert found.looks_changed == 0


def test_the_exit_code_reports_whether_anything_differs(written: Writes, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written("a", *boxes(Person(1, 0, 9))), written("b", *boxes(Person(1, 0, 7)))
    assert main(["replay", "diff", str(a), str(a)]) == 0
    assert main(["replay", "diff", str(a), str(b)]) == 1
    assert "lost 2.0 s earlier" in capsys.readouterr().out
    assert main(["replay", "diff", str(a), str(a.parent / "absent.jsonl")]) == 2
    assert main(["replay", "diff", str(a), str(a.parent)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_json_holds_all_of_it(written: Writes, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written("a", *boxes(Person(1, 0, 9))), written("b", *boxes(Person(1, 0, 7)))
    assert main(["replay", "diff", "--json", str(a), str(b)]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert (reported["same"], reported["first_t"]) == (False, 7.2)
    assert reported["tracks"][0]["end_s"] == -2.0
    assert reported["total_before"]["tracks"] == 1


def test_what_is_nested_without_end_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "deep.jsonl"
    log.write_bytes(b'{"type": "header", "x": ' + b"[" * 100_000 + b"\n")
    with pytest.raises(UsageError, match="is not a replay log: its first line is no header"):
        read_log(log)


def test_a_camera_without_a_header_is_named(written: Writes, tmp_path: Path) -> None:
    log = written("x", *boxes(Person(1, 0, 9)))
    head, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([head, *rest, *(line.replace(b'"camera":"gate"', b'"camera":"yard"') for line in rest)]))
    with pytest.raises(UsageError, match="the camera yard has lines and no header"):
        read_log(log)


def test_folders_are_paired_by_name(written: Writes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    log = written("x", *boxes(Person(1, 0, 9)))
    for folder in ("before", "after"):
        (tmp_path / folder / "door.mp4.jsonl").write_bytes(log.read_bytes())
    assert main(["replay", "diff", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    (tmp_path / "after" / "yard.mp4.jsonl").write_bytes(log.read_bytes())
    assert main(["replay", "diff", str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    assert "yard.mp4.jsonl: only in one of the folders" in capsys.readouterr().out


def test_tracks_match_when_frames_were_examined_at_other_times() -> None:
    """Five looks a second against two: places in between are taken on the straight line."""

    def walk(number: int, every_s: float) -> LoggedTrack:
        times = tuple(round(index * every_s, 3) for index in range(int(6 / every_s)))
        places: tuple[Box, ...] = tuple((0.1 * t, 0.2, 0.1 * t + 0.1, 0.6) for t in times)
        return LoggedTrack("gate", 1, number, "person", times, places)

    def away(number: int) -> LoggedTrack:
        track = walk(number, 0.5)
        return LoggedTrack(
            "gate", 1, number, "person", track.times, tuple((x, 0.7, z, 0.9) for x, _, z, _ in track.boxes)
        )

    found = match_tracks([walk(1, 0.2)], [away(8), walk(9, 0.5)])
    assert [(one.number, other.number) for one, other in found.pairs] == [(1, 9)]
    assert [track.number for track in found.new] == [8]


class CountedTime(float):
    """A moment that counts how often any of its kind is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) < float(other)

    def __ge__(self, other: float) -> bool:
        return not self < other


def test_spans_are_paired_as_if_each_were_held_against_each() -> None:
    chance = random.Random(4)
    for _ in range(200):
        sides = [
            [
                (begin, begin + chance.choice((0, 1, 3, 30)))
                for begin in chance.choices(range(20), k=chance.randrange(9))
            ]
            for _ in range(2)
        ]
        brute = {
            (i, j)
            for i, (start, end) in enumerate(sides[0])
            for j, (other_start, other_end) in enumerate(sides[1])
            if start <= other_end and other_start <= end
        }
        found = list(replay_diff_match._at_the_same_time(*sides))
        assert len(found) == len(set(found))
        assert set(found) == brute


def test_a_long_log_costs_no_look_at_every_pair() -> None:
    spans = [(CountedTime(10 * n), CountedTime(10 * n + 5)) for n in range(2000)]
    CountedTime.compared = 0
    assert len(list(replay_diff_match._at_the_same_time(spans, spans))) == 2000
    assert CountedTime.compared < 100 * len(spans), "of four million pairs"
