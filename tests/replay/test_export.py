"""Reviewed alerts as training data: from a box that lived through a film to what trainers read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
import yaml

from appliance import wire
from appliance.__main__ import main
from appliance.base.errors import PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError
from appliance.detect.detector import ObjectDetector
from appliance.lab import export_samples
from appliance.lab.export_command import (
    ChosenAlert,
    Exporter,
    ExportOptions,
    every_alert,
    export_settings,
    incidents,
    split_of,
)
from appliance.lab.export_folder import ExportReport
from appliance.router.router_maintenance import SILENT_RULE
from appliance.store.alerts import AlertStore
from appliance.store.reviews import ReviewStore
from appliance.store.silent_frames import SilentFrameStore
from appliance.store.storage_reader import StorageArchive
from models.train import dataset
from tests.support import small_disk as mounted
from tests.support.gate_site import FIRST, THIRD, config_of, live
from tests.support.recorded_site import LIFE_T0, Life
from tests.support.render_family import Once, our_eye
from tests.support.sample_rows import sample_verdict

ROOT = Path(__file__).parents[2]
USUAL = ExportOptions(format="coco", to=ROOT).per_alert


@pytest.fixture(scope="module")
def eye() -> Once:
    return our_eye()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, eye: Once) -> Path:
    """Three alerts of one film, one soon after the other, and a minute later the first two again."""
    return live(tmp_path_factory.mktemp("lived"), eye, 62, 32)


@pytest.fixture
def life(lived: Path, tmp_path: Path, eye: ObjectDetector) -> Iterator[Life]:
    """Of the first showing all three are reviewed: right, right, false alarm; of the second the first, as right."""
    root = tmp_path / "box"
    shutil.copytree(lived, root)
    life = Life(config_of(root), eye)
    life.clock.advance(400)
    alerts = life.all()
    for alert, review in zip(alerts, ("reviewed", "reviewed", "false_alarm", "reviewed"), strict=False):
        life.review(alert, review)  # type: ignore[arg-type]
    yield life
    life.db.close()


def export(life: Life, to: Path, **asked: Any) -> ExportReport:
    """Two pictures an alert, where it does not matter how many there are."""
    options = ExportOptions(**{"format": "coco", "to": to, "per_alert": 2, **asked})
    settings = export_settings(options, life.config.for_decisions())
    return Exporter(life.config.storage, settings, to).run()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def coco(folder: Path, split: str) -> Any:
    pycocotools = pytest.importorskip("pycocotools.coco", reason="pycocotools is in the dev extra")
    with contextlib.redirect_stdout(io.StringIO()):
        return pycocotools.COCO(str(folder / "annotations" / f"instances_{split}.json"))


def test_coco_as_pycocotools_reads_it(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "data-coco"
    report = export(life, to, per_alert=USUAL)
    assert report.alerts == {"right": 3, "false alarm": 1}
    assert report.left_out == {"not reviewed": 1}
    numbers = {"images": 0, "boxes": 0, "backgrounds": 0}
    wrong = life.all()[THIRD].id
    for split in ("train", "val"):
        read = coco(to, split)
        assert [each["name"] for each in read.loadCats(read.getCatIds())] == ["person", "car", "truck", "bus"]
        assert read.dataset["info"]["machine_made_labels"] is True
        assert "did not check whether a box is tight" in read.dataset["info"]["labels"]
        for image in read.loadImgs(read.getImgIds()):
            picture = cv2.imread(str(to / "images" / split / image["file_name"]))
            assert picture.shape[:2] == (image["height"], image["width"])
            boxes = read.loadAnns(read.getAnnIds(imgIds=image["id"]))
            assert bool(boxes) != image["background"] == (image["alert"] == wrong)
            for each in boxes:
                x, y, width, height = each["bbox"]
                assert min(x, y) >= -0.01
                assert min(width, height) > 0
                assert x + width <= image["width"] + 0.01
                assert y + height <= image["height"] + 0.01
                assert each["area"] == pytest.approx(width * height, abs=0.1 * (width + height) + 1)
                assert each["iscrowd"] == 0
            numbers["boxes"] += len(boxes)
            numbers["backgrounds"] += not boxes
            numbers["images"] += 1
    assert numbers == {
        "images": sum(report.pictures.values()), "boxes": report.boxes, "backgrounds": report.backgrounds,
    }  # fmt: skip
    assert 0 < report.backgrounds <= 6


def test_boxes_stand_where_people_truly_are(life: Life, tmp_path: Path) -> None:
    """The film is rendered, so it is known where everybody is: the labels are the detector's, and mostly right."""
    to = tmp_path / "data-coco"
    export(life, to, split=1.0, per_alert=USUAL)
    read = coco(to, "train")
    truth: dict[int, list[tuple[float, ...]]] = {}
    for line in (ROOT / "fixtures" / "clips" / "gate.gt.txt").read_text().splitlines():
        frame, _, *box = (float(cell) for cell in line.split(",")[:6])
        truth.setdefault(int(frame) - 1, []).append(tuple(box))
    first = {alert.id for alert in life.all()[:2]}
    overlaps = []
    for image in read.loadImgs(read.getImgIds()):
        if image["alert"] not in first:
            continue
        t = life_time(image) - LIFE_T0
        for each in read.loadAnns(read.getAnnIds(imgIds=image["id"])):
            best = max(overlap(each["bbox"], true) for true in truth[round(t * 15)])
            overlaps.append(best)
    assert len(overlaps) >= 12
    assert sum(value > 0.5 for value in overlaps) >= 0.9 * len(overlaps), overlaps


