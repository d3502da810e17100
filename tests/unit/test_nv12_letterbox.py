"""The kernel that lays a decoded frame into a network's input: compiled as C++ here, and held against numpy."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.detect.letterbox import (
    NAME,
    SOURCE,
    TYPES,
    GpuFrame,
    InputForm,
    Letterbox,
    Normalisation,
    PixelRange,
    Placement,
    kernel_values,
)
from benchmarks import gpu_reference

PRELUDE = """
#include <math.h>
#define __device__
#define __global__
struct Place { int x, y; };
static Place blockIdx, blockDim = {1, 1}, threadIdx;
#include "%s"
extern "C" void everywhere(int across, int down, %s) {
    for (blockIdx.y = 0; blockIdx.y < down; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < across; ++blockIdx.x)
            nv12_letterbox(%s);
}
"""
PLAIN = PixelRange(True, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
IMAGENET = PixelRange.of(InputForm("centre", normalisation=Normalisation((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))))
CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4"


def signature() -> list[str]:
    """The kernel's parameters as they stand in its source."""
    found = re.search(rf"__global__ void {NAME.decode()}\((.*?)\)", SOURCE.read_text(), re.DOTALL)
    assert found is not None
    return [" ".join(each.split()) for each in found[1].split(",")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler is here")
    folder = tmp_path_factory.mktemp("kernel")
    names = ", ".join(each.rpartition(" ")[2] for each in signature())
    (folder / "k.cpp").write_text(PRELUDE % (SOURCE, ", ".join(signature()), names))
    library = folder / "k.so"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(folder / "k.cpp")], check=True)
    function = ctypes.CDLL(str(library)).everywhere
    function.argtypes = [ctypes.c_int, ctypes.c_int, *TYPES]
    function.restype = None
    return function


def lay(
    compiled: Any, luma: NDArray[np.uint8], chroma: NDArray[np.uint8], place: Placement, pixels: PixelRange, **how: Any
) -> NDArray[np.float32]:
    """By the kernel, as by gpu_reference.lay."""
    width, height = place.input_size
    out = np.full((3, height, width), np.nan, np.float32)
    frame = GpuFrame(
        luma.ctypes.data, luma.strides[0], chroma.ctypes.data, chroma.strides[0], luma.shape[1], luma.shape[0], **how
    )
    compiled(width, height, *kernel_values(frame, place, pixels, out.ctypes.data, half_floats=False))
    return out


def noise(width: int, height: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Planes with lines that are longer than the picture, as decoders align them."""
    rng = np.random.default_rng(width)
    luma = rng.integers(0, 256, (height, width + 13), np.uint8)[:, :width]
    chroma = rng.integers(0, 256, ((height + 1) // 2, (width + 1) // 2 + 8, 2), np.uint8)[:, : (width + 1) // 2]
    return luma, chroma


@pytest.mark.parametrize(
    ("size", "pixels", "how"),
    [
        ((641, 361), PLAIN, {}),
        ((768, 576), IMAGENET, {"matrix": "bt709"}),
        ((200, 90), PixelRange(False, (1 / 255,) * 3, (0.0,) * 3), {"full_range": True}),
    ],
    ids=["odd, shrunk", "mean and deviation", "enlarged, BGR"],
)
def test_the_kernel_answers_as_numpy(
    size: tuple[int, int], pixels: PixelRange, how: dict[str, Any], compiled: Any
) -> None:
    luma, chroma = noise(*size)
    place = Letterbox(416, 416, "centre", 0, ((416, 288), (416, 416))).placement(*size)
    found = lay(compiled, luma, chroma, place, pixels, **how)
    wanted = gpu_reference.lay(luma, chroma, place, pixels, **how)
    np.testing.assert_allclose(found, wanted, atol=0.05 * pixels.gain[0])


def test_grey_lies_around_the_frame_and_nowhere_else(compiled: Any) -> None:
    luma, chroma = noise(160, 90)
    place = Letterbox(128, 128, "centre").placement(160, 90)
    assert place == Placement(0, 28, 128, 72, (128, 128))
    found = lay(compiled, luma, chroma, place, PLAIN)
    assert (found[:, :28] == 114).all()
    assert (found[:, 100:] == 114).all()
    assert not (found[:, 28:100] == 114).all(axis=(0, 2)).any()


def test_a_real_frame_is_as_swscale_colours_and_opencv_shrinks_it() -> None:
    """swscale rounds down: it is a level darker here, and two where it shrinks as well."""
    with av.open(str(CLIP)) as clip:
        frame = next(each for n, each in enumerate(clip.decode(video=0)) if n == 60)
    planes = frame.to_ndarray(format="nv12")
    luma, chroma = planes[: frame.height], planes[frame.height :].reshape(frame.height // 2, -1, 2)
    assert frame.colorspace == 1, "BT.709, as it says of itself"
    box = Letterbox(416, 416, "centre")
    place = box.placement(frame.width, frame.height)
    found = gpu_reference.lay(luma, chroma, place, PLAIN, matrix="bt709")
    wanted = box.lay(frame.to_ndarray(format="rgb24")).transpose(2, 0, 1).astype(np.float32)
    apart = np.abs(found - wanted)
    assert np.quantile(apart, [0.5, 0.99]).tolist() < [1.2, 3.0]
    assert apart.max() < 4.0


def test_pure_colours_are_those_of_the_standards() -> None:
    """ITU-R BT.601 and BT.709, table of 75 % and 100 % bars: Y, Cb, Cr of pure red in limited range."""
    for matrix, (y, u, v) in {"bt601": (81, 90, 240), "bt709": (63, 102, 240)}.items():
        luma, chroma = np.full((8, 8), y, np.uint8), np.empty((4, 4, 2), np.uint8)
        chroma[:] = (u, v)
        found = gpu_reference.lay(luma, chroma, Placement(0, 0, 8, 8, (8, 8)), PLAIN, matrix=matrix)
        np.testing.assert_allclose(found[:, 4, 4], [255, 0, 0], atol=2.5, err_msg=matrix)


def test_each_argument_is_given_as_what_the_kernel_takes() -> None:
    frame = GpuFrame(1, 2, 3, 4, 5, 6)
    values = kernel_values(frame, Placement(7, 8, 9, 10, (11, 12)), PLAIN, 13, half_floats=True)
    kinds = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "float": ctypes.c_float}
    wanted = [ctypes.c_void_p if "*" in each else kinds[each.rpartition(" ")[0]] for each in signature()]
    assert list(TYPES) == wanted
    assert len(values) == len(TYPES)
    assert values[:12] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    assert all(
        isinstance(value, int) == (kind is not ctypes.c_float) for value, kind in zip(values, TYPES, strict=True)
    )
