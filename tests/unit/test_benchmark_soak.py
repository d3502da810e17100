"""The soak's plan and its judgement: what must be noticed, recovered from, left alone, and stay flat."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.soak import OtherSoak, SoakRecord, UnusableRecord, told
from benchmarks.soak_checks import (
    AT_ONCE,
    LASTING,
    LONG,
    SHORT,
    Fault,
    StatusSample,
    evaluate,
    log_findings,
    make,
    slope,
)

BEGUN = 5000.0
STALL = Fault("stall", "yard", 20.0, 40.0)
GAP = {"t_start": BEGUN + 20, "t_end": BEGUN + 41, "reason": "nothing came"}


def watched(
    not_live: tuple[float, float] = (22.0, 42.0), *, mb: float = 200.0, grows: float = 0.0
) -> list[StatusSample]:
    """Two minutes; the yard is not live between the two times of `dark`, and no packets come from 20 to 42 s."""
    found = []
    for n in range(120):
        states = {"yard": "stalled" if not_live[0] <= n < not_live[1] else "live", "gate": "live"}
        packets = {"yard": 15.0 * (min(n, 20) + max(0, n - 42)), "gate": 15.0 * n}
        found.append(StatusSample(BEGUN + n, states, packets, 1.0, int((mb + grows * n) * 1e6)))
    return found


def sentences(
    faults: list[Fault], samples: list[StatusSample], gaps: dict[str, list[dict[str, object]]] | None = None
) -> str:
    known = {"yard": [GAP]} if gaps is None else gaps
    return " | ".join(each.text for each in evaluate(faults, BEGUN, samples, known, 45.0).findings)


def test_a_stall_that_is_shown_and_recovered_from_is_as_it_should_be() -> None:
    verdict = evaluate([STALL], BEGUN, watched(), {"yard": [GAP]}, 45.0)
    assert verdict.findings == []
    assert (verdict.noticed_s, verdict.recovered_s, verdict.disturbed_s) == ([2.0], [2.0], 0.0)


def test_a_stall_that_is_not_shown_is_found_twice() -> None:
    words = sentences([STALL], watched(not_live=(0, 0)))
    assert "stall at 20 s was not noticed within 10 s" in words
    assert "shown as live" in words


def test_a_stall_without_a_plan_is_found_too() -> None:
    assert "shown as live" in sentences([], watched(not_live=(0, 0)))


def test_late_notice_late_recovery_and_a_missing_gap_are_findings() -> None:
    assert "not noticed" in sentences([STALL], watched(not_live=(35, 50)))
    assert "not recovered" in sentences([STALL], watched(not_live=(22, 110)))
    assert "no gap" in sentences([STALL], watched(), {})


def test_a_camera_that_goes_dark_though_nothing_was_wrong_with_it_is_a_finding() -> None:
    assert "nothing was wrong" in sentences([], watched())
    assert "gate" not in sentences([STALL], watched())


def test_the_whole_server_gone_is_everybody_s_fault() -> None:
    words = sentences([replace(STALL, kind="off", camera="")], watched())
    assert "gate: off at 20 s was not noticed" in words
    assert "yard: off" not in words


def test_growing_memory_is_reported_and_a_step_at_the_start_is_not() -> None:
    assert "memory grew" in sentences([STALL], watched(grows=1.0))
    stepped = [replace(each, pss_bytes=10**7) if n < 15 else each for n, each in enumerate(watched())]
    assert sentences([STALL], stepped) == ""


@pytest.mark.parametrize(("process", "mb_h", "found"), [("ingest", 60.0, True), ("ingest", 6.0, False),
                                                        ("core", 60.0, True), ("media", 6.0, False)])  # fmt: skip
def test_a_process_that_grows_is_named_though_the_sum_hides_it(process: str, mb_h: float, *, found: bool) -> None:
    """Half an hour in which the sum stays level, as when something else on the machine maps the same libraries."""
    own = {"core": 70e6, "ingest": 300e6, "media": 50e6}
    samples = [
        replace(watched()[0], t=BEGUN + 10 * n, pss_bytes=500_000_000,
                own_bytes={**own, process: own[process] + 1e6 * mb_h * 10 * n / 3600})
        for n in range(180)
    ]  # fmt: skip
    verdict = evaluate([], BEGUN, samples, {}, 45.0)
    words = " | ".join(each.text for each in verdict.findings if "grew" in each.text)
    assert words.startswith(f"{process}'s own memory grew by") == found
    assert verdict.process_mb[process][1] == pytest.approx(mb_h, rel=0.01)


def test_a_neighbour_that_ends_is_no_growth_and_growth_is_told_by_kind() -> None:
    """Shared pages fall to those who are left: the proportional size rises, what is resident does not."""
    samples = [
        replace(watched()[0], t=BEGUN + 10 * n, pss_bytes=330_000_000 + 400_000 * n,
                kinds={"core": {"heap": 40_000_000, "anonymous": 40_000_000, "files": 70_000_000, "shared memory": 0}})
        for n in range(180)
    ]  # fmt: skip
    verdict = evaluate([], BEGUN, samples, {}, 45.0)
    assert not [each for each in verdict.findings if "memory grew" in each.text]
    for n, each in enumerate(samples):
        each.kinds["core"]["files"] += 200_000 * n
    verdict = evaluate([], BEGUN, samples, {}, 45.0)
    assert [each.text for each in verdict.findings if each.text.startswith("memory grew")]
    assert verdict.kinds_mb_h["core"] == pytest.approx({"heap": 0, "anonymous": 0, "files": 72, "shared memory": 0})


def test_a_record_s_report_names_growth_by_process_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    record = SoakRecord(path, SETTINGS)
    record.begin(BEGUN)
    for n, each in enumerate(watched()):
        kinds = {"heap": 10**7 * 4, "anonymous": 10**7 * 3, "files": 10**7, "shared memory": 1000 * n}
        record.add_sample(replace(each, own_bytes={"core": 7 * 10**7}, kinds={"core": kinds}))
    record.add_gaps(BEGUN + 120, {"yard": [GAP]})
    again = SoakRecord(path, SETTINGS)
    report = told(again.judge([STALL], 45.0), again, [STALL])
    assert (
        "core: 70 MB of its own, +0.0 MB an hour; heap +0.0; anonymous +0.0; files +0.0; shared memory +3.6" in report
    )


def test_a_sandbox_that_comes_and_goes_is_weighed_while_it_is_there_and_warming_up_is_not_judged() -> None:
    own = [{"core": 70_000_000, **({"media": 50_000_000} if n % 3 else {})} for n in range(180)]
    samples = [replace(watched()[0], t=BEGUN + 10 * n, pss_bytes=500_000_000, own_bytes=own[n]) for n in range(180)]
    for n in range(60):
        samples[n].own_bytes["core"] = 30_000_000 + 600_000 * n
    assert not [each for each in evaluate([], BEGUN, samples, {}, 45.0).findings if "grew" in each.text]


def test_the_slope_is_not_led_by_outliers() -> None:
    points = [(float(n), 2.0 * n + (500 if n % 10 == 0 else 0)) for n in range(100)]
    assert abs(slope(points) - 2.0) < 0.2
    assert abs(slope([(float(n), 2.0 * n) for n in range(5000)]) - 2.0) < 1e-9


def test_a_plan_is_its_seed_s_and_leaves_time_to_recover() -> None:
    cameras = [f"cam{k}" for k in range(8)]
    plan = make(cameras, 7200.0, LONG, seed=1)
    assert plan == make(cameras, 7200.0, LONG, seed=1) != make(cameras, 7200.0, LONG, seed=2)
    assert {fault.kind for fault in plan} == {*LASTING, *AT_ONCE, "off"}
    assert all(fault.end_s + LONG.recover_s <= 7200 for fault in plan)
    for camera in cameras:
        own = [fault for fault in plan if fault.camera in ("", camera)]
        assert len(own) > 20
        for one, other in pairwise(own):
            assert one.end_s + LONG.recover_s <= other.start_s


def test_a_minute_is_enough_for_some_faults() -> None:
    plan = make(["cam0", "cam1"], 60.0, SHORT, seed=5)
    assert {fault.camera for fault in plan} == {"cam0", "cam1"}
    assert any(fault.kind in LASTING for fault in plan)


def test_a_recorder_that_gives_up_is_read_in_the_log_once() -> None:
    log = (
        "12:10:41 info    core: alert on cam2: seen (person)\n"
        "12:10:41 warning ingest.recorder: camera cam0: recording is paused: invalid argument\n"
        "12:11:45 warning ingest.recorder: camera cam0: recording is paused: invalid argument (and 8 times more)\n"
    )
    (found,) = log_findings(log)
    assert found.text == "the log says: ingest.recorder: camera cam0: recording is paused: invalid argument"


SETTINGS = {"hours": 1.0, "seed": 7}


def played(record: SoakRecord, seconds: tuple[int, int], *, shown: bool = True, gaps_at: int | None = None) -> None:
    """A part of a plan whose stall is from 20 to 40 s; its gaps are asked for at `gaps_at`, or at its end."""
    part = record.begin(BEGUN + seconds[0])
    for each in watched(not_live=(22.0, 42.0) if shown else (0.0, 0.0))[slice(*seconds)]:
        record.add_sample(replace(each, t=each.t - BEGUN + part.begun_t))
    at = seconds[1] if gaps_at is None else gaps_at
    record.add_gaps(part.begun_t + at, {"yard": [{**GAP, "t_start": part.begun_t + 20, "t_end": part.begun_t + 41}]})


def test_a_soak_that_was_cut_goes_on_where_it_was_and_reports_both_parts(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    first = SoakRecord(path, SETTINGS)
    played(first, (0, 100))
    with path.open("a") as file:
        file.write('{"sample": {"t": 50')  # the power went
    again = SoakRecord(path, SETTINGS)
    assert again.played_s == 99.0
    assert again.begin(BEGUN + 9000).from_s == 99.0
    assert again.parts[1].begun_t == BEGUN + 9000 - 99, "its faults come when the plan has them"
    for n in range(99, 119):
        again.add_sample(replace(watched()[n], t=BEGUN + 9000 + n - 99))
    again.add_gaps(BEGUN + 9020, {})
    again.end("12:11:45 warning ingest.recorder: camera cam0: recording is paused: the disk is full\n")
    verdict = SoakRecord(path, SETTINGS).judge([STALL], 45.0)
    assert (verdict.noticed_s, verdict.recovered_s) == ([2.0], [2.0])
    assert [each.text for each in verdict.findings] == [
        "the log says: ingest.recorder: camera cam0: recording is paused: the disk is full"
    ]


def test_only_what_was_seen_from_beginning_to_end_is_judged(tmp_path: Path) -> None:
    record = SoakRecord(None, SETTINGS)
    played(record, (0, 60), shown=False, gaps_at=50)
    words = " ".join(each.text for each in record.judge([STALL], 45.0).findings)
    assert "stall at 20 s" not in words, "it was cut before the stall could be recovered from"
    seen = SoakRecord(None, SETTINGS)
    played(seen, (0, 100), shown=False)
    assert "was not noticed" in " ".join(each.text for each in seen.judge([STALL], 45.0).findings)


def test_a_record_of_another_soak_is_refused(tmp_path: Path) -> None:
    played(SoakRecord(tmp_path / "soak.jsonl", SETTINGS), (0, 20))
    with pytest.raises(OtherSoak, match="name another file"):
        SoakRecord(tmp_path / "soak.jsonl", {**SETTINGS, "seed": 8})


@pytest.mark.parametrize("text", ["notes of mine\n", "[1]\n", '{"hours": 1}\n', '{"settings": {"ho', "\xff\xfe\n"])
def test_a_file_that_is_no_record_is_refused_and_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnusableRecord, match=r"notes\.txt is no record of a soak: name another file, or remove it"):
        SoakRecord(path, SETTINGS)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("damaged", ['{"sample": {"t": 50', "\0\0\0", "3", '{"sample": {"who": 1}}', '{"sample": 4}'])
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(damaged: str, tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    played(SoakRecord(path, SETTINGS), (0, 20))
    lines = path.read_text().splitlines()
    lines[5] = damaged
    kept = "\n".join(lines) + "\n"
    path.write_text(kept)
    with pytest.raises(UnusableRecord, match=r"soak\.jsonl: line 6 is damaged: name another file, or remove that line"):
        SoakRecord(path, SETTINGS)
    assert path.read_text() == kept
    path.write_text("\n".join(lines[:5]) + "\n")
    assert len(SoakRecord(path, SETTINGS).parts[0].samples) == 3, "as the message says"


def test_a_kill_while_a_torn_line_is_removed_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "soak.jsonl"
    played(SoakRecord(path, SETTINGS), (0, 20))
    whole = path.read_text()
    path.write_text(whole + '{"sample": {"t": 50')

    def killed(self: Path, *_: object, **__: object) -> int:
        with self.open("w") as file:
            file.write('{"sett')
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            SoakRecord(path, SETTINGS)
    assert len(SoakRecord(path, SETTINGS).parts[0].samples) == 20
    assert path.read_text() == whole


def test_a_record_without_a_part_has_nothing_to_judge(tmp_path: Path) -> None:
    SoakRecord(tmp_path / "soak.jsonl", SETTINGS)
    with pytest.raises(UnusableRecord, match="nothing was played"):
        SoakRecord(tmp_path / "soak.jsonl", SETTINGS).judge([STALL], 45.0)
