"""The network, what it learns and how it is delivered; needs PyTorch (the extra `train`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install '.[train]'")
pytest.importorskip("onnx", reason="export needs onnx: pip install '.[train]'")

from appliance.detect.network_detector import NetworkDetector  # noqa: E402
from appliance.detect.onnx_runtime import OnnxRuntime  # noqa: E402
from models.train import run  # noqa: E402
from models.train.dataset import CLASSES  # noqa: E402
from models.train.distillation import CpuTeacher, Imitation, YoloxTeacher  # noqa: E402
from models.train.export import Delivered, export  # noqa: E402
from models.train.geometry import Sample, empty  # noqa: E402
from models.train.loader import pack, sureness  # noqa: E402
from models.train.loss import Lesson, Truth, assign, giou_loss, loss  # noqa: E402
from models.train.network import DESIGNS, Design, Network, Views, cells, corners  # noqa: E402
from models.train.trainer import groups, rate  # noqa: E402
from tests.support.painted_set import painted  # noqa: E402
from tests.support.waiting import until  # noqa: E402

ROOT = Path(__file__).parents[2]
TINY = Design("tiny", 8, (8, 16, 16, 16), (1, 1, 1, 1), 16)
torch.set_num_threads(1)


def truth(*boxes: tuple[int, float, float, float, float], ignore: tuple[float, ...] | None = None) -> Truth:
    """One picture's labels."""
    rows = torch.tensor(boxes).reshape(1, -1, 5)
    doubtful = torch.tensor([ignore or (-2, 0, 0, 0, 0)]).reshape(1, 1, 5).float()
    sure = torch.ones(1, rows.shape[1])
    return Truth(rows[..., 1:].float(), rows[..., 0].long(), sure, doubtful[..., 1:], doubtful[..., 0].long())


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_is_small_and_fuses_without_a_change(name: str) -> None:
    network = Network(DESIGNS[name]).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    picture = torch.rand(1, 3, 64, 96)
    before = network(picture).detach()
    delivered = Delivered(network, 96, 64).network
    assert torch.allclose(delivered(picture).detach(), before, rtol=1e-2, atol=1e-3 * float(before.abs().max()))
    assert delivered.parameters_count() <= 1_500_000


def test_the_export_answers_as_the_network_and_loads_in_the_appliance(tmp_path: Path) -> None:
    network = Network(TINY).eval()
    for branch in network.branches:
        torch.nn.init.constant_(branch.classes.bias, 0.0)
    path = export(network, tmp_path / "tiny.onnx", 128, 96)
    eye = NetworkDetector(path, OnnxRuntime(path), score_min=0.3)
    assert eye.labels == CLASSES
    picture = np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)
    (seen,) = eye.detect([picture])
    with torch.no_grad():
        answer = network(torch.from_numpy(picture[:, :, ::-1].transpose(2, 0, 1).copy())[None].float() / 255)
    boxes, scores = corners(answer, cells(128, 96))[0], answer[0, 4:].sigmoid()
    best = int(scores.max(0).values.argmax())
    assert seen.scores[0] == pytest.approx(float(scores[:, best].max()), abs=1e-4)
    wanted = (boxes[best] / torch.tensor([128, 96, 128, 96])).clamp(0, 1)
    assert np.allclose(seen.boxes[0], wanted.numpy(), atol=1e-4)


def test_the_default_file_stays_under_four_megabytes(tmp_path: Path) -> None:
    assert export(Network(DESIGNS["full"]), tmp_path / "nano.onnx").stat().st_size <= 4_000_000


def test_cells_are_those_the_appliance_decodes() -> None:
    grid = cells(416, 416)
    assert grid.shape == (3, 3549)
    assert grid[:, 0].tolist() == [4, 4, 8]
    assert grid[:, 1].tolist() == [12, 4, 8]
    assert grid[:, -1].tolist() == [400, 400, 32]


