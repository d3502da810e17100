"""What the answers of a GPU are compared with: frames of our own clip, and what the processor makes of them.

`lay` is the reference of the kernel nv12_letterbox.cu, in numpy: slow, and written another way. `compare` holds the
detections of two backends against each other, and `decode` gives the frames of a decoder.
"""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.base.box_arrays import iou_matrix
from appliance.base.clock import SystemClock
from appliance.detect import detector
from appliance.detect.cuda_runtime import CudaRuntime
from appliance.detect.letterbox import GREY, LUMA_SHARES, GpuFrame, PixelRange, Placement
from appliance.detect.network_detector import NetworkDetector
from appliance.media.hardware_codec import HardwareCodec
from appliance.media.hardware_probe import ProofClip, software_frames

FIRST_FRAME = 160
CLIP = Path(__file__).parents[1] / "fixtures" / "clips" / "yard.mp4"
SURE, SAME_IOU = 0.4, 0.5  # score of a box that is compared; overlap from which two are of one object
_CLOCK = SystemClock()


def area_weights(source: int, target: int) -> NDArray[np.float64]:
    """Return (target, source): how much of each pixel falls into each of `target` equal parts of a line."""
    edges = np.arange(target + 1) * source / target
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(source)[None]
    shares = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def chroma_weights(luma: int, target: int) -> NDArray[np.float64]:
    """As area_weights, of a plane that has half as many pixels, rounded up, over the same line."""
    edges = np.arange(target + 1) * luma / target / 2
    pixels = np.arange((luma + 1) // 2)[None]
    shares = np.clip(np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def lay(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    place: Placement,
    pixels: PixelRange,
    *,
    matrix: str = "bt601",
    full_range: bool = False,
) -> NDArray[np.float32]:
    """luma (H, W), chroma (H/2, W/2, 2) to (3, height, width) of the input."""
    height, width = luma.shape
    down, across = area_weights(height, place.height), area_weights(width, place.width)
    bright = down @ luma.astype(np.float64) @ across.T
    down, across = chroma_weights(height, place.height), chroma_weights(width, place.width)
    u, v = (down @ chroma[:, :, plane].astype(np.float64) @ across.T - 128 for plane in (0, 1))
    if not full_range:
        bright, u, v = (bright - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
    kr, kb = LUMA_SHARES[matrix]
    red, blue = bright + 2 * (1 - kr) * v, bright + 2 * (1 - kb) * u
    green = (bright - kr * red - kb * blue) / (1 - kr - kb)
    canvas = np.full((3, place.input_size[1], place.input_size[0]), float(GREY))
    rows, columns = slice(place.top, place.top + place.height), slice(place.left, place.left + place.width)
    canvas[:, rows, columns] = np.clip([red, green, blue], 0, 255)
    if not pixels.rgb:
        canvas = canvas[::-1]
    return (canvas * np.array(pixels.gain)[:, None, None] + np.array(pixels.bias)[:, None, None]).astype(np.float32)


def frames(count: int = 1, form: str = "bgr24") -> list[NDArray[np.uint8]]:
    """Return frames of our own clip, one every 20 frames, from where a person walks in."""
    found: list[NDArray[np.uint8]] = []
    with av.open(str(CLIP)) as clip:
        for number, each in enumerate(clip.decode(video=0)):
            if number >= FIRST_FRAME and (number - FIRST_FRAME) % 20 == 0:
                found.append(np.asarray(each.to_ndarray(format=form), np.uint8))
            if len(found) == count:
                break
    return found


def nv12(planes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """PyAV's NV12 (H * 3 / 2, W) as luma (H, W) and chroma (H / 2, W / 2, 2)."""
    height = planes.shape[0] * 2 // 3
    return planes[:height], planes[height:].reshape(height // 2, -1, 2)


def upload(cuda: CudaRuntime, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> GpuFrame:
    """Put a frame on the GPU, as a decoder would leave it there."""
    planes = [cuda.buffer(each.nbytes) for each in (luma, chroma)]
    for plane, content in zip(planes, (luma, chroma), strict=True):
        plane.view(content.dtype, content.shape)[:] = content
        cuda.upload(plane, content.nbytes)
    cuda.wait()
    height, width = luma.shape
    return GpuFrame(planes[0].device, width, planes[1].device, width, width, height, owner=cuda)


def sized(network: NetworkDetector, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """As the decoder would hand it over."""
    width, height = network.preferred_size(frame.shape[1], frame.shape[0])
    scaled = av.VideoFrame.from_ndarray(frame, format="bgr24").to_ndarray(
        format="bgr24", width=width, height=height, interpolation="AREA"
    )
    return np.asarray(scaled, np.uint8)


def compare(
    usual: detector.ObjectDetector, other: detector.ObjectDetector, pictures: list[NDArray[np.uint8]]
) -> tuple[list[float], list[float]]:
    """Compare the detections that are sure enough to be reported.

    Return the IoU of each with the other's best box of its class, and how far their scores are apart. What only the
    other is sure of has an IoU of 0.
    """
    alike, apart = [], []
    for picture in pictures:
        wanted, found = usual.detect([picture])[0], other.detect([picture])[0]
        shared = iou_matrix(wanted.boxes.astype(np.float64), found.boxes.astype(np.float64))
        shared *= wanted.class_ids[:, None] == found.class_ids[None]
        for row in np.flatnonzero(wanted.scores >= SURE):
            best = int(shared[row].argmax()) if shared[row].any() else -1
            alike.append(float(shared[row, best]) if best >= 0 else 0.0)
            if best >= 0:
                apart.append(abs(float(found.scores[best] - wanted.scores[row])))
        extra = (found.scores >= SURE) & (shared.max(axis=0, initial=0.0) < SAME_IOU)
        alike += [0.0] * int(extra.sum())
    return alike, apart


def decode(clip: ProofClip, seconds: float, codec: HardwareCodec | None) -> tuple[list[int | None], float]:
    """Return the PTS of the clip's frames, and how many a second came of it, over and over. codec None: software."""
    first: list[int | None] = []
    count, began = 0, _CLOCK.monotonic()
    while not count or _CLOCK.monotonic() - began < seconds:
        if codec is None:
            found: list[int | None] = [pts for pts, _ in software_frames(clip)[0]]
        else:
            found = [frame.pts for packet in clip.packets for frame in codec.decode(packet)]
            if not first:
                found += [frame.pts for frame in codec.decode(None)]
            codec.flush_buffers()
        first = first or found
        count += len(found)
    if codec is not None:
        codec.close()
    return first, count / (_CLOCK.monotonic() - began)
