"""The whole loop without a cloud: answers recorded once, played back, byte for byte, and never made up."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from test_replay_recording import NOON, T0, Box

from appliance import wire
from appliance.__main__ import main
from appliance.base import json_lines
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import UplinkError, UsageError
from appliance.config import SiteConfig
from appliance.core.core_settings import CoreStores
from appliance.detect import detector_loader
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.lab.cassette_command import cassette_from_store
from appliance.lab.replay_command import ReplaySelection, replay_targets
from appliance.lab.replay_diff_command import diff_texts
from appliance.lab.replay_verdicts import CassetteRecorder
from appliance.replay.cassette_file import CassettePlayer, CassetteWriter
from appliance.replay.replay_diff import compare_logs
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input
from appliance.replay.replay_report import count_decisions, format_time
from appliance.replay.replay_result import ReplayResult, read_log
from appliance.replay.replay_resume import open_log
from appliance.replay.replay_runner import play as play_show
from appliance.replay.verdict_source import OracleJudge, OracleOpinion, OracleSettings
from appliance.store.alerts import AlertStore
from appliance.store.escalations import EscalationRow
from appliance.store.meter import Meter
from appliance.types import Detections, FrameBoxes, LogVerdict, StreamHeader
from tests.support.block_footage import BrightBlock
from tests.support.core_harness import make_core
from tests.support.scripted_verdicts import ScriptedCloud, after_header, asking, play, visits


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return visits(tmp_path_factory.mktemp("films") / "visits.mp4")


def record(clip: Path, cassette: Path, *script: str | None, config: SiteConfig | None = None) -> bytes:
    """The log of a replay that asked."""
    recorder = CassetteRecorder(cassette, ScriptedCloud(*script), ManualClock())
    try:
        return play(clip, config or asking(), recorder)[1]
    finally:
        recorder.close()


@pytest.fixture(scope="module")
def recorded_once(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cassette") / "c.jsonl"
    record(clip, path, "confirmed", "rejected")
    return path


@pytest.fixture
def cassette(recorded_once: Path, tmp_path: Path) -> Path:
    return shutil.copy(recorded_once, tmp_path / "c.jsonl")


def lines(log: bytes, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.splitlines()) if line["type"] == kind]


def test_the_replay_of_a_cassette_is_the_log_of_its_recording_five_times_at_every_speed(
    clip: Path, tmp_path: Path
) -> None:
    recorded = record(clip, tmp_path / "c.jsonl", "confirmed", "rejected")
    logs = {
        play(clip, asking(), CassettePlayer(tmp_path / "c.jsonl"), speed=speed, workers=workers)[1]
        for speed, workers in ((None, 1), (1.0, 1), (10.0, 1), (None, 2), (None, 1))
    }
    (log,) = logs
    assert after_header(log) == after_header(recorded)
    assert json.loads(log.splitlines()[0])["settings"]["verdicts"]["source"] == "cassette"


def test_a_verdict_is_logged_when_it_would_have_arrived_and_settles_its_alert(clip: Path, cassette: Path) -> None:
    result, log = play(clip, asking(), CassettePlayer(cassette))
    come = [round(route.t + 2.5, 3) for route in result.routes]
    assert [(each.t, each.decision, each.engine, each.model, each.step) for each in result.verdicts] == [
        (come[0], "confirmed", "scripted", "vlm", 0),
        (come[1], "rejected", "scripted", "vlm", 0),
    ]
    assert [alert.verdict for alert in result.alerts] == ["confirmed", "rejected"]
    assert [line["verdict"] for line in lines(log, "alert")] == ["confirmed", "rejected"]
    reported = [json.loads(line) for line in log.splitlines()]
    place = next(n for n, line in enumerate(reported) if line["type"] == "verdict")
    assert reported[place - 1]["t"] < come[0] <= reported[place + 1]["t"], "before the first look at which it had come"
    assert result.unanswered == 0


def test_a_verdict_that_arrives_after_the_end_is_logged_all_the_same(clip: Path, tmp_path: Path) -> None:
    recorder = CassetteRecorder(
        tmp_path / "c.jsonl", ScriptedCloud("confirmed", "rejected", seconds=60.0), ManualClock()
    )
    _, log = play(clip, asking(), recorder)
    recorder.close()
    assert [line["type"] for line in map(json.loads, log.splitlines())][-3:] == ["verdict", "verdict", "end"]
    assert [line["verdict"] for line in lines(log, "alert")] == ["confirmed", "rejected"]


def test_an_escalation_that_is_not_on_the_cassette_has_no_verdict_and_is_reported(
    clip: Path, cassette: Path, tmp_path: Path
) -> None:
    config = asking()
    gate = config.cameras["gate"]
    other = gate.rules[0].model_copy(update={"ask": "Is it the postman?"})
    config = config.model_copy(
        update={"cameras": {"gate": gate.model_copy(update={"rules": (other, *gate.rules[1:])})}}
    )
    result, log = play(clip, config, CassettePlayer(cassette))
    assert (result.unanswered, result.verdicts) == (2, ())
    assert [alert.verdict for alert in result.alerts] == [None, None]
    assert b'"verdict"' not in after_header(log)
    nearest, _ = play(clip, config, CassettePlayer(cassette, "nearest"))
    assert [(each.decision, each.match) for each in nearest.verdicts] == [
        ("confirmed", "nearest"),
        ("rejected", "nearest"),
    ]
    assert nearest.unanswered == 0


def test_without_answers_a_log_is_what_it_always_was(clip: Path) -> None:
    _, log = play(clip, asking(), None)
    header = json.loads(log.splitlines()[0])
    assert (header["version"], "verdicts" in header["settings"]) == (2, False)
    assert not lines(log, "verdict")
    assert all("verdict" not in line for line in lines(log, "alert"))


def test_a_judge_that_wants_to_see_more_is_shown_more_and_its_last_word_counts(clip: Path, tmp_path: Path) -> None:
    config = asking()
    config = config.model_copy(update={"escalation": config.escalation.model_copy(update={"first": "crops"})})
    cloud = ScriptedCloud("need:frame", "confirmed", "rejected")
    recorder = CassetteRecorder(tmp_path / "c.jsonl", cloud, ManualClock())
    recorded = play(clip, config, recorder)
    recorder.close()
    kinds = [[ref.kind for ref in asked.media] for asked in cloud.asked]
    assert kinds == [["crop", "crop"], ["crop", "crop", "frame"], ["crop", "crop"]]
    assert [(asked.step, count) for asked, count in zip(cloud.asked, cloud.files, strict=True)] == [
        (0, 2),
        (1, 1),
        (0, 2),
    ], "what was sent is not sent again"
    result, log = play(clip, config, CassettePlayer(tmp_path / "c.jsonl"))
    first, second = result.verdicts
    assert (first.decision, first.step, second.step) == ("confirmed", 1, 0)
    assert first.t == pytest.approx(result.routes[0].t + 5.0), "both steps took 2.5 s"
    assert first.more_bytes > 1000
    assert result.sent_bytes == sum(route.cost.bytes for route in result.routes) + first.more_bytes
    assert after_header(log) == after_header(recorded[1])


def test_a_judge_that_needs_what_no_replay_has_stays_unsure_and_says_why(clip: Path, tmp_path: Path) -> None:
    log = record(clip, tmp_path / "c.jsonl", "need:clip", "confirmed")
    first = lines(log, "verdict")[0]
    assert first["decision"] == "unsure"
    assert first["reason"].endswith("It asked for a clip, which could not be had.")


def test_recording_asks_only_what_is_not_on_the_cassette(clip: Path, cassette: Path, tmp_path: Path) -> None:
    before = cassette.read_bytes()
    cloud = ScriptedCloud()
    recorder = CassetteRecorder(cassette, cloud, ManualClock())
    result, _ = play(clip, asking(), recorder)
    recorder.close()
    assert (cloud.asked, len(result.verdicts), cassette.read_bytes()) == ([], 2, before)
    cassette.write_bytes(before.rsplit(b"\n", 2)[0] + b"\n")
    recorder = CassetteRecorder(cassette, cloud := ScriptedCloud("rejected"), ManualClock())
    play(clip, asking(), recorder)
    recorder.close()
    assert (len(cloud.asked), recorder.counts.known) == (1, 1)
    assert cloud.asked[0].site == "replay-test", "never under the site's own name: a live box would get the verdict"


def test_another_judge_on_the_same_cassette_is_refused(clip: Path, cassette: Path) -> None:
    cassette.write_bytes(cassette.read_bytes().rsplit(b"\n", 2)[0] + b"\n")
    recorder = CassetteRecorder(cassette, ScriptedCloud("confirmed", model="other"), ManualClock())
    with pytest.raises(UsageError, match=r"recorded with scripted vlm, prompt 1, and scripted other.*another file"):
        play(clip, asking(), recorder)


def test_a_cloud_that_never_answers_is_not_waited_for_again_and_again(clip: Path, tmp_path: Path) -> None:
    cloud = ScriptedCloud(None, "confirmed")
    with pytest.raises(UplinkError, match="no verdict came in time on 1 question in a row: is a worker running"):
        play(clip, asking(), CassetteRecorder(tmp_path / "c.jsonl", cloud, ManualClock()))
    assert len(cloud.asked) == 1
    recorder = CassetteRecorder(tmp_path / "d.jsonl", ScriptedCloud("confirmed", None), ManualClock())
    result, _ = play(clip, asking(), recorder)
    assert (len(result.verdicts), result.unanswered, recorder.counts.silent) == (1, 1, 1)


def run(clip: Path, log: Path, cassette: Path, *, resume: bool = False) -> tuple[ReplayResult, ...]:
    config, bright_block = asking(), BrightBlock()
    replay_plan = ReplayPlan(
        (clip_input(clip, config.for_decisions(), "gate", bright_block),),
        config.for_decisions(),
        bright_block,
        verdict_source=CassettePlayer(cassette),
    )
    with open_log(log, replay_plan.header(), resume=resume) as file:
        if file.finished is not None:
            return file.finished
        results = play_show(replay_plan, file.sink, ReplayOptions(ManualClock(), detections=file.detections))
        file.complete()
        return results


def test_a_killed_replay_with_verdicts_continues_and_a_finished_one_is_read(
    clip: Path, cassette: Path, tmp_path: Path
) -> None:
    (first,) = run(clip, tmp_path / "x.jsonl", cassette)
    whole = (tmp_path / "x.jsonl").read_bytes()
    for share in (0.3, 0.6, 0.95):
        (tmp_path / "x.jsonl").write_bytes(whole[: int(len(whole) * share)])
        run(clip, tmp_path / "x.jsonl", cassette, resume=True)
        assert (tmp_path / "x.jsonl").read_bytes() == whole
    (again,) = run(clip, tmp_path / "x.jsonl", cassette, resume=True)
    for name in ("verdicts", "unanswered", "answered_by", "sent_bytes", "alerts"):
        assert getattr(again, name) == getattr(first, name), name


def test_a_log_is_not_continued_with_another_cassette(clip: Path, cassette: Path, tmp_path: Path) -> None:
    run(clip, tmp_path / "x.jsonl", cassette)
    log = (tmp_path / "x.jsonl").read_bytes()
    (tmp_path / "x.jsonl").write_bytes(log[: len(log) // 2])
    record(clip, tmp_path / "d.jsonl", "rejected", "rejected")
    with pytest.raises(UsageError, match=r"verdicts by a cassette of scripted vlm.* → a cassette of scripted vlm"):
        run(clip, tmp_path / "x.jsonl", tmp_path / "d.jsonl", resume=True)


def test_a_diff_names_the_verdict_that_changed(clip: Path, cassette: Path, tmp_path: Path) -> None:
    record(clip, tmp_path / "d.jsonl", "rejected", "rejected")
    run(clip, tmp_path / "a.jsonl", cassette)
    run(clip, tmp_path / "b.jsonl", tmp_path / "d.jsonl")
    found = compare_logs(read_log(tmp_path / "a.jsonl"), read_log(tmp_path / "b.jsonl"))
    texts = list(diff_texts(found))
    assert not found.same
    assert texts[0] == "1 verdict changed"
    at = format_time(found.verdicts[0].t)
    assert f"the verdict on alert intruder, in, loiterer at {at} changed from confirmed to rejected" in texts
    (tmp_path / "c.log").write_bytes(play(clip, asking(), None)[1])
    bare = list(diff_texts(compare_logs(read_log(tmp_path / "c.log"), read_log(tmp_path / "a.jsonl"))))
    assert "note: only a.jsonl has verdicts" in bare


Vedette = Callable[..., tuple[int, str, str]]


@pytest.fixture
def vedette(tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Vedette:
    """Runs the command in a folder with site.yaml (no uplink) and visits.mp4."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(detector_loader, "load", lambda settings: BrightBlock())
    plain = asking().model_dump(mode="json", include={"cameras", "detector"}, exclude_none=True)
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({**plain, "escalation": {"first": "frames"}}))
    (tmp_path / "visits.mp4").write_bytes(clip.read_bytes())

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments])
        texts = capsys.readouterr()
        return code, texts.out, texts.err

    return run


