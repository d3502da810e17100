"""Backend and precision are chosen by measurement, once, among those that are known to be as accurate."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from appliance.base.errors import ModelError
from appliance.config import DetectorConfig, SiteConfig
from appliance.detect import detector_loader, model_files, runtime_choice
from appliance.detect.accelerators import Accelerator, accelerators
from appliance.detect.runtime_choice import RuntimeCandidate, RuntimeChoice
from appliance.replay.recording_tasks import without_secrets
from appliance.scenario import sandboxed_jobs
from appliance.scenario.scenario_runner import DetectorCache
from tests.support import tiny_networks as tiny
from tests.support.openvino import multiplies_bf16
from tests.support.tiny_networks import Thing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
THINGS = [Thing((16, 16, 80, 112), 0.9, 0)]
MANIFEST = """
[yard]
file = "yard.onnx"
sha256 = "{sha256}"
licence = "Apache-2.0"
labels = ["person", "car"]
input = [128, 128]
variants = {{ int8 = "yard-int8", bf16 = "yard-bf16" }}
accuracy = {{ person_ap50 = 0.80, event_recall = 0.95 }}

[yard-int8]
file = "yard-int8.onnx"
sha256 = "{int8}"
licence = "Apache-2.0"
labels = ["person", "car"]
input = [128, 128]
precision = "int8"
accuracy = {accuracy}

[yard-bf16]
file = "yard.onnx"
sha256 = "{sha256}"
licence = "Apache-2.0"
labels = ["person", "car"]
input = [128, 128]
precision = "bf16"
"""
AS_GOOD = "{ person_ap50 = 0.792, event_recall = 0.96 }"
SETTINGS = DetectorConfig(model="yard", backend="onnx")
PI_5 = "processor\t: 0\nFeatures\t: fp asimd atomics\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"
GRAVITON_3 = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a network with an INT8 and a bf16 form where models are looked for; returns a storage folder."""
    models = tmp_path / "models"
    models.mkdir()
    monkeypatch.setenv("VEDETTE_MODELS", str(models))

    def put(accuracy: str) -> Path:
        hashes = [
            hashlib.sha256(tiny.yolo(models / name, things, ["person", "car"]).read_bytes()).hexdigest()
            for name, things in (("yard.onnx", THINGS), ("yard-int8.onnx", [*THINGS, *THINGS]))
        ]
        text = MANIFEST.format(sha256=hashes[0], int8=hashes[1], accuracy=accuracy)
        (models / "models.toml").write_text(text)
        return tmp_path / "storage"

    return put


