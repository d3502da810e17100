"""A run on a borrowed machine in slices ends, to the last byte, as a run without a stop; what is damaged is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.train import dataset, remote
from models.train.dataset import IndexFault
from tests.support.painted_set import painted

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "--design", "full", "--size", "160", "--scales", "1", "--steps", "12", "--batch", "32", "--warmup", "3",
    "--judge-every", "1000", "--save-every", "5", "--log-every", "1", "--workers", "1", "--device", "cpu",
    "--average", "0.9", "--imitate", "0",
]  # fmt: skip


@pytest.fixture
def carry(tmp_path: Path) -> Path:
    """A packed folder."""
    painted(tmp_path / "set", 24)
    out = tmp_path / "carry"
    arguments = ["pack", "--index", str(tmp_path / "set"), "--out", str(out), "--parts", "2", "--mib", "1"]
    assert remote.main([*arguments, "--", *SETTINGS]) == 0
    return out


def run_slice(carry: Path, work: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """One slice in a process of its own, as there."""
    command = [sys.executable, "-m", "models.train.remote", "slice", "--carry", str(carry), "--work", str(work), *more]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=surroundings, check=False, capture_output=True, text=True)


@pytest.mark.timeout(600)
def test_slices_on_machines_that_forget_end_as_one_run_does(carry: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install '.[train]'")
    whole = run_slice(carry, tmp_path / "whole", "--out", str(tmp_path / "whole-back"), "--minutes", "0")
    assert whole.returncode == 0, whole.stderr
    state: list[str] = []
    statuses = []
    for number in range(20):
        back = tmp_path / f"back-{number}"
        # A hair more than what is kept for the end: each slice takes a step or some.
        minutes = str(remote.END_MINUTES + 0.02)
        done = run_slice(carry, tmp_path / f"machine-{number}", "--out", str(back), "--minutes", minutes, *state)
        statuses.append(done.returncode)
        assert done.returncode in (0, 3), done.stderr
        assert len(list(back.iterdir())) <= remote.FILES_MAX
        state = ["--state", str(back)]
        if done.returncode == 0:
            break
    assert statuses[-1] == 0
    assert 3 in statuses, "the run fitted into one slice: nothing was resumed"
    backs = [tmp_path / "whole-back", Path(state[1])]
    first, second = (torch.load(back / "last.pt", weights_only=True) for back in backs)
    assert first["step"] == second["step"] == 12
    for kind in (first["network"], second["network"]), (first["ema"]["network"], second["ema"]["network"]):
        assert all(torch.equal(value, kind[1][name]) for name, value in kind[0].items())
    assert (backs[0] / "network.onnx").read_bytes() == (backs[1] / "network.onnx").read_bytes()
    notes = [json.loads((back / remote.RETURNED).read_text()) for back in backs]
    assert notes[0]["ap50"] == notes[1]["ap50"]
    steps = [json.loads(line) for line in (backs[1] / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if row["type"] == "step"] == list(range(1, 13))


def test_a_part_that_is_missing_or_damaged_is_named(carry: Path, tmp_path: Path) -> None:
    arguments = ["slice", "--carry", str(carry), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "back")]
    content = bytearray((carry / "set-2.zip").read_bytes())
    content[100] ^= 1
    (carry / "set-2.zip").write_bytes(content)
    with pytest.raises(IndexFault, match=r"set-2\.zip is not what was sent"):
        remote.train_slice(remote.parser().parse_args(arguments))
    (carry / "set-2.zip").unlink()
    with pytest.raises(IndexFault, match=r"set-2\.zip is missing: carry it again"):
        remote.train_slice(remote.parser().parse_args(arguments))
    (carry / remote.CARRIED).unlink()
    assert remote.main(arguments) == 2


def test_another_pack_takes_the_place_of_the_first(carry: Path, tmp_path: Path) -> None:
    (carry / "teacher.onnx").touch()
    work = tmp_path / "work"
    remote.unpack(carry, work)
    painted(tmp_path / "small", 5)
    arguments = ["pack", "--index", str(tmp_path / "small"), "--out", str(carry), "--parts", "1", "--mib", "1"]
    assert remote.main([*arguments, "--", *SETTINGS]) == 0
    assert {path.name for path in carry.iterdir()} == {"set-1.zip", remote.CARRIED}
    remote.unpack(carry, work)
    assert len(dataset.read(work / remote.FOLDER)) == len(dataset.read(tmp_path / "small"))
    assert remote.main([*arguments, "--drop", "painted", "--", *SETTINGS]) == 2, "no picture is left"


def test_what_does_not_fit_on_the_way_is_refused_before_it_is_carried(tmp_path: Path) -> None:
    painted(tmp_path / "set", 8)
    arguments = ["pack", "--index", str(tmp_path / "set"), "--out", str(tmp_path / "carry"), "--mib", "0.001"]
    assert remote.main([*arguments, "--", *SETTINGS]) == 2
    with pytest.raises(SystemExit):
        remote.main([*arguments, "--", "--no-such-setting"])


def test_a_machine_without_opencv_is_told_what_to_bring(
    carry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "NEEDED", ("numpy", "no_such_package"))
    arguments = ["slice", "--carry", str(carry), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "back")]
    with pytest.raises(IndexFault, match="no no_such_package: bring wheels"):
        remote.train_slice(remote.parser().parse_args(arguments))
