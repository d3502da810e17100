"""Names and parameters of NVIDIA's Python bindings, from their wheels: python -m models.tensorrt_signatures WHEEL...

Writes tests/contract/nvidia_signatures.json, by which the tests' stand-ins are held; no library, no GPU is needed. The
wheels (pip download --no-deps tensorrt-cu12-bindings==10.3.0, cuda-bindings==13.5.0) are unpacked, and what TensorRT's
module is linked to is replaced by empty libraries that gcc makes.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "tests" / "contract" / "nvidia_signatures.json"
LINKED = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
# What the table holds of TensorRT: every method and property of these, and the members of these enumerations.
CLASSES = (
    "ILogger", "IProgressMonitor", "Builder", "INetworkDefinition", "IBuilderConfig", "IOptimizationProfile",
    "ITimingCache", "IHostMemory", "OnnxParser", "ParserError", "Runtime", "ICudaEngine", "IExecutionContext",
    "EngineInspector", "ITensor",
)  # fmt: skip
ENUMERATIONS = (
    "BuilderFlag", "NetworkDefinitionCreationFlag", "MemoryPoolType", "DeviceType", "ProfilingVerbosity", "DataType",
    "TensorIOMode", "LayerInformationFormat", "ExecutionContextAllocationStrategy",
)  # fmt: skip
FUNCTIONS = ("init_libnvinfer_plugins", "nptype")
CUDA = {
    "runtime": r"cuda(Malloc|MallocHost|Free|FreeHost|MemGetInfo|MemcpyAsync"
    r"|Graph(Instantiate|Launch|Destroy|ExecDestroy)|Stream(CreateWithFlags|Destroy|Synchronize|BeginCapture|EndCapture)|SetDevice"
    r"|Get(DeviceCount|DeviceProperties|ErrorString|LastError))$",
    "driver": r"cu(ModuleLoadData|ModuleGetFunction|ModuleUnload|LaunchKernel|GetErrorString)$",
    "nvrtc": r"nvrtc(Version|CreateProgram|CompileProgram|DestroyProgram|Get(ProgramLogSize|ProgramLog|CUBINSize|CUBIN"
    r"|ErrorString))$",
}
CUDA_ENUMERATIONS = ("cudaMemcpyKind", "cudaStreamCaptureMode")
Table = dict[str, Any]


def parameters(doc: str | None) -> list[list[str]]:
    """Return the names of a function's parameters, one list an overload, as its docstring's first lines give them."""
    lines = (doc or "").strip().splitlines()
    found = []
    for line in lines:
        match = re.match(r"(?:\d+\. )?\w+\((.*)\)", line)
        if match and "*args" not in line:
            found.append([_name(each) for each in _split(match[1]) if _name(each) not in ("self", "")])
            if not line[0].isdigit():
                break
    return found


def _split(text: str) -> Iterator[str]:
    """At commas that are in no bracket."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _name(parameter: str) -> str:
    """Return the name: `flags` of `flags: int = 0`, `size` of `size_t size`."""
    return parameter.split(":", maxsplit=1)[0].split("=", maxsplit=1)[0].strip().rpartition(" ")[2].lstrip("*")


def tensorrt_table(trt: Any) -> Table:
    """Return the table of an imported module."""
    table: Table = {"functions": {}, "enumerations": {}, "classes": {}}
    for name in FUNCTIONS:
        function = getattr(trt, name)  # some are written in Python
        if inspect.isfunction(function):
            table["functions"][name] = [list(inspect.signature(function).parameters)]
        else:
            table["functions"][name] = parameters(function.__doc__)
    for name in ENUMERATIONS:
        table["enumerations"][name] = {key: int(value) for key, value in getattr(trt, name).__members__.items()}
    table["enumerations"]["Severity"] = {key: int(value) for key, value in trt.ILogger.Severity.__members__.items()}
    for name in CLASSES:
        made: dict[str, list[list[str]] | str] = {}
        for attribute, value in vars(getattr(trt, name)).items():
            if attribute == "__init__":
                made[attribute] = parameters(value.__doc__)
            elif not attribute.startswith("_"):
                made[attribute] = "property" if isinstance(value, property) else parameters(value.__doc__)
        table["classes"][name] = made
    return table


def cuda_table() -> Table:
    """Return the table of the cuda.bindings that can be imported."""
    table: Table = {"functions": {}, "enumerations": {}}
    for module, wanted in CUDA.items():
        loaded = importlib.import_module(f"cuda.bindings.{module}")
        for name in filter(re.compile(wanted).match, vars(loaded)):
            table["functions"][f"{module}.{name}"] = parameters(getattr(loaded, name).__doc__)
    runtime = importlib.import_module("cuda.bindings.runtime")
    for name in CUDA_ENUMERATIONS:
        table["enumerations"][name] = {each.name: int(each) for each in getattr(runtime, name)}
    table["cudaStreamNonBlocking"] = int(runtime.cudaStreamNonBlocking)
    return table


def read_wheel(wheel: Path, others: Sequence[Path] = ()) -> tuple[str, Table]:
    """Return `tensorrt 10.3.0` and its table. Raise RuntimeError if it does not load.

    `others` are wheels that it needs.
    """
    name, version = wheel.name.split("-")[:2]
    kind = "tensorrt" if name.startswith("tensorrt") else "cuda"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for each in (wheel, *others):
            with zipfile.ZipFile(each) as archive:
                archive.extractall(folder / "site")
        if kind == "tensorrt":
            make_empty_libraries(folder, int(version.split(".")[0]))
        paths = os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[1])])
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": paths}
        command = [sys.executable, "-m", "models.tensorrt_signatures", "--dump", kind]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{wheel.name}: {done.stderr.strip().splitlines()[-1]}")
    return f"{kind} {version}", json.loads(done.stdout)


def as_text(table: Table, depth: int = 0) -> str:
    """Write JSON with a line for each class and enumeration."""
    if depth == 3 or not any(isinstance(value, dict) for value in table.values()):
        return json.dumps(table, sort_keys=True)
    rows = (
        f"{json.dumps(key)}: {as_text(value, depth + 1) if isinstance(value, dict) else json.dumps(value)}"
        for key, value in sorted(table.items())
    )
    return "{\n" + ",\n".join(rows) + "\n}" + ("" if depth else "\n")


def make_empty_libraries(folder: Path, major: int) -> None:
    """Libraries with the few symbols that TensorRT's module is linked to, which return nothing."""
    source = folder / "empty.c"
    source.write_text("".join(f"void* {name}(void) {{ return 0; }}\n" for name in LINKED), encoding="ascii")
    for library in LIBRARIES:
        soname = f"lib{library}.so.{major}"
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / soname), str(source)]
        subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--with", dest="others", nargs="*", type=Path, default=[], help="wheels that those need")
    parser.add_argument("--dump", choices=("tensorrt", "cuda"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dump:
        table = cuda_table() if options.dump == "cuda" else tensorrt_table(importlib.import_module("tensorrt_bindings"))
        print(json.dumps(table))
        return
    if not options.wheels:
        parser.error("name the wheels: without any the table would be emptied")
    tables = dict(read_wheel(each, options.others) for each in options.wheels)
    TABLE.write_text(as_text(tables), encoding="utf-8")
    print(f"{TABLE}: {', '.join(tables)}")


if __name__ == "__main__":
    main()