class Meter:
    """CPU time as a script tells it: each detector's look costs what `costs` says, whoever asks when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
        self.spent, self.wall, self.looks = 0.0, 0.0, 0
        real = detector_loader.load

        def load(settings: DetectorConfig) -> object:
            eye = real(settings)
            where = "" if settings.device in ("auto", "cpu") else f"_{settings.device}"
            backend = "" if settings.backend == "onnx" and not where else f"{settings.backend}{where}_"
            cost = costs[f"{backend}{settings.precision}"]
            look = eye.detect

            def detect(pictures: object) -> object:
                self.spent += 0.0 if where else cost
                self.wall += cost
                self.looks += 1
                return look(pictures)  # type: ignore[arg-type]

            eye.detect = detect  # type: ignore[method-assign,assignment]
            return eye

        monkeypatch.setattr(runtime_choice.detector_loader, "load", load)

    def __call__(self, settings: DetectorConfig, candidates: Sequence[RuntimeCandidate]) -> RuntimeChoice:
        return runtime_choice.measure_candidates(settings, candidates, lambda: self.spent, lambda: self.wall)


def test_the_faster_one_is_taken_and_remembered(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = place(AS_GOOD)
    spent = Meter(monkeypatch, fp32=0.020, int8=0.013)
    with caplog.at_level("INFO"):
        assert runtime_choice.settle_runtime(SETTINGS, storage, spent).precision == "int8"
    assert "onnx int8, by measurement here: onnx int8 13.0 ms, onnx fp32 20.0 ms an inference" in caplog.text
    looks = spent.looks
    assert runtime_choice.settle_runtime(SETTINGS, storage, spent).precision == "int8"
    assert spent.looks == looks, "measured a second time"
    assert runtime_choice.with_remembered_runtime(SETTINGS, storage).precision == "int8"
    kept = json.loads((storage / runtime_choice.FILE).read_text())
    assert kept["cost_ms"] == {"onnx fp32": 20.0, "onnx int8": 13.0}
    assert detector_loader.load(runtime_choice.with_remembered_runtime(SETTINGS, storage)).name.startswith("yard-int8@")


def test_what_is_proven_runs_as_the_appliance_would_run_it(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(AS_GOOD)
    spent = Meter(monkeypatch, fp32=0.020, int8=0.013)
    monkeypatch.setattr(runtime_choice, "measure_in_child", spent)
    cache = DetectorCache()
    assert cache.get(SETTINGS).name.startswith("yard-int8@"), "a scenario without a site file"
    assert cache.ways == ["onnx int8"]
    assert not list(storage.glob("*")), "a scenario that is run decides nothing for an appliance"
    pinned = SETTINGS.model_copy(update={"precision": "fp32"})
    assert DetectorCache().get(pinned, storage).name.startswith("yard@"), "what a file says is what runs"

    runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.010, int8=0.020))
    looks = spent.looks
    cache = DetectorCache()
    assert cache.get(SETTINGS, storage).name.startswith("yard@"), "the appliance of this site file chose otherwise"
    assert cache.get(SETTINGS).name.startswith("yard-int8@"), "no choice of that appliance for who is none"
    assert cache.get(SETTINGS.model_copy(update={"score_min": 0.3})).name.startswith("yard-int8@")
    assert spent.looks == looks, "a choice that is remembered, or was measured in this process, is not measured again"


def test_openvino_is_measured_beside_onnx_runtime_where_it_is_installed(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 is OpenVINO's to take where the network is known to be as accurate in it and the CPU multiplies so."""
    pytest.importorskip("openvino", reason="needs the extra `openvino`")
    storage = place(AS_GOOD)
    manifest = storage.parent / "models" / "models.toml"
    manifest.write_text(f"{manifest.read_text()}accuracy = {AS_GOOD}\n")
    monkeypatch.setattr(runtime_choice, "openvino_multiplies_bf16", lambda: False)
    monkeypatch.setattr(model_files, "cpu_sums_int8", lambda: True)
    left_open = SETTINGS.model_copy(update={"backend": "auto"})
    slow = [
        RuntimeCandidate("onnx", "fp32"),
        RuntimeCandidate("onnx", "int8"),
        RuntimeCandidate("openvino", "fp32"),
        RuntimeCandidate("openvino", "int8"),
    ]
    assert list(runtime_choice.candidates_for(left_open)) == slow
    monkeypatch.setattr(runtime_choice, "openvino_multiplies_bf16", lambda: True)
    assert runtime_choice.candidates_for(left_open)[-1] == RuntimeCandidate("openvino", "bf16")
    only = left_open.model_copy(update={"precision": "fp32"})
    assert list(runtime_choice.candidates_for(only)) == [
        RuntimeCandidate("onnx", "fp32"),
        RuntimeCandidate("openvino", "fp32"),
    ]
    costs = {"fp32": 0.02, "int8": 0.013, "openvino_fp32": 0.02, "openvino_int8": 0.012, "openvino_bf16": 0.006}
    if multiplies_bf16():
        settled = runtime_choice.settle_runtime(left_open, storage, Meter(monkeypatch, **costs))
        assert (settled.backend, settled.precision) == ("openvino", "bf16")
        assert detector_loader.load(settled).name.endswith("+openvino-bf16")
    monkeypatch.setattr(runtime_choice, "installed_version", lambda backend: "1" if backend == "onnx" else "")
    assert list(runtime_choice.candidates_for(left_open)) == slow[:2]
    assert runtime_choice.remembered_choice(left_open, storage) is None, "what was measured is not here any more"