REPLAY = ("replay", "visits.mp4", "--config", "site.yaml")


def test_the_command_plays_a_cassette_and_prints_its_verdicts(vedette: Vedette, cassette: Path) -> None:
    code, out, _ = vedette(*REPLAY, "--verdicts", str(cassette), "--log", "x.jsonl")
    assert code == 0
    assert "verdicts by a cassette of scripted vlm, prompt 1: 1 confirmed, 1 rejected" in " ".join(out.split())
    code, out, _ = vedette("cassette", "check", str(cassette))
    assert (code, "2 verdicts on 2 different questions (1 confirmed, 1 rejected)" in out) == (0, True)


def test_the_command_reports_what_is_missing_and_fails(vedette: Vedette, cassette: Path) -> None:
    cassette.write_bytes(cassette.read_bytes().rsplit(b"\n", 2)[0] + b"\n")
    code, out, _ = vedette(*REPLAY, "--verdicts", str(cassette))
    assert code == 1
    assert "1 of 2 questions have no answer on this cassette: record again with" in " ".join(out.split())
    code, out, _ = vedette(*REPLAY, "--verdicts", str(cassette), "--match", "nearest")
    told = " ".join(out.split())
    assert (code, "1 of 2 questions have no answer on this cassette: what is copied from a store" in told) == (1, True)
    assert "--match nearest" not in told
    code, out, _ = vedette(*REPLAY, "--verdicts", str(cassette), "--json")
    assert (code, json.loads(out)["unanswered"], len(json.loads(out)["verdicts"])) == (1, 1, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--verdicts", "none.jsonl"), "none.jsonl cannot be read"),
        (("--verdicts", "visits.mp4"), "visits.mp4 is not a verdict cassette"),
        (("--verdicts", "stand-in"), "say which, --verdicts stand-in:truth="),
        (("--record-verdicts", "c.jsonl"), "who is to be asked? Name the broker: --cloud"),
        (("--record-verdicts", "c.jsonl", "--cloud", "http://x"), "--cloud http://x: write an address such as nats"),
        (("--cloud", "nats://127.0.0.1:1"), "say where to with --record-verdicts"),
        (("--verdicts", "c.jsonl", "--record-verdicts", "c.jsonl"), "use one of the two"),
        (("--match", "nearest"), "--match nearest is about a cassette"),
    ],
)
def test_wrong_use_is_one_sentence(vedette: Vedette, options: tuple[str, ...], sentence: str) -> None:
    code, _, error = vedette(*REPLAY, *options)
    assert (code, sentence in error) == (2, True), error