def test_each_box_is_given_cells_even_one_of_five_by_twelve_pixels() -> None:
    grid = cells(416, 416)
    labels = truth((0, 101.0, 103.0, 106.0, 115.0), (2, 200.0, 100.0, 330.0, 180.0))
    scores = torch.full((1, 3549, 8), 0.01)
    boxes = torch.cat([grid[:2] - grid[2], grid[:2] + grid[2]]).t()[None]
    targets = assign(scores, boxes, grid, labels)
    mine = targets.boxes[0][targets.chosen[0]]
    assert {tuple(box.tolist()) for box in mine} == {tuple(box.tolist()) for box in labels.boxes[0]}
    assert float(targets.scores[0, :, 2].max()) > 0
    assert float(targets.scores[0, :, 1].max()) == 0


def test_nothing_is_learnt_in_an_ignored_region_but_a_box_that_lies_in_it() -> None:
    grid = cells(416, 416)
    boxes = torch.cat([grid[:2] - grid[2], grid[:2] + grid[2]]).t()[None]
    labels = truth((0, 120.0, 120.0, 160.0, 200.0), ignore=(2, 100, 100, 300, 300))
    targets = assign(torch.full((1, 3549, 8), 0.01), boxes, grid, labels)
    inside = (grid[0] > 100) & (grid[0] < 300) & (grid[1] > 100) & (grid[1] < 300)
    free = inside & ~targets.chosen[0]
    assert not targets.counts[0][free][:, [2, 4, 5]].any()  # a car there may be a bus or a lorry as well
    assert targets.counts[0][free][:, [0, 1, 3, 6, 7]].all()
    assert targets.counts[0][targets.chosen[0]].all()
    assert targets.counts[0][~inside].all()


def test_the_loss_of_a_right_answer_is_less_and_of_the_teachers_own_answer_nothing() -> None:
    grid = cells(96, 96)
    labels = truth((0, 20.0, 20.0, 60.0, 80.0))
    right = torch.full((1, 12, grid.shape[1]), -8.0)
    sides = torch.tensor([20.0, 20, 60, 80])
    right[0, :2] = ((grid[:2] - sides[:2, None]) / grid[2]).clamp(min=0.05).log()
    right[0, 2:4] = ((sides[2:, None] - grid[:2]) / grid[2]).clamp(min=0.05).log()
    wrong = right.clone()
    chosen = assign(right[:, 4:].sigmoid().transpose(1, 2), corners(right, grid), grid, labels).chosen[0]
    right[0, 4, chosen] = 6.0
    assert float(loss(right, grid, labels).total) < 0.3 * float(loss(wrong, grid, labels).total)
    own = Lesson(right[:, 4:].sigmoid().transpose(1, 2), corners(right, grid), Views((), ()))
    assert float(loss(right, grid, labels, own, 1.0).teacher) == pytest.approx(0, abs=0.02)
    # Where the truth speaks the teacher is silent; so it is asked beside a truth that is elsewhere.
    assert float(loss(wrong, grid, truth((0, 0, 0, 1, 1)), own, 1.0).teacher) > 1
    assert float(giou_loss(torch.tensor([0.0, 0, 2, 2]), torch.tensor([0.0, 0, 2, 2]))) == pytest.approx(0, abs=1e-5)
    assert float(giou_loss(torch.tensor([0.0, 0, 1, 1]), torch.tensor([9.0, 0, 10, 1]))) > 1.5


def test_pictures_without_any_box_can_be_learnt_from() -> None:
    sample = Sample(np.zeros((96, 96, 3), np.uint8), empty(), empty())
    batch = pack([sample, sample])
    network = Network(TINY)
    found = loss(network(batch.pictures.float()), cells(96, 96), batch.truth)
    found.total.backward()
    assert int(found.positives) == 0
    assert float(found.classes.detach()) > 0
    assert sureness(torch.tensor([0.0, 0.4, 1.0])).tolist() == pytest.approx([0.0, 0.7, 1.0])


