"""What makes training cheap and goes on from an exported network; needs PyTorch (the extra `train`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install '.[train]'")
pytest.importorskip("onnx", reason="export needs onnx: pip install '.[train]'")

from models.train.checkpoint import Average  # noqa: E402
from models.train.dataset import IndexFault  # noqa: E402
from models.train.export import export, transfer, weights  # noqa: E402
from models.train.export import main as export_command  # noqa: E402
from models.train.loader import Sides  # noqa: E402
from models.train.loss import Lesson, Loss, assign, loss  # noqa: E402
from models.train.network import DESIGNS, Design, Network, Views, cells, corners  # noqa: E402
from models.train.trainer import _must_be_finite, rate, reduced  # noqa: E402
from tests.unit.test_train_network import truth  # noqa: E402

WIDE = Design("dense", 8, (16, 16, 32, 32), (1, 1, 1, 1), 32)
NARROW = Design("full", 8, (16, 16, 32, 32), (1, 1, 1, 1), 16, head=16)


def stirred(network: Network) -> Network:
    """The network with norms that are not those of a fresh one."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.2)
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network


def test_an_exported_network_goes_on_where_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = stirred(Network(WIDE)).eval()
    export(old, tmp_path / "old.onnx", 64, 64)
    new = Network(WIDE)
    pictures = torch.rand(4, 3, 64, 64)
    taken = transfer(new, weights(tmp_path / "old.onnx"), pictures)
    assert not taken.fresh
    assert torch.allclose(new.eval()(pictures), old(pictures), atol=1e-3)
    # Its norms are those of these pictures, so that training goes on from the very same answers.
    scene = new.watched(pictures)[1].scenes[0]
    assert torch.allclose(new.train().watched(pictures)[1].scenes[0], scene, atol=0.1)


def test_a_narrower_design_keeps_the_channels_with_the_largest_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = stirred(Network(WIDE)).eval()
    export(old, tmp_path / "old.onnx", 64, 64)
    new = Network(NARROW)
    taken = transfer(new, weights(tmp_path / "old.onnx"), torch.rand(4, 3, 64, 64))
    assert {name.split(".")[0] for name in taken.fresh} == {"neck", "branches"}
    assert all(name.startswith(("neck.down", "branches")) for name in taken.fresh)
    found = weights(tmp_path / "old.onnx")["neck.lateral.0.weight"]
    largest = np.sort(np.argsort(-found.flatten(1).norm(dim=1).numpy(), kind="stable")[:16])
    assert torch.equal(new.neck.lateral[0].conv.weight, found[torch.as_tensor(largest)])


def test_what_is_no_export_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"not a network")
    with pytest.raises(IndexFault, match=r"x\.onnx"):
        weights(tmp_path / "x.onnx")


def test_what_is_no_checkpoint_or_no_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("empty.pt", b""), ("text.pt", b"not a checkpoint"), ("none.pt", None)):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        assert export_command(["--checkpoint", str(path), "--out", str(tmp_path / "x.onnx")]) == 2
        assert f"{path}: not a checkpoint of models.train.run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        export_command(["--checkpoint", str(path), "--out", str(tmp_path / "x.onnx"), "--size", "416", "400"])
    assert "--size 400: a multiple of 32" in capsys.readouterr().err


def test_weights_that_are_lost_are_not_saved() -> None:
    none = torch.zeros(())
    _must_be_finite(Loss(none, none, none, none, none, none), 250)
    with pytest.raises(IndexFault, match="the loss is nan at step 250"):
        _must_be_finite(Loss(none / 0, none, none, none, none, none), 250)