def life_time(image: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(image["date_captured"].replace("Z", "+00:00")).timestamp()


def overlap(a: list[float], b: tuple[float, ...]) -> float:
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def test_yolo_as_trainers_read_it(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "data-yolo"
    report = export(life, to, format="yolo", labels="car,person")
    data = yaml.safe_load((to / "data.yaml").read_text())
    assert (data["names"], data["nc"]) == ({0: "car", 1: "person"}, 2)
    images = labels = 0
    for split in ("train", "val"):
        folder = to / data[split]
        assert folder.is_dir()
        for image in folder.iterdir():
            file = Path(str(image).replace("/images/", "/labels/")).with_suffix(".txt")  # as trainers find it
            rows = [[float(cell) for cell in line.split()] for line in file.read_text().splitlines()]
            for number, x, y, width, height in rows:
                assert number in (0, 1)
                assert x - width / 2 >= -1e-6
                assert x + width / 2 <= 1 + 1e-6
                assert y - height / 2 >= -1e-6
                assert y + height / 2 <= 1 + 1e-6
            images, labels = images + 1, labels + len(rows)
    assert (images, labels) == (sum(report.pictures.values()), report.boxes)
    assert len(list((to / "labels").rglob("*.txt"))) == images
    readme = (to / "README.md").read_text()
    for words in ("did not check whether a box is tight", "Personal data", "1 not reviewed"):
        assert words in readme


def test_an_incident_is_never_in_both_parts(life: Life, tmp_path: Path) -> None:
    """Alerts of one showing follow on each other within seconds, so they are one incident, whatever is asked for."""
    chosen = list(incidents(every_alert(StorageArchive(life.root))))
    ids = [alert.id for alert in life.all()]
    assert [each.incident for each in chosen] == [ids[0]] * 3 + [ids[3]] * 2
    share = (_number(chosen[0]) + _number(chosen[3])) / 2  # between the two, so that they part
    report = export(life, tmp_path / "x", split=share)
    assert min(report.pictures.values()) > 0
    parts = {
        split: {image["alert"] for image in coco(tmp_path / "x", split).dataset["images"]} for split in ("train", "val")
    }
    assert sorted(parts.values(), key=len) == [{ids[3]}, set(ids[:3])]


def _number(chosen: ChosenAlert) -> float:
    """The share from which on the incident is in `train`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if split_of(chosen.incident, middle) == "train" else (middle, high)
    return high


def test_the_parts_have_about_the_asked_sizes() -> None:
    parts = [split_of(f"incident-{number}", 0.8) for number in range(2000)]
    assert parts.count("train") == pytest.approx(1600, abs=60)
    assert {split_of(f"incident-{number}", 1.0) for number in range(50)} == {"train"}
    assert {split_of(f"incident-{number}", 0.0) for number in range(50)} == {"val"}


def test_again_changes_nothing_and_continues_when_there_is_more(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "data"
    export(life, to, format="yolo")
    before = everything(to)
    report = export(life, to, format="yolo")
    assert (everything(to), report.reused) == (before, 4)
    life.review(life.all()[4], "reviewed")
    assert export(life, to, format="yolo").reused == 4
    assert before.items() - everything(to).items() == {("README.md", before["README.md"])}
    other = tmp_path / "other"
    export(life, other, format="yolo")
    assert everything(other) == everything(to), "in two steps or in one: the same"


def test_a_review_that_changed_takes_its_images_along(life: Life, tmp_path: Path) -> None:
    to, alert = tmp_path / "data", life.all()[FIRST]
    export(life, to, format="yolo")
    mine = [path for path in (to / "labels").rglob(f"*{alert.id}*.txt") if path.read_text()]
    assert mine
    life.review(alert, "false_alarm")
    report = export(life, to, format="yolo")
    assert report.alerts == {"right": 2, "false alarm": 2}
    assert [path for path in (to / "labels").rglob(f"*{alert.id}*.txt") if path.read_text()] == []
    life.review(alert, None)
    export(life, to, format="yolo")
    assert list(to.rglob(f"*{alert.id}*")) == []


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_a_deleted_alert_is_not_exported_and_its_images_go(life: Life, tmp_path: Path, format: str) -> None:
    to = tmp_path / "data"
    assert export(life, to, format=format).alerts == {"right": 3, "false alarm": 1}
    gone = life.all()[0].id
    assert ReviewStore(life.db).delete([gone], "a neighbour asked for it", life.clock.now()) == [gone]
    report = export(life, to, format=format)
    assert (report.alerts, report.left_out) == ({"right": 2, "false alarm": 1}, {"not reviewed": 2})
    assert not [name for name in everything(to) if gone in name]


def test_what_was_exported_stays_when_the_recording_goes(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "data"
    export(life, to)
    before = everything(to)
    shutil.rmtree(life.root / "segments")
    shutil.rmtree(life.root / "evidence")
    export(life, to)
    assert everything(to) == before
    report = export(life, tmp_path / "late")
    assert (sum(report.pictures.values()), report.left_out["without a picture, which was not kept"]) == (0, 4)


def test_the_clip_and_then_the_still_serve_when_the_recording_is_gone(life: Life, tmp_path: Path) -> None:
    whole = export(life, tmp_path / "whole")
    for clip in (life.root / "evidence").rglob("clip.mp4"):
        clip.rename(clip.with_suffix(".away"))
    assert export(life, tmp_path / "recording").pictures == whole.pictures
    for clip in (life.root / "evidence").rglob("clip.away"):
        clip.rename(clip.with_suffix(".mp4"))
    shutil.rmtree(life.root / "segments")
    assert export(life, tmp_path / "clips").pictures == whole.pictures
    names = [{path.name for path in (tmp_path / each).rglob("*.jpg")} for each in ("whole", "clips")]
    assert names[0] == names[1]
    for clip in (life.root / "evidence").rglob("clip.mp4"):
        clip.unlink()
    stills = export(life, tmp_path / "stills")
    assert 2 <= sum(stills.pictures.values()) <= 4
    assert stills.boxes >= 2
    with life.db.read() as connection:
        shown = dict(map(tuple, connection.execute("SELECT alert, t_start FROM evidence WHERE kind = 'still'")))
    for split in ("train", "val"):
        for image in coco(tmp_path / "stills", split).dataset["images"]:
            assert life_time(image) == pytest.approx(shown[image["alert"]], abs=0.07), "its boxes are of that moment"
    with life.db.transaction() as connection:
        connection.execute("DELETE FROM evidence WHERE kind = 'clip'")
    assert export(life, tmp_path / "never").pictures == stills.pictures, "an alert may never have had a clip"


def test_the_boxes_beside_the_clip_serve_when_those_of_the_store_are_gone(life: Life, tmp_path: Path) -> None:
    whole = export(life, tmp_path / "whole", per_alert=1)
    with life.db.transaction() as connection:
        connection.execute("DELETE FROM boxes")
    assert export(life, tmp_path / "kept", per_alert=1) == whole
    for file in (life.root / "evidence").rglob("boxes*"):
        file.write_text("{}")
    assert export(life, tmp_path / "none", per_alert=1).left_out["without boxes, which were not kept"] == 4


def test_a_folder_of_something_else_is_left_alone(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "holiday"
    to.mkdir()
    (to / "beach.jpg").write_bytes(b"sand")
    with pytest.raises(UsageError, match="holds something that is no export of Vedette"):
        export(life, to)
    (to / "export.json").write_text("{}")
    with pytest.raises(UsageError, match="holds something that is no export of Vedette"):
        export(life, to)
    assert everything(to) == {"beach.jpg": b"sand", "export.json": b"{}"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        export(life, tmp_path / "file")
    export(life, tmp_path / "mine")
    with pytest.raises(PreconditionError, match=r"other settings \(format was coco, is yolo\)"):
        export(life, tmp_path / "mine", format="yolo")


def test_filters(life: Life, tmp_path: Path) -> None:
    start = "2026-11-20T11:00:20Z"
    assert export(life, tmp_path / "a", t_from=start).alerts == {"right": 2, "false alarm": 1}
    assert export(life, tmp_path / "b", t_to=start).alerts == {"right": 1, "false alarm": 0}
    cars = export(life, tmp_path / "c", labels="car")
    assert cars.alerts["right"] == 1
    assert cars.left_out["with other labels"] == 2
    assert export(life, tmp_path / "d", per_alert=1).pictures.keys() == {"train", "val"}
    assert sum(export(life, tmp_path / "d", per_alert=1).pictures.values()) == 4
    with pytest.raises(UsageError, match="there is no camera `dock`"):
        export(life, tmp_path / "e", cameras="dock")
    for option in ("cameras", "labels"):
        with pytest.raises(UsageError, match=f"--{option} is a list such as"):
            export(life, tmp_path / "e", **{option: " , "})
    with pytest.raises(UsageError, match="is a share"):
        export(life, tmp_path / "e", split=1.5)
    with pytest.raises(UsageError, match="--to-time must be later"):
        export(life, tmp_path / "e", t_from=start, t_to=start)
    assert not (tmp_path / "e").exists()


def site_file(life: Life, folder: Path) -> str:
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(life.config.model_dump(mode="json", exclude_none=True)))
    return str(file)


KILLED = """
import os, signal, sys
from appliance.lab import export_command
cut, calls = export_command.cut_images, []
def and_die(*given):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return cut(*given)
export_command.cut_images = and_die
from appliance.__main__ import main
main(sys.argv[1:])
"""


def test_a_kill_in_the_middle_costs_one_alert(life: Life, tmp_path: Path) -> None:
    to = tmp_path / "data"
    words = ["export", "--config", site_file(life, tmp_path), "--format", "coco", "--to", str(to), "--per-alert", "2"]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert json.loads((to / "export.json").read_text())["complete"] is False
    assert export(life, to).reused == 2
    export(life, tmp_path / "whole")
    assert everything(to) == everything(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted.small_disk(tmp_path / "small", "700k") as place:
        yield place


def test_a_full_disk_is_reported_leaves_whole_files_and_is_continued(life: Life, small_disk: Path) -> None:
    to = small_disk / "data"
    with pytest.raises(DiskWriteError, match="make room and run the same command again"):
        export(life, to, per_alert=USUAL)
    pictures = list(to.rglob("*.jpg"))
    assert pictures
    assert all(cv2.imread(str(path)) is not None for path in pictures)
    assert list(to.rglob("*.part")) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert export(life, to, per_alert=USUAL).alerts == {"right": 3, "false alarm": 1}


def test_the_recording_s_disk_is_not_filled_up(life: Life, tmp_path: Path) -> None:
    settings = export_settings(ExportOptions(format="coco", to=tmp_path / "x"), life.config.for_decisions())
    storage = life.config.storage.model_copy(update={"disk_free_min_mb": 100.0})
    config = life.config.model_copy(update={"storage": storage})
    with pytest.raises(DiskWriteError, match="export to another disk"):
        Exporter(config.storage, settings, tmp_path / "x", free_bytes=lambda _: 99_000_000).run()


def test_on_the_command_line(life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site, to = site_file(life, tmp_path), tmp_path / "data"
    words = ["export", "--config", site, "--format", "yolo", "--to", str(to), "--zip"]
    assert main([*words, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["left_out"], reported["zip"]) == ({"not reviewed": 1}, str(tmp_path / "data.zip"))
    first = (tmp_path / "data.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "data.zip") as zipped:
        assert zipped.testzip() is None
        names = set(zipped.namelist())
    assert {"data.yaml", "README.md", "export.json"} < names
    assert sum(name.endswith(".jpg") for name in names) == sum(reported["pictures"].values())
    assert not any("/." in f"/{name}" for name in names)
    assert main(words) == 0
    assert "left out: 1 not reviewed" in capsys.readouterr().out
    assert (tmp_path / "data.zip").read_bytes() == first
    (tmp_path / "data.zip").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(to)
        assert main(["export", "--config", site, "--format", "yolo", "--to", ".", "--zip"]) == 0
    assert (tmp_path / "data.zip").read_bytes() == first
    capsys.readouterr()
    assert main(["export", "--config", site, "--format", "coco", "--to", str(to)]) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_the_training_layout_has_answered_alerts_of_consenting_cameras_alone(
    life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, to = Path(site_file(life, tmp_path)), tmp_path / "set"
    words = ["export", "--config", str(file), "--format", "training", "--to", str(to), "--json"]

    def exported(*, consent: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        site = yaml.safe_load(file.read_text())
        site["cameras"]["gate"]["training"] = consent
        file.write_text(yaml.safe_dump(site))
        assert main(words) == 0
        rows = [json.loads(line) for line in (to / "index.jsonl").read_text().splitlines()]
        return json.loads(capsys.readouterr().out)["left_out"], rows

    reason = "of a camera without `training: true`"
    assert exported(consent=False) == ({reason: 5}, [])
    unreviewed = next(row.alert for row in life.alerts.page() if row.reviewed.review is None)
    answer = "UPDATE alert SET verdict = 'rejected', judge = ? WHERE id = ?"
    life.db.execute(answer, ("simulated", unreviewed.id))  # what teaches nothing
    left_out, rows = exported(consent=True)
    assert left_out == {"not reviewed": 1}
    life.db.execute(answer, ("vlm", unreviewed.id))
    left_out, rows = exported(consent=True)
    assert left_out == {}
    assert len(dataset.read(to)) == len(rows) == len(list(to.rglob("*.jpg")))
    false_alarms = {life.all()[THIRD].id, unreviewed.id}
    for row in rows:
        assert hashlib.sha256((to / row["image"]).read_bytes()).hexdigest() == row["sha256"]
        origin = row["provenance"]
        assert bool(row["rejected"]) == (origin["alert"] in false_alarms)
        assert not (row["rejected"] and row["boxes"])
        assert origin["answered_by"] == ("vlm" if origin["alert"] == unreviewed.id else "review")
        assert (origin["camera"], origin["consent"]) == ("gate", "cameras.gate.training")
        assert origin["time"].startswith("2026-11-20T11:0")
    # The first alert is right, and what it shows where a false alarm stood is left open.
    assert any(row["boxes"] for row in rows)
    assert exported(consent=False) == ({reason: 5}, [])
    assert not list(to.rglob("*.jpg"))


def audited(life: Life, name: str, label: str, decision: str, boxes: tuple[wire.FoundBox, ...] = ()) -> None:
    """An examined frame without any object, sent for an audit, and the answer of a vision-language model."""
    row = life.db.row("SELECT t, run FROM boxes WHERE looked AND objects = '[]' ORDER BY t DESC")
    assert row is not None
    asked = wire.Escalation(
        id=f"q-{name}", site="depot", camera="gate", alert=name, rule=SILENT_RULE, kind=wire.AUDIT, label=label,
        severity="info", t=row["t"], created_t=life.clock.now(),
    )  # fmt: skip
    assert SilentFrameStore(life.db).add(asked, [label], row["run"])
    verdict = sample_verdict(asked.id, of=name, decision=decision)
    support = (wire.FrameSupport(media="m", t=row["t"], supports="yes", boxes=boxes),)
    said = {"kind": "vlm", "support": support, "judged_t": life.clock.now()}
    assert AlertStore(life.db).apply_verdict(verdict.model_copy(update=said), life.clock.now())


def test_audited_frames_teach_what_was_missed_and_where_nothing_was(
    life: Life, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def box(label: str, *sides: float) -> wire.FoundBox:
        return wire.FoundBox(label=label, box=sides)  # type: ignore[arg-type]

    audited(life, "nothing", "person", "rejected")
    audited(life, "seen", "person", "confirmed", (box("person", 0.2, 0.4, 0.25, 1.2), box("person", 2, 2, 3, 3)))
    audited(life, "nowhere", "person", "confirmed", (box("dog", 0.2, 0.4, 0.25, 0.6),))
    audited(life, "other", "cat", "rejected")
    file, to = Path(site_file(life, tmp_path)), tmp_path / "set"
    words = ["export", "--config", str(file), "--format", "training", "--to", str(to), "--json"]
    site = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**site, "cameras": {"gate": {**site["cameras"]["gate"], "training": True}}}))
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["alerts"]["audited frame"] == 2
    assert report["left_out"]["in which something was missed, and nothing says where"] == 1
    assert report["left_out"]["with other labels"] == 1
    rows = {
        row["provenance"]["alert"]: row
        for row in map(json.loads, (to / "index.jsonl").read_text().splitlines())
        if row["provenance"]["of"] == "audited frame"
    }
    assert rows.keys() == {"nothing", "seen"}
    assert (rows["nothing"]["boxes"], rows["nothing"]["rejected"]) == ([], [])
    assert rows["seen"]["boxes"] == [[0, 0.2, 0.4, 0.25, 1.0, 1.0]]
    origin = rows["seen"]["provenance"]
    assert (origin["boxes_by"], origin["answered_by"], origin["who"]) == ("model", "vlm", "m")
    assert (origin["consent"], origin["answer"]) == ("cameras.gate.training", "reviewed")
    assert len(dataset.read(to)) == len(list(to.rglob("*.jpg")))
    assert export(life, tmp_path / "coco").alerts == {"right": 3, "false alarm": 1}, "alerts alone, as before"


def test_the_training_layout_numbers_the_classes_as_the_training_does() -> None:
    assert export_samples.CLASSES == dataset.CLASSES
