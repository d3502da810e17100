"""When an engine wants to see more, what it is then shown, and what it is told of cut-outs and clips."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from test_engines import BOX, case, escalation, judged, openai, run, second_look

from appliance import wire
from appliance.base.clock import SystemClock
from cloud_worker.evidence import IN_PROCESS, EvidenceFile, MediaAbsent, MediaRefused, choose_files
from cloud_worker.judge import Engine, Judge, JudgeCase
from cloud_worker.prompt import alert_facts
from tests.servers.openai_stub import OpenAiStub, kinds_shown, openai_stub
from tests.servers.site import evidence_image, ref_of
from tests.support.numbered_footage import encoded_footage, number, record

ALL: tuple[wire.Need, ...] = ("crop", "frame", "clip")


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiStub]:
    with openai_stub() as stub:
        yield stub


@pytest.fixture
def stub(server: OpenAiStub) -> OpenAiStub:
    server.mode, server.requests, server.complaints = "unsure", [], []
    return server


Maker = Callable[[OpenAiStub], Engine]
UNSURE: list[Maker] = [openai, lambda stub: second_look(0.2)]
IDS = ["openai", "redetect"]


def webp(seed: int = 1) -> bytes:
    pixels = cv2.imdecode(np.frombuffer(evidence_image(seed), np.uint8), cv2.IMREAD_COLOR)
    return cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 75])[1].tobytes()


@pytest.mark.parametrize("make", UNSURE, ids=IDS)
@pytest.mark.parametrize(("can", "need"), [(ALL, "crop"), (("frame", "clip"), "frame"), ((), None)])
def test_who_is_unsure_asks_for_the_cheapest_thing_that_is_offered(
    make: Maker, stub: OpenAiStub, can: tuple[wire.Need, ...], need: str | None
) -> None:
    verdict = judged(make(stub), case(webp(), kind="crop", can=can, step=1))
    assert (verdict.decision, verdict.need, verdict.step) == ("unsure", need, 1)


@pytest.mark.parametrize("make", UNSURE, ids=IDS)
def test_without_an_image_it_is_asked_for_and_nobody_is_bothered(make: Maker, stub: OpenAiStub) -> None:
    verdict = judged(make(stub), JudgeCase(escalation=escalation(can=ALL), files=(), decoder=IN_PROCESS))
    assert (verdict.decision, verdict.need) == ("unsure", "crop")
    assert stub.requests == []


def test_all_files_are_asked_for_before_the_first_has_come() -> None:
    """On a long way to the broker they would else take as many round trips as there are files."""
    pictures = [evidence_image(n) for n in range(3)]
    refs = [ref_of(data, t=float(n)) for n, data in enumerate(pictures)]
    asked: list[str] = []
    all_asked = asyncio.Event()

    async def fetch(ref: wire.MediaRef, left: int) -> EvidenceFile:
        asked.append(ref.id)
        if len(asked) == len(refs):
            all_asked.set()
        await asyncio.wait_for(all_asked.wait(), 10)
        if ref is refs[1]:
            raise MediaAbsent("it is not there")
        return EvidenceFile(ref, pictures[refs.index(ref)])

    judge = Judge(second_look(0.9), "w", SystemClock(), IN_PROCESS)
    found = asyncio.run(judge.fetch_case(fetch, escalation(media=tuple(reversed(refs)))))
    assert [each.ref for each in found.files] == [refs[0], refs[2]], "in order of time"
    assert (found.lost, found.absent) == (("it is not there",), 1)


def test_a_clip_is_asked_for_by_who_can_look_at_it(stub: OpenAiStub) -> None:
    question = case(webp(), can=("clip",))
    assert judged(openai(stub), question).need == "clip"
    assert judged(second_look(0.2), question).need is None


def test_more_evidence_does_not_help_who_does_not_know_the_object_or_talks_nonsense(stub: OpenAiStub) -> None:
    assert judged(second_look(0.9), case(label="badger", can=ALL)).need is None
    stub.mode = "prose"
    assert judged(openai(stub), case(can=ALL)).need is None


@pytest.mark.parametrize("make", [openai, lambda stub: second_look(0.9)], ids=IDS)
def test_who_is_sure_asks_for_nothing(make: Maker, stub: OpenAiStub) -> None:
    stub.mode = "good"
    verdict = judged(make(stub), case(webp(), kind="crop", can=ALL))
    assert verdict.decision in ("confirmed", "rechecked")
    assert verdict.need is None


def test_a_crop_is_looked_at_once_where_its_own_box_is() -> None:
    engine = second_look(0.9)
    assert run(engine, case(webp(), kind="crop", box=BOX)).decision == "rechecked"
    assert len(engine._detector.seen) == 1  # type: ignore[attr-defined]
    elsewhere = run(second_look(0.9), case(webp(), kind="crop", box=(0.7, 0.0, 0.9, 0.2)))
    assert elsewhere.decision == "rejected", "an object beside the flagged place is another one"


def test_the_model_is_told_which_part_of_the_image_a_crop_is() -> None:
    region, box = (0.1, 0.2, 0.3, 0.6), (0.25, 0.25, 0.75, 0.75)
    crop = ref_of(b"x", 9.0, "crop", box).model_copy(update={"region": region})
    said = json.loads(
        alert_facts(escalation(t=10), [(9.0, crop), (10.5, ref_of(b"y", 10.5, box=None))]).split("\n", 1)[1]
    )
    assert said["pictures"] == [
        {"picture": 1, "kind": "crop", "seconds_after_event": -1.0, "part": list(region), "object": list(box)},
        {"picture": 2, "kind": "frame", "seconds_after_event": 0.5},
    ]


def fetched(count: int, kind: str) -> list[EvidenceFile]:
    return [EvidenceFile(ref_of(b"%d%s" % (n, kind.encode()), float(n), kind), b"") for n in range(count)]


@pytest.mark.parametrize(
    ("crops", "frames", "clips", "room", "shown"),
    [(2, 0, 0, 4, "cc"), (2, 1, 0, 4, "fcc"), (3, 2, 0, 4, "ffcc"), (3, 1, 0, 1, "f"), (2, 1, 1, 4, "f+clip"),
     (2, 0, 1, 4, "c+clip"), (2, 1, 1, 1, "+clip"), (0, 8, 0, 4, "ffff")],
)  # fmt: skip
def test_what_was_asked_for_last_is_shown_first(crops: int, frames: int, clips: int, room: int, shown: str) -> None:
    pictures = [*fetched(crops, "crop"), *fetched(frames, "frame"), *fetched(clips, "clip")]
    stills, moving = choose_files(pictures, room)
    said = "".join(each.ref.kind[0] for each in stills) + ("+clip" if moving else "")
    assert said == shown


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> EvidenceFile:
    folder = tmp_path_factory.mktemp("clip")
    data = (folder / record(folder, encoded_footage(0, 40), 100.0).path).read_bytes()
    ref = ref_of(data, 100.0, "clip", None).model_copy(update={"mime": "video/mp4"})
    return EvidenceFile(ref, data)


def test_images_of_a_clip_are_spread_over_it_and_keep_the_cameras_time(clip: EvidenceFile) -> None:
    shown = IN_PROCESS.frames(clip, 3, 4096)
    assert [number(each.pixels) for each in shown] == [0, 20, 39]
    assert [each.t for each in shown] == pytest.approx([100.0, 102.0, 103.9], abs=0.11)
    assert len(IN_PROCESS.frames(clip, 1, 4096)) == 1
    assert len(IN_PROCESS.frames(clip, 500, 4096)) == 40


@pytest.mark.parametrize("data", [b"", b"no video", b"\0" * 5000])
def test_a_clip_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(MediaRefused):
        IN_PROCESS.frames(EvidenceFile(ref_of(b"x", kind="clip"), data), 3, 4096)


def test_a_model_sees_a_clip_as_images_in_the_order_of_time(
    clip: EvidenceFile, stub: OpenAiStub, tmp_path: Path
) -> None:
    stub.mode = "good"
    crop = EvidenceFile(ref_of(webp(), 101.0, "crop", BOX), webp())
    question: Any = JudgeCase(escalation=escalation(t=101.0), files=(crop, clip), decoder=IN_PROCESS)
    opinion = run(openai(stub), question)
    assert kinds_shown(stub.requests[0]) == ["clip", "crop", "clip", "clip"]
    assert opinion.support[0].media == clip.ref.id
    assert stub.complaints == []
    assert list(tmp_path.iterdir()) == []