@pytest.mark.parametrize(("flags", "wanted", "expected"), [
    ("flags : avx2 avx512_bf16", "auto", True), ("flags : avx2 avx512f", "auto", False),
    ("flags : avx2", "bf16", True), ("flags : avx512_bf16", "fp32", False),
])  # fmt: skip
def test_a_cpu_trains_in_bfloat16_where_it_multiplies_it(
    tmp_path: Path, flags: str, wanted: str, *, expected: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(flags + "\n")
    assert reduced(wanted, torch.device("cpu"), tmp_path / "cpuinfo") is expected


def test_pictures_grow_while_a_run_lasts_and_then_stay() -> None:
    sides = Sides(256, 416, 1, 1000)
    rng = np.random.default_rng(0)
    assert {sides.at(0, rng) for _ in range(50)} == {224, 256, 288}
    assert {sides.at(5000, rng) for _ in range(50)} == {384, 416, 448}
    assert {sides.at(500, rng) % 32 for _ in range(50)} == {0}
    assert min(Sides(64, 64, 3, 1).at(0, rng) for _ in range(50)) == 64


def test_a_rate_that_stays_flat_falls_only_at_the_end() -> None:
    rates = [rate(step, 100, 1.0, 10, 0.2) for step in range(100)]
    assert rates[10:81] == pytest.approx([1.0] * 71)
    assert rates[80:] == sorted(rates[80:], reverse=True)
    # So a run that is made longer before it falls has learnt what the longer run would have.
    assert rates[:80] == pytest.approx([rate(step, 200, 1.0, 10, 0.2) for step in range(80)])


def test_a_young_average_follows_and_an_old_one_is_slow() -> None:
    network = Network(NARROW)
    average = Average(network, 0.999)
    with torch.no_grad():
        network.stem.conv.weight.fill_(1.0)
    average.update(network, 0)
    assert float(average.network.stem.conv.weight.mean()) == pytest.approx(0.9, abs=0.05)
    with torch.no_grad():
        network.stem.conv.weight.fill_(2.0)
    average.update(network, 100_000)
    assert float(average.network.stem.conv.weight.mean()) == pytest.approx(0.9, abs=0.06)


def test_the_teacher_has_no_say_in_cells_that_people_speak_for() -> None:
    torch.manual_seed(0)
    grid = cells(64, 64)
    answer = torch.randn(1, 12, grid.shape[1])
    blind = Lesson(torch.zeros(1, grid.shape[1], 8), torch.zeros(1, grid.shape[1], 4), Views((), ()))
    drawn = loss(answer, grid, truth((0, 0, 0, 64, 64)), blind, 1.0)
    nothing = loss(answer, grid, truth((0, 0, 0, 64, 64)), None, 1.0)
    alone = loss(answer, grid, truth((0, 0, 0, 0.5, 0.5)), blind, 1.0)
    assert int(drawn.positives) > 0
    assert float(nothing.teacher) == 0
    assert float(drawn.teacher) < float(alone.teacher)


def test_a_teachers_box_is_a_second_target_where_it_means_the_drawn_thing() -> None:
    torch.manual_seed(0)
    grid = cells(64, 64)
    answer, drawn = torch.randn(1, 12, grid.shape[1]), truth((0, 8, 8, 56, 56))
    scores = answer[:, 4:].sigmoid().transpose(1, 2)
    chosen = assign(scores, corners(answer, grid), grid, drawn).chosen

    def taught(*box: float) -> float:
        """With a teacher that sees one thing, where people drew one."""
        sure = torch.zeros(1, grid.shape[1], 8)
        sure[..., 0][chosen] = 0.9
        boxes = torch.tensor(box).expand(1, grid.shape[1], 4)
        return float(loss(answer, grid, drawn, Lesson(sure, boxes, Views((), ())), 1.0).teacher)

    elsewhere = taught(0, 0, 20, 20)
    assert taught(9, 9, 55, 55) > elsewhere + 1
    assert taught(30, 8, 64, 56) == elsewhere


def test_a_drawn_box_is_not_followed_where_a_sure_teacher_sees_other_borders() -> None:
    torch.manual_seed(0)
    grid = cells(64, 64)
    answer, drawn = torch.randn(1, 12, grid.shape[1]), truth((0, 8, 8, 56, 56))

    def boxes_lost(score: float, *box: float) -> float:
        sure = torch.zeros(1, grid.shape[1], 8)
        sure[..., 0] = score
        seen = torch.tensor(box).expand(1, grid.shape[1], 4)
        return float(loss(answer, grid, drawn, Lesson(sure, seen, Views((), ())), 1.0).boxes)

    alone = float(loss(answer, grid, drawn).boxes)
    assert alone > 0
    assert boxes_lost(0.9, 8, 8, 36, 56) == 0  # 0.58 of it: a box around a box that was turned
    assert boxes_lost(0.3, 8, 8, 36, 56) == alone  # the teacher is not sure
    assert boxes_lost(0.9, 8, 8, 24, 56) == alone  # another thing
    assert boxes_lost(0.9, 9, 9, 55, 55) == alone  # they agree


def test_the_full_design_has_no_depthwise_convolution() -> None:
    groups = {each.groups for each in Network(DESIGNS["full"]).modules() if isinstance(each, torch.nn.Conv2d)}
    assert groups == {1}
