"""The rights of the ingest process: it decodes what cameras send, so it gives up all else before the first packet.

It may

- write segments, pre-roll rings, sub-streams and parked vehicles of the storage folder, not its database;
- read libraries, networks, what resolves the names of hosts, and files that stand for cameras;
- connect to its cameras' TCP ports, RTSP's own and 53, on any host (Linux compares ports, not hosts; UDP is free);
- start the decoder of `decode.ffmpeg` where hardware decodes, and the helper of a Hailo device, else nothing;
- use devices of accelerators, where there are any.

The needs of accelerators are taken from their libraries' sources and manuals, and are not measured.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from appliance.base.errors import SourceError, VedetteError
from appliance.base.local_files import live_memory
from appliance.config import IngestConfig
from appliance.detect.accelerators import accelerators, python_with_bindings
from appliance.detect.model_files import model_folders
from appliance.detect.tensorrt_plan_cache import engine_folder
from appliance.ingest.file_source import clip_path
from appliance.ingest.ingest_resources import RESOLVER_FILES, IngestNeeds, camera_policy
from appliance.ingest.substream_ring import FOLDER as SUBSTREAMS
from appliance.sandbox.confinement import ConfinementPolicy, program_files
from appliance.store.paths import PREROLL, SEGMENTS
from appliance.track.stationary_objects import PARKED_FOLDER

# CUDA, TensorRT, VA-API, V4L2, DRM, OpenVINO's GPU and NPU, HailoRT, Jetson and Rockchip: not measured. Of /proc the
# kernel shows no memory, environment or files of a process outside, since Landlock keeps ptrace's rights from it.
_ACCELERATORS_READ = (
    "/proc", "/sys", "/opt/nvidia", "/opt/intel", "/opt/hailo", "/etc/OpenCL", "/etc/vulkan", "/etc/nv_tegra_release",
    "/run/udev", "/run/nvidia-persistenced",
)  # fmt: skip
_DEVICES = (
    "nvidia*", "nvhost*", "nvmap", "nvgpu", "nvsci*", "v4l2-*", "tegra*", "host1x*", "dri", "accel", "video*",
    "media*", "dma_heap", "hailo*", "mali*", "mpp_service", "rga",
)  # fmt: skip
_CACHES = ("nv/ComputeCache", "cache/neo_compiler_cache", "cache/mesa_shader_cache")  # in the home, behind a dot


class PolicyOutdated(VedetteError):
    """A file or folder that the process may use was replaced by one that it may not; a new start mends it."""


class IngestPolicy:
    """The policy of one ingest process, and whether it still fits.

    State: which files and folders there were when it was made. The kernel knows them by inode: one that was replaced
    (a disk that was mounted again, resolv.conf of another network) is out of reach until the process starts anew.
    """

    def __init__(self, site: IngestConfig) -> None:
        """Make the folders that are recorded into, as far as the disk lets it."""
        root = Path(site.storage.dir).absolute()
        written = [root / name for name in (SEGMENTS, SUBSTREAMS, PARKED_FOLDER)]
        if any(camera.record == "pre_roll" for camera in site.cameras.values()):
            written.append(root / PREROLL)
        for folder in written:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        needs = IngestNeeds.of(site)
        files = []
        for url in needs.files:
            with contextlib.suppress(SourceError):
                files.append(clip_path(url))
        memory = live_memory(root)
        cameras = camera_policy(files, needs.ports)
        self.policy = replace(
            cameras,
            readable=(*cameras.readable, *model_folders(), *_network_files(site)),
            writable=(*cameras.writable, *written, root / PREROLL, *([memory] if memory is not None else [])),
            made_in=(root,),
        )
        detector = site.detector
        on_cpu = detector.device == "cpu" and detector.backend != "hailo" and site.second_look.model is None
        if needs.hardware or (accelerators() and not on_cpu):
            self.policy = _with_accelerators(self.policy, site, needs)
        self._folders = _identities([*written, root / PREROLL, *files])
        self._resolver = _identities(RESOLVER_FILES)

    def is_outdated(self, *, names_fail: bool) -> bool:
        """Return True if a folder that may be written was replaced.

        While host names cannot be resolved (`names_fail`), also return True if the files that resolve them were
        replaced.
        """
        folders = _identities(self._folders)
        return folders != self._folders or (names_fail and _identities(self._resolver) != self._resolver)


def _with_accelerators(policy: ConfinementPolicy, site: IngestConfig, needs: IngestNeeds) -> ConfinementPolicy:
    """Add devices, what their libraries read and keep, and the programs that use them."""
    places = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    places += [os.environ.get(name, "") for name in ("CUDA_PATH", "CUDA_HOME")]
    caches = [Path.home() / f".{each}" for each in _CACHES] if "HOME" in os.environ else []
    engines = engine_folder()
    kept = [*caches, engines] if engines is not None else caches
    for folder in kept:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return replace(
        policy,
        readable=(*policy.readable, *map(Path, filter(None, (*_ACCELERATORS_READ, *places)))),
        writable=(*policy.writable, *kept, Path("/dev/shm")),
        devices=tuple(path for each in _DEVICES for path in Path("/dev").glob(each)),
        programs=tuple(_programs(site, needs)),
    )


def _programs(site: IngestConfig, needs: IngestNeeds) -> Iterator[Path]:
    decoder = shutil.which(str(site.decode.ffmpeg)) if needs.hardware else None
    if decoder is not None:
        yield from program_files(Path(decoder))
    if any(each.kind == "hailo" for each in accelerators()):
        yield from program_files(python_with_bindings(site.detector.hailo))


def _network_files(site: IngestConfig) -> Iterator[Path]:
    """Yield the files that the site names by their path, and those beside them under their name: weights, notes."""
    named = (site.detector.model, site.second_look.model or "", site.detector.labels or "")
    for path in (Path(each).expanduser() for each in named):
        if path.is_file():
            yield from path.parent.glob(f"{glob.escape(path.stem)}*")


def _identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    """Return the device and inode of each path; None if it is not there."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in paths:
        try:
            stats = os.stat(path)
            found[path] = stats.st_dev, stats.st_ino
        except OSError:
            found[path] = None
    return found