def test_what_multiplies_bf16_is_known_without_loading_a_library(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    for flags, wanted in (("sse avx512_bf16", True), ("sse amx_bf16", True), ("sse avx512f", False)):
        info.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert runtime_choice.openvino_multiplies_bf16(info) == wanted
    if pytest.importorskip("openvino", reason="needs the extra `openvino`"):
        assert runtime_choice.openvino_multiplies_bf16() == multiplies_bf16()


def test_openvinos_integers_are_left_out_where_their_sums_saturate(
    place: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    for flags, wanted in (("avx2", False), ("avx2 avx512f", False), ("avx2 avx_vnni", True), ("avx512_vnni", True)):
        info.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert model_files.cpu_sums_int8(info, "x86_64") == wanted
    assert model_files.cpu_sums_int8(info, "aarch64")
    place(AS_GOOD)
    monkeypatch.setattr(runtime_choice, "installed_version", lambda backend: "1" if backend != "tensorrt" else "")
    asked = SETTINGS.model_copy(update={"backend": "auto", "device": "cpu"})
    for sums in (True, False):
        monkeypatch.setattr(model_files, "cpu_sums_int8", lambda sums=sums: sums)
        ways = runtime_choice.candidates_for(asked)
        assert RuntimeCandidate("onnx", "int8") in ways
        assert (RuntimeCandidate("openvino", "int8") in ways) == sums
    row = next(each for each in runtime_choice.runtime_options(asked, None) if each.way == "openvino int8")
    assert (row.state, row.reason.partition(";")[0]) == (
        "left out", "its sums of 8-bit products saturate on a CPU without VNNI",
    )  # fmt: skip


def a_box(root: Path, *files: str) -> Path:
    """Where /proc, /dev and /sys have these files; of Intel's PCI devices, too."""
    for each in files:
        (root / each).parent.mkdir(parents=True, exist_ok=True)
        (root / each).write_text("0x8086\n")
    return root


def test_accelerators_are_found_by_what_the_kernel_says(tmp_path: Path) -> None:
    assert accelerators(a_box(tmp_path / "none", "dev/null")) == ()
    mini_pc = a_box(
        tmp_path / "mini",
        "sys/class/drm/renderD128/device/vendor",
        "sys/class/accel/accel0/device/vendor",
        "dev/hailo0",
    )
    assert accelerators(mini_pc) == (
        ("gpu", "/dev/dri/renderD128"),
        ("npu", "/dev/accel/accel0"),
        ("hailo", "/dev/hailo0"),
    )
    amd = a_box(tmp_path / "amd", "sys/class/drm/renderD128/device/vendor", "proc/driver/nvidia/version")
    (amd / "sys/class/drm/renderD128/device/vendor").write_text("0x1002\n")
    assert accelerators(amd) == (("cuda", "/proc/driver/nvidia/version"),)
    assert accelerators(a_box(tmp_path / "orin", "dev/nvhost-gpu")) == (("cuda", "/dev/nvhost-gpu"),)


def test_a_device_that_is_here_is_measured_on_the_clock_and_taken_if_it_is_quicker(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, meter = place(AS_GOOD), Meter(monkeypatch, fp32=0.020, int8=0.013, onnx_cuda_fp32=0.004)
    monkeypatch.setattr(runtime_choice, "accelerators", lambda: (Accelerator("cuda", "/dev/nvidia0"),))
    real = detector_loader._load  # the GPU's part is played by the CPU
    monkeypatch.setattr(detector_loader, "_load", lambda settings: real(settings.model_copy(update={"device": "cpu"})))
    assert RuntimeCandidate("onnx", "fp32", "cuda") in runtime_choice.candidates_for(SETTINGS)
    assert runtime_choice.candidates_for(SETTINGS.model_copy(update={"device": "cpu"})) == (
        ("onnx", "fp32", "cpu"),
        ("onnx", "int8", "cpu"),
    )
    settled = runtime_choice.settle_runtime(SETTINGS, storage, meter)
    assert (settled.backend, settled.device, settled.precision) == ("onnx", "cuda", "fp32")
    known = runtime_choice.remembered_choice(SETTINGS, storage)
    assert known is not None
    assert known.cost_ms["onnx cuda fp32"] == 4.0
    monkeypatch.setattr(runtime_choice, "accelerators", lambda: ())
    assert runtime_choice.remembered_choice(SETTINGS, storage) is None, "it was taken out"


def test_what_does_not_come_up_is_left_out_with_the_reason(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here a driver is loaded, and ONNX Runtime is the one for CPUs."""
    storage = place(AS_GOOD)
    box = (Accelerator("cuda", "/dev/nvidia0"), Accelerator("hailo", "/dev/hailo0"))
    monkeypatch.setattr(runtime_choice, "accelerators", lambda: box)
    monkeypatch.setattr(runtime_choice, "installed_version", lambda backend: "1" if backend == "onnx" else "")
    asked = SETTINGS.model_copy(update={"backend": "auto", "precision": "fp32"})
    unmeasured = runtime_choice.runtime_options(asked, None)
    assert [(each.way, each.state) for each in unmeasured[:2]] == [
        ("onnx fp32", "unmeasured"),
        ("onnx cuda fp32", "unmeasured"),
    ]
    settled = runtime_choice.settle_runtime(asked, storage, runtime_choice.measure_candidates)
    assert (settled.backend, settled.device) == ("onnx", "cpu")
    assert "onnx cuda fp32 is left out" in caplog.text
    rows = {
        each.way: each
        for each in runtime_choice.runtime_options(asked, runtime_choice.remembered_choice(asked, storage))
    }
    assert (rows["onnx fp32"].state, rows["onnx cuda fp32"].state) == ("chosen", "refused")
    assert "pip install onnxruntime-gpu" in rows["onnx cuda fp32"].reason
    assert rows["onnx int8"].state == "left out"
    assert rows["hailo"].reason == "/dev/hailo0: detector.backend: hailo takes it"
    assert (rows["openvino"].state, rows["tensorrt"].state) == ("absent", "absent")
    assert (rows["Intel NPU"].state, rows["Intel GPU"].reason) == ("absent", "none in this appliance")
    lines = runtime_choice.table_lines(tuple(rows.values()))
    assert len({line.index(each.way) for line, each in zip(lines, rows.values(), strict=True)}) == 1
    assert runtime_choice.runtime_options(asked.model_copy(update={"backend": "onnx"}), None) == (), "nothing is open"


def test_what_is_hardly_faster_is_not_worth_a_change(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(AS_GOOD)
    assert (
        runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.020, int8=0.0195)).precision
        == "fp32"
    )


@pytest.mark.parametrize(
    "accuracy",
    ["{ person_ap50 = 0.789, event_recall = 0.99 }", "{ person_ap50 = 0.90 }", "{}"],
    ids=["one figure lower", "one figure not measured", "nothing known"],
)
def test_what_is_less_accurate_or_unmeasured_is_never_chosen_but_may_be_asked_for(
    accuracy: str, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(accuracy)
    assert runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch)).precision == "auto"
    assert not (storage / runtime_choice.FILE).exists()
    asked = SETTINGS.model_copy(update={"precision": "int8"})
    assert runtime_choice.settle_runtime(asked, storage, Meter(monkeypatch)) == asked
    assert model_files.find_model("yard", precision="int8").path.name == "yard-int8.onnx"


def test_a_choice_is_forgotten_when_what_it_was_measured_on_has_changed(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(AS_GOOD)
    runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.020, int8=0.013))
    assert runtime_choice.remembered_choice(SETTINGS, storage) is not None
    assert runtime_choice.remembered_choice(SETTINGS.model_copy(update={"threads": 2}), storage) is None
    monkeypatch.setattr(model_files, "cpu_name", lambda: "another CPU")
    assert runtime_choice.remembered_choice(SETTINGS, storage) is None
    assert (
        runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.010, int8=0.013)).precision == "fp32"
    )
    assert json.loads((storage / runtime_choice.FILE).read_text())["basis"]["cpu"] == "another CPU"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"precision": "int8"}', '{"precision": 7, "cost_ms": 1, "basis": 2}']
)
def test_a_damaged_memory_is_as_none(
    content: str, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(AS_GOOD)
    storage.mkdir()
    (storage / runtime_choice.FILE).write_text(content)
    assert runtime_choice.remembered_choice(SETTINGS, storage) is None
    assert (
        runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.02, int8=0.01)).precision == "int8"
    )


def test_a_folder_that_cannot_be_written_costs_the_memory_not_the_start(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = place(AS_GOOD)
    storage.write_text("a file where the folder should be")
    assert (
        runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.02, int8=0.01)).precision == "int8"
    )
    assert "measured at every start" in caplog.text


def test_a_damaged_variant_is_logged_and_the_appliance_starts_with_the_file_itself(
    place: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = place(AS_GOOD)
    (tmp_path / "models" / "yard-int8.onnx").write_bytes(b"half a file")
    assert runtime_choice.settle_runtime(SETTINGS, storage) == SETTINGS
    assert "its sha256 differs" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        DetectorConfig(model="builtin:hog"),
        DetectorConfig(model="yard", device="cuda"),
        DetectorConfig(model="mine.onnx"),
        DetectorConfig(model="x"),
    ],
    ids=["no network", "not this CPU", "a file of one's own", "not there"],
)
def test_nothing_is_measured_where_there_is_no_choice(settings: DetectorConfig, place: Callable[[str], Path]) -> None:
    storage = place(AS_GOOD)
    assert runtime_choice.candidates_for(settings) in ((), (("onnx", "fp32", "cpu"),))
    assert runtime_choice.settle_runtime(settings, storage) == settings


def test_the_real_thing_measures_in_a_process_of_its_own(place: Callable[[str], Path]) -> None:
    place(AS_GOOD)
    candidates = runtime_choice.candidates_for(SETTINGS)
    choice = runtime_choice.measure_in_child(SETTINGS, candidates)
    assert set(choice.cost_ms) == {"onnx fp32", "onnx int8"}
    assert all(0 <= ms < 1000 for ms in choice.cost_ms.values())


def test_a_child_that_gives_no_answer_costs_the_choice_not_the_start(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = place(AS_GOOD)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert runtime_choice.settle_runtime(SETTINGS, storage) == SETTINGS
    assert "did not answer" in caplog.text


def test_a_child_that_crashes_is_reported_with_what_it_said_last(
    place: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(AS_GOOD)
    crashes = tmp_path / "python"
    crashes.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'ImportError: libcudart.so.12' >&2\nexit 1\n")
    crashes.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crashes))
    with pytest.raises(ModelError, match=r"did not answer: it ended with 1: ImportError: libcudart\.so\.12$"):
        runtime_choice.measure_in_child(SETTINGS, runtime_choice.candidates_for(SETTINGS))


def test_bf16_is_offered_where_the_cpu_multiplies_it_and_refused_elsewhere(
    place: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(AS_GOOD)
    pi, graviton = tmp_path / "pi", tmp_path / "graviton"
    pi.write_text(PI_5)
    graviton.write_text(GRAVITON_3)
    assert model_files.cpu_has_bf16(graviton, "aarch64")
    assert not model_files.cpu_has_bf16(pi, "aarch64")
    assert not model_files.cpu_has_bf16(graviton, "x86_64")
    assert not model_files.cpu_has_bf16(tmp_path / "absent", "aarch64")
    monkeypatch.setattr(model_files, "cpu_has_bf16", lambda: False)
    with pytest.raises(ModelError, match=r"no bfloat16 products .* set detector\.precision to auto"):
        model_files.find_model("yard", precision="bf16")
    monkeypatch.setattr(model_files, "cpu_has_bf16", lambda: True)
    found = model_files.find_model("yard", precision="bf16")
    assert (found.path.name, found.bf16) == ("yard.onnx", True)
    # Never measured for accuracy, so never chosen by itself.
    assert model_files.accurate_precisions("yard") == ("fp32", "int8")


@pytest.mark.parametrize(
    ("cost_ms", "chosen"),
    [
        ({"onnx fp32": 10.0, "openvino bf16": 5.8}, "onnx fp32"),
        ({"onnx fp32": 10.0, "openvino bf16": 4.9}, "openvino bf16"),
        ({"onnx fp32": 10.0, "onnx int8": 5.1, "openvino bf16": 4.9}, "onnx int8"),
        ({"onnx fp32": 10.0, "onnx int8": 9.6, "openvino int8": 5.0}, "openvino int8"),
        ({"onnx fp32": 10.0, "onnx cuda fp32": 9.4}, "onnx cuda fp32"),
    ],
)
def test_another_library_on_the_cpu_has_to_be_worth_its_memory(cost_ms: dict[str, float], chosen: str) -> None:
    """OpenVINO takes 136 MB more than ONNX Runtime: core and ingest of one camera are to stay below 200."""
    ways = {
        RuntimeCandidate(words[0], words[-1], words[1] if len(words) > 2 else "cpu"): ms  # type: ignore[arg-type]
        for name, ms in cost_ms.items()
        if (words := name.split())
    }
    assert str(runtime_choice._fastest(ways)) == chosen


def test_a_row_says_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest way of the file's own library is what OpenVINO has to halve, not the file's own way."""
    costs = {"onnx fp32": 10.0, "onnx int8": 5.0, "openvino int8": 3.0, "openvino fp32": 5.0}
    ways = tuple(RuntimeCandidate(*name.split()) for name in costs)  # type: ignore[arg-type]
    monkeypatch.setattr(runtime_choice, "candidates_for", lambda settings: ways)
    assert str(runtime_choice._fastest(dict(zip(ways, costs.values(), strict=True)))) == "onnx int8"
    known = RuntimeChoice("onnx", "int8", "cpu", costs, {}, {})
    asked = SETTINGS.model_copy(update={"backend": "auto"})
    rows = {each.way: each for each in runtime_choice.runtime_options(asked, known)}
    assert [(each.state, each.reason) for each in map(rows.__getitem__, costs)] == [
        ("slower", ""),
        ("chosen", "as accurate; what is quicker saves too little"),
        ("not taken", "saves less than 50% of the time of onnx int8, and takes more memory"),
        ("not taken", "no quicker than onnx int8"),
    ]


@pytest.mark.parametrize(
    ("device", "precision", "way", "reason"),
    [
        ("cpu", "auto", "onnx cuda fp32", "detector.device is cpu; "
         "detector {backend: onnx, device: cuda, precision: fp32} takes it"),
        ("cpu", "auto", "onnx cuda fp16", "detector.device is cpu, not known to be as accurate; "
         "detector {backend: onnx, device: cuda, precision: fp16} takes it"),
        ("cpu", "int8", "onnx cuda fp32", "detector.device is cpu, detector.precision is int8; "
         "detector {backend: onnx, device: cuda, precision: fp32} takes it"),
        ("cuda", "auto", "onnx int8", "detector.device is cuda; "
         "detector {backend: onnx, device: cpu, precision: int8} takes it"),
    ],
)  # fmt: skip
def test_what_the_site_file_leaves_out_is_not_called_inaccurate(
    device: str, precision: str, way: str, reason: str, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place(AS_GOOD)
    monkeypatch.setattr(runtime_choice, "accelerators", lambda: (Accelerator("cuda", "/dev/nvidia0"),))
    monkeypatch.setattr(runtime_choice, "installed_version", lambda backend: "1" if backend == "onnx" else "")
    monkeypatch.setattr(runtime_choice, "_is_to_be_had", lambda model, way: True)
    asked = SETTINGS.model_copy(update={"backend": "auto", "device": device, "precision": precision})
    (row,) = (each for each in runtime_choice.runtime_options(asked, None) if each.way == way)
    assert (row.state, row.reason) == ("left out", reason)


def test_bfloat16_is_openvinos_where_onnx_runtime_has_no_such_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `check`, in a replay of the dashboard's, wherever a detector is loaded or its file looked for."""
    asked = DetectorConfig(precision="bf16")
    monkeypatch.setattr(model_files, "cpu_has_bf16", lambda: False)
    assert detector_loader.with_device(asked).backend == "openvino"
    found = detector_loader.locate(asked)
    assert found is not None
    assert found.path.name == "vedette-nano.onnx"
    monkeypatch.setattr(model_files, "cpu_has_bf16", lambda: True)
    assert detector_loader.with_device(asked).backend == "auto"


def test_the_one_way_that_is_left_of_a_precision_is_taken(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not ONNX Runtime's, which refuses bfloat16 on x86."""
    storage = place(AS_GOOD)
    only = (RuntimeCandidate("openvino", "bf16"),)
    monkeypatch.setattr(runtime_choice, "candidates_for", lambda settings: only)
    asked = SETTINGS.model_copy(update={"backend": "auto", "precision": "bf16"})
    nobody = lambda settings, candidates: pytest.fail("there is nothing to measure")  # noqa: E731
    settled = runtime_choice.settle_runtime(asked, storage, nobody)
    assert (settled.backend, settled.precision, settled.device) == ("openvino", "bf16", "cpu")
    assert runtime_choice.with_remembered_runtime(asked, storage) == settled


def test_a_precision_that_does_not_exist_is_refused_with_those_that_do(place: Callable[[str], Path]) -> None:
    place(AS_GOOD)
    with pytest.raises(ModelError, match=r"`yard-int8` does not come in fp32: .* one of auto, int8"):
        model_files.find_model("yard-int8", precision="fp32")
    with pytest.raises(ModelError, match=r"int8 needs a model of models\.toml"):
        model_files.find_model("mine.onnx", precision="int8")


def test_of_what_comes_with_vedette_every_variant_is_there_and_says_what_is_known_of_it() -> None:
    shipped = tomllib.loads((ROOT / "models" / model_files.MANIFEST).read_text())
    own = shipped[model_files.OWN_MODEL]
    assert set(own["variants"]) == {"int8", "bf16"}
    for form, name in own["variants"].items():
        assert shipped[name]["precision"] == form
        assert shipped[name]["labels"] == own["labels"]
        known = shipped[name].get("accuracy", {})
        assert set(known) in (set(), set(own["accuracy"])), "measured in part"
    places = (ROOT / "models",)
    as_accurate = model_files.accurate_precisions(model_files.OWN_MODEL, places)
    lost = {name: value - shipped["vedette-nano-int8"]["accuracy"][name] for name, value in own["accuracy"].items()}
    assert as_accurate[0] == "fp32"
    assert ("int8" in as_accurate) == (max(lost.values()) <= 0.01 + 1e-9)
    assert "bf16" not in as_accurate


def test_jobs_on_the_recording_run_the_network_as_the_appliance_does(
    place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = place(AS_GOOD)
    camera = {"url": "rtsp://192.168.1.20/main"}
    site = SiteConfig.model_validate({"detector": {"model": "yard", "backend": "onnx"}, "cameras": {"gate": camera}})
    assert without_secrets(site.for_decisions(), "gate", storage).detector.precision == "auto", "nothing is remembered"
    way = runtime_choice.settle_runtime(SETTINGS, storage, Meter(monkeypatch, fp32=0.020, int8=0.013))
    assert without_secrets(site.for_decisions(), "gate", storage).detector.precision == "int8"
    loaded: list[str] = []
    monkeypatch.setattr(runtime_choice.detector_loader, "load", lambda settings: loaded.append(settings.precision))
    for settings in (SETTINGS, SETTINGS.model_copy(update={"precision": "fp32"}), DetectorConfig(model="other")):
        sandboxed_jobs._loading(way)(settings)
    assert loaded == ["int8", "fp32", "auto"], "a kept scenario that leaves it open, one that does not, another network"


def test_versions_of_packages_are_those_that_their_metadata_tell() -> None:
    """Without `importlib.metadata`, which is 2 MB in ingest: of every package that is installed here."""
    names = {each.name for each in importlib.metadata.distributions()}
    assert "onnxruntime" in names
    assert {name: runtime_choice.package_version(name) for name in names} == {
        name: importlib.metadata.version(name) for name in names
    }
    assert runtime_choice.package_version("no-such-package") == ""


def test_a_package_of_the_system_may_tell_its_version_in_the_old_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "not there"), str(tmp_path)])
    (tmp_path / "tensor_rt-10.3.0-py3.10.egg-info").mkdir()
    (tmp_path / "TensorRT.Lean-10.4.0.dist-info").mkdir()
    assert runtime_choice.package_version("tensor-rt") == "10.3.0"
    assert runtime_choice.package_version("tensorrt_lean") == "10.4.0"
