"""The stand-ins for NVIDIA's modules have no name and no parameter that the real bindings lack, in each version."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_nvidia
import pytest
from fake_nvidia import SIGNATURES, VERSIONS, FakeGpu

from models import tensorrt_signatures

WHEELS = os.environ.get("VEDETTE_NVIDIA_WHEELS", "")


def parameters_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def strange_names(module: ModuleType, table: dict[str, Any]) -> list[str]:
    """What the stand-in has and the real module has not, or has with other parameters."""
    strange = []
    for name, made in vars(module).items():
        if name.startswith("_"):
            continue
        if name in table["functions"]:
            if parameters_of(made) not in table["functions"][name]:
                strange.append(name)
        elif name in table["enumerations"]:
            if {key: int(value) for key, value in made.__members__.items()} != table["enumerations"][name]:
                strange.append(name)
        elif name not in table["classes"]:
            strange.append(name)
        else:
            strange += strange_attributes(made, table["classes"][name])
    return strange


def strange_attributes(made: type, real: dict[str, Any]) -> list[str]:
    strange = []
    for name, value in vars(made).items():
        if name.startswith("_") or name == "Severity":
            continue
        if name not in real:
            strange.append(f"{made.__name__}.{name}")
        elif callable(value) and parameters_of(value) not in real[name]:
            strange.append(f"{made.__name__}.{name}({', '.join(parameters_of(value))})")
        elif not callable(value) and real[name] != "property":
            strange.append(f"{made.__name__}.{name} is a method")
    return strange


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_the_fake_tensorrt_is_invented(version: str) -> None:
    assert strange_names(fake_nvidia.fake_tensorrt(version, FakeGpu()), SIGNATURES[f"tensorrt {version}"]) == []


@pytest.mark.parametrize("version", [each for each in SIGNATURES if each.startswith("cuda")])
def test_nothing_of_the_fake_cuda_is_invented(version: str) -> None:
    table, gpu = SIGNATURES[version], FakeGpu()
    for module in (fake_nvidia.fake_driver(gpu), fake_nvidia.fake_nvrtc(gpu)):
        part = module.__name__.rpartition(".")[2]
        for name, made in vars(module).items():
            if not name.startswith("__"):
                assert parameters_of(made.__wrapped__) in table["functions"][f"{part}.{name}"], name
    for name, made in vars(fake_nvidia.fake_cudart(gpu)).items():
        if name.startswith("__"):
            continue
        if hasattr(made, "__wrapped__"):
            assert parameters_of(made.__wrapped__) in table["functions"][f"runtime.{name}"], name
        elif name == "cudaStreamNonBlocking":
            assert made == table[name]
        else:
            assert {each.name: int(each) for each in made} == table["enumerations"][name]


def test_a_name_or_a_parameter_that_is_not_there_is_found() -> None:
    class Builder:
        def create_network(self, flags: int = 0) -> None: ...

        def build_engine(self, network: object) -> None: ...

        def create_builder_config(self, extra: object) -> None: ...

    found = strange_attributes(Builder, SIGNATURES["tensorrt 11.4.0.106"]["classes"]["Builder"])
    assert found == ["Builder.build_engine", "Builder.create_builder_config(extra)"]


def test_eleven_lacks_what_ten_has() -> None:
    flags = {version: set(SIGNATURES[f"tensorrt {version}"]["enumerations"]["BuilderFlag"]) for version in VERSIONS}
    assert {"FP16", "INT8"} <= flags["10.3.0"] & flags["10.16.1.11"]
    assert not {"FP16", "INT8"} & flags["11.4.0.106"]


def test_docstrings_are_read_as_parameters() -> None:
    one = (
        "set_flag(self: trt.IBuilderConfig, flag: trt.BuilderFlag = <Flag.A: 0>, other: Dict[str, int] = None) -> None"
    )
    two = "f(*args, **kwargs)\nOverloaded function.\n\n1. f(self: A, x: int) -> B\n\n2. f(self: A, y: C = None) -> B\n"
    assert tensorrt_signatures.parameters(one) == [["flag", "other"]]
    assert tensorrt_signatures.parameters(two) == [["x"], ["y"]]
    assert tensorrt_signatures.parameters("cudaMemcpyAsync(dst, src, size_t count, kind: cudaMemcpyKind, stream)") == [
        ["dst", "src", "count", "kind", "stream"]
    ]


@pytest.mark.slow
@pytest.mark.skipif(not WHEELS or shutil.which("gcc") is None, reason="VEDETTE_NVIDIA_WHEELS names no folder of wheels")
def test_the_table_is_what_the_wheels_say() -> None:
    found = sorted(Path(WHEELS).glob("*.whl"))
    others = [each for each in found if each.name.startswith("cuda_pathfinder")]
    read = dict(tensorrt_signatures.read_wheel(each, others) for each in found if each not in others)
    assert read
    assert {version: SIGNATURES[version] for version in read} == read