def test_an_oracle_answers_from_a_scenario_and_every_line_names_it(vedette: Vedette, tmp_path: Path) -> None:
    scenario = {
        "clip": "visits.mp4",
        "site": "site.yaml",
        "expect": [{"rule": "intruder", "at": 2.8}],
        "never": [{"rule": "intruder", "between": [15, 30], "note": "a fox"}],
    }
    (tmp_path / "door.scenario.yaml").write_text(yaml.safe_dump(scenario))
    code, out, _ = vedette(*REPLAY, "--verdicts", "stand-in:truth=door.scenario.yaml", "--log", "x.jsonl")
    texts = " ".join(out.split())
    assert code == 0
    assert "verdicts by stand-in (answers made from the truth): 1 confirmed, 1 rejected" in texts
    assert "Alerts (2), verdicts by stand-in (answers made from the truth)" in texts
    log = (tmp_path / "x.jsonl").read_bytes()
    assert {line["engine"] for line in lines(log, "verdict")} == {"stand-in"}
    assert "a fox" in lines(log, "verdict")[1]["reason"]
    vedette(*REPLAY, "--verdicts", "stand-in:error=1,truth=door.scenario.yaml", "--log", "y.jsonl")
    code, out, _ = vedette("replay", "diff", "x.jsonl", "y.jsonl")
    assert "changed from confirmed to rejected" in out
    assert "note: the verdicts of y.jsonl are by stand-in" in out
    assert "they measure nothing" in out