def test_the_rate_rises_and_falls() -> None:
    rates = [rate(step, 100, 1.0, 10) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.02 <= rates[-1] < 0.03


@pytest.mark.shared
def test_the_teacher_answers_in_pytorch_as_in_onnx_runtime(shared_data: Path) -> None:
    import onnxruntime

    path = shared_data / "models" / "yolox_nano_416.onnx"
    picture = torch.rand(1, 3, 416, 416)
    lesson = YoloxTeacher(path)(picture)
    raw = onnxruntime.InferenceSession(str(path)).run(None, {"images": (picture.flip(1) * 255).numpy()})[0]
    assert np.allclose(lesson.scores[..., 0].numpy(), raw[..., 4] * raw[..., 5], atol=1e-5)
    x = (raw[0, 53, 0] + 1) * 8  # the second cell of the second row
    assert float(lesson.boxes[0, 53, [0, 2]].mean()) == pytest.approx(x, abs=1e-3)
    assert YoloxTeacher(path)(torch.rand(2, 3, 64, 96)).scores.shape == (2, 126, 8)


@pytest.mark.shared
def test_both_forms_of_the_teacher_say_and_see_the_same(shared_data: Path) -> None:
    path = shared_data / "models" / "yolox_nano_416.onnx"
    pictures = torch.rand(2, 3, 96, 64)
    one, other = YoloxTeacher(path)(pictures), CpuTeacher(path, 1)(pictures)
    assert torch.allclose(one.scores, other.scores, atol=1e-4)
    assert torch.allclose(one.boxes, other.boxes, atol=1e-2)
    both = zip(one.views.scenes + one.views.towers, other.views.scenes + other.views.towers, strict=True)
    assert all(torch.allclose(mine, theirs, atol=1e-3) for mine, theirs in both)
    # The same places of the two networks are compared.
    views = Network(DESIGNS["full"]).eval().watched(pictures)[1]
    assert [each.shape[2:] for each in views.scenes] == [each.shape[2:] for each in one.views.scenes]
    assert [each.shape[2:] for each in views.towers] == [each.shape[2:] for each in one.views.towers]


def half_of(views: Views) -> Views:
    return Views(*(tuple(each.bfloat16() for each in part) for part in (views.scenes, views.towers)))


def test_a_pupil_learns_to_see_as_its_teacher_sees() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    pictures = torch.rand(4, 3, 64, 64)
    mine = network.watched(pictures)[1]
    # A teacher that sees twice what the pupil sees, in other channels: a 1x1 convolution away.
    theirs = Views(*(tuple(2 * each.detach().flip(1) for each in part) for part in (mine.scenes, mine.towers)))
    cells_count = sum(each.shape[2] * each.shape[3] for each in mine.towers[:3])
    lesson = Lesson(torch.rand(4, cells_count, 8), torch.zeros(4, cells_count, 4), theirs)
    imitation = Imitation(mine, theirs)
    fixed = Views(*(tuple(each.detach() for each in part) for part in (mine.scenes, mine.towers)))
    optimizer = torch.optim.Adam(imitation.parameters(), lr=0.1)
    first = float(imitation(fixed, lesson))
    assert first == pytest.approx(1.0, abs=0.6)
    for _ in range(150):
        optimizer.zero_grad()
        imitation(fixed, lesson).backward()
        optimizer.step()
    assert float(imitation(fixed, lesson)) < 0.3 * first
    imitation(mine, lesson).backward()
    assert network.stem.conv.weight.grad is not None
    # What a GPU's half precision hands over.
    said = imitation(half_of(mine), Lesson(lesson.scores.bfloat16(), lesson.boxes, half_of(theirs)))
    assert said.dtype == torch.float32
    assert torch.isfinite(said)


def test_frozen_parts_stay_as_they_are_norms_too_and_the_others_learn() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(groups(network, 0.05), lr=0.01)
    for _ in range(2):
        network.train().freeze(2)
        optimizer.zero_grad()
        network(torch.rand(2, 3, 64, 64)).square().mean().backward()
        optimizer.step()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(name.startswith(("stem.", "stages.0.")) for name in changed)
    learning = [name for name, each in network.named_parameters() if each.requires_grad]
    assert set(learning) <= changed
    assert any(name.startswith("stages.1.") for name in learning)


def command(folder: Path, out: Path, steps: int) -> list[str]:
    settings = {
        "--index": folder, "--out": out, "--cache": folder / "p.bin", "--design": "full", "--size": 96, "--scales": 1,
        "--steps": steps, "--batch": 4, "--warmup": 3, "--judge-every": 1000, "--save-every": 5, "--log-every": 1,
        "--workers": 1, "--device": "cpu", "--average": 0.9,
    }  # fmt: skip
    return [sys.executable, "-m", "models.train.run", *(str(each) for pair in settings.items() for each in pair)]


def lines(out: Path) -> list[dict[str, float]]:
    path = out / "log.jsonl"
    text = path.read_text() if path.is_file() else ""
    rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [row for row in rows if row["type"] == "step"]


def test_a_machine_with_pytorch_and_opencv_alone_can_train() -> None:
    """A borrowed GPU machine has neither PyAV nor pydantic nor pycocotools, and nothing can be installed there."""
    absent = ["av", "pydantic", "pycocotools", "yaml"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import models.train.remote, models.train.trainer"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_trial_that_never_leaves_its_warm_up_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--index", str(tmp_path), "--out", str(tmp_path / "run"), "--steps", "300"]
    assert run.main(asked) == 2
    assert (
        "--warmup 500 never ends within --steps 300: add --warmup 30, or take more --steps" in capsys.readouterr().err
    )
    assert run.main([*asked, "--warmup", "30"]) == 2
    assert "--warmup" not in capsys.readouterr().err, "there is no set"
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    painted(tmp_path / "set", 16)
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = command(tmp_path / "set", tmp_path / "whole", 14)
    subprocess.run(whole, cwd=ROOT, env=surroundings, check=True, capture_output=True)
    cut = command(tmp_path / "set", tmp_path / "cut", 14)
    with subprocess.Popen(cut, cwd=ROOT, env=surroundings, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        until(lambda: len(lines(tmp_path / "cut")) >= 7 or run.poll() is not None, 120)  # 5 is saved, 3 is mid-epoch
        assert run.poll() is None
        os.killpg(run.pid, signal.SIGKILL)
    subprocess.run(cut, cwd=ROOT, env=surroundings, check=True, capture_output=True)
    both = [[(row["step"], row["total"], row["rate"]) for row in lines(tmp_path / name)] for name in ("whole", "cut")]
    assert both[0] == both[1]
    assert [step for step, _, _ in both[1]] == list(range(1, 15))
    states = [torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("whole", "cut")]
    assert states[0]["step"] == states[1]["step"] == 14
    for part in (lambda state: state["network"], lambda state: state["ema"]["network"]):
        assert all(torch.equal(value, part(states[1])[name]) for name, value in part(states[0]).items())
    other = [*cut[:-2], "--average", "0.5"]
    refused = subprocess.run(other, cwd=ROOT, env=surroundings, check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--average" in refused.stderr
    narrower = [*cut[:-2], "--design", "dense"]  # other weights and other moments of the optimiser
    refused = subprocess.run(narrower, cwd=ROOT, env=surroundings, check=False, capture_output=True, text=True)
    assert (refused.returncode, "holds a run with other settings (" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twelve_painted_pictures_are_learnt_by_heart(tmp_path: Path) -> None:
    painted(tmp_path / "set", 16)
    learn = [*command(tmp_path / "set", tmp_path / "run", 200), "--recipe", "plain", "--limit", "12", "--rate", "0.004"]
    subprocess.run(learn, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    judged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines() if "ap50" in line]
    assert judged[-1]["person"] > 0.9