def test_an_oracle_turns_only_a_decision_round(clip: Path) -> None:
    class Truth:
        def about(self, escalation: object) -> OracleOpinion:
            return OracleOpinion(next(opinions), "the truth")

    opinions = iter(["unsure", "confirmed"])
    result, _ = play(clip, asking(), OracleJudge(Truth(), OracleSettings(error=1.0)))
    assert [(each.decision, each.reason) for each in result.verdicts] == [
        ("unsure", "stand-in: the truth"), ("rejected", "stand-in: the truth; turned round on purpose"),
    ]  # fmt: skip


@pytest.mark.parametrize("first", ["frames", "crops"])
def test_the_verdicts_in_an_appliance_s_store_answer_the_replay_of_its_recording(tmp_path: Path, first: str) -> None:
    """Boxes through the core, evidence by its maker, verdicts into the store; then out of the store and replayed.

    A question that begins with cut-outs is answered with the wish to see the whole picture, and only then settled.
    """
    box = Box(tmp_path / "data")
    box.record(visits(tmp_path / "one.mp4", (1.0,), 12.0), T0, "r1")
    config = asking().model_copy(update={"storage": box.config().storage})
    config = config.model_copy(update={"escalation": config.escalation.model_copy(update={"first": first})})
    recording = ReplaySelection(cameras=("gate",), t_from=NOON)
    alerts = feed(config, box, run_box(config, recording))
    maker = EvidenceMaker(box.db, box.root, config.for_decisions(), ManualClock(T0))
    steps = ["frame", None] if first == "crops" else [None]
    for step, need in enumerate(steps):
        maker.run_once()
        asked = escalation_of(alerts)
        assert (asked.state, asked.step) == ("ready", step)
        verdict = wire.Verdict(
            escalation=asked.id, site=asked.site, alert=asked.alert, decision="unsure" if need else "rejected",
            reason="A fox.", engine="openai", model="vlm", seconds=1.0, timings={"queue": 0.2, "model": 1.0},
            judged_t=asked.times.created_t + 1 + step, need=need, step=step,
        )  # fmt: skip
        assert alerts.take_verdict(verdict, asked.times.created_t + 4.0) == ("more" if need else "settled")
    box.db.close()
    copied = cassette_from_store(box.root, tmp_path / "c.jsonl", float("-inf"), float("inf"), SystemClock())
    assert (copied.escalations, copied.lines) == (1, len(steps))
    player = CassettePlayer(tmp_path / "c.jsonl")
    replay_plan = replay_targets(recording, config.for_replay(), Path("site.yaml"))[0].plan(
        config.for_replay(), BrightBlock()
    )
    (result,) = play_show(replace(replay_plan, verdict_source=player), None, ReplayOptions(ManualClock()))
    (found,) = result.verdicts
    assert (found.decision, found.reason, found.match, found.step) == ("rejected", "A fox.", "exact", len(steps) - 1)
    assert found.t == pytest.approx(result.routes[0].t + 4.0, abs=1.0)
    wider = replay_targets(recording, config.for_replay(), Path("site.yaml"))[0].plan(config.for_replay(), WiderBlock())
    ways: list[tuple[Literal["exact"] | None, list[str]]] = [(None, ["nearest"]), ("exact", [])]
    for match, how in ways if first == "crops" else [(None, ["exact"])]:
        playing = replace(wider, verdict_source=CassettePlayer(tmp_path / "c.jsonl", match))
        (other,) = play_show(playing, None, ReplayOptions(ManualClock()))
        assert [each.match for each in other.verdicts] == how
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CassetteWriter, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            cassette_from_store(box.root, tmp_path / "half.jsonl", float("-inf"), float("inf"), SystemClock())
    assert not list(tmp_path.glob("*half*")), "half a cassette looks like a whole one"
    with pytest.raises(UsageError, match="is there already"):
        cassette_from_store(box.root, tmp_path / "c.jsonl", float("-inf"), float("inf"), SystemClock())
    with pytest.raises(UsageError, match="holds no verdict on anything that was asked in that time"):
        cassette_from_store(box.root, tmp_path / "d.jsonl", 0.0, 1.0, SystemClock())


def killed(*_: object) -> None:
    raise KeyboardInterrupt


class WiderBlock(BrightBlock):
    """Another network: its boxes, and what is cut out by them, are a little wider."""

    def _look(self, picture: NDArray[np.uint8]) -> Detections:
        found = super()._look(picture)
        return replace(found, boxes=(found.boxes + np.array([-0.02, -0.02, 0.02, 0.02])).astype(np.float32))


def test_the_verdicts_of_a_judge_that_confirms_nothing_are_counted() -> None:
    said = LogVerdict(
        camera="gate", alert="a", escalation="e", t=1.0, decision="rechecked", reason="", confidence=None,
        kind="detector", engine="redetect", model="m", prompt_version="", step=0, match="nearest", more_bytes=0,
    )  # fmt: skip
    assert count_decisions((said, replace(said, decision="rejected"))) == "1 rejected, 1 rechecked"


def run_box(config: SiteConfig, asked: ReplaySelection) -> list[Any]:
    """The boxes of a bare replay of the recording."""
    log = io.BytesIO()
    (item,) = replay_targets(asked, config.for_replay(), Path("site.yaml"))
    play_show(item.plan(config.for_replay(), BrightBlock()), log, ReplayOptions(ManualClock()))
    return [line for line in map(json_lines.decode_log, log.getvalue().splitlines()) if isinstance(line, FrameBoxes)]


def feed(config: SiteConfig, box: Box, boxes: list[FrameBoxes]) -> AlertStore:
    """The boxes through the core, as the ingest process would have told them."""
    db = box.db
    alerts = AlertStore(db)
    core = make_core(
        config,
        CoreStores.of(db, Meter(db, "r")),
        ManualClock(T0),
    )
    core.take(StreamHeader(camera="gate", clip="", model=BrightBlock.name, size=(320, 240), run="r1"))
    for line in boxes:
        core.take(replace(line, t=line.t + T0))
    core.close()
    return alerts


def escalation_of(alerts: AlertStore) -> EscalationRow:
    (row,) = alerts.page()
    detail = alerts.get(row.alert.id)
    assert detail is not None
    assert detail.escalation is not None
    return detail.escalation
