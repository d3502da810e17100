"""The plan of `vedette demo`: its options, the cameras and the judge, the files and programs that follow from them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from appliance.base.child_modules import APPLIANCE, CLOUD_WORKER, RTSP_SERVER
from appliance.base.errors import SourceRefused, UsageError
from appliance.demo import demo_config
from appliance.demo.child_process import ChildProgram
from appliance.demo.demo_config import (
    DASHBOARD_PORT,
    NO_VLM,
    VLM_KEY,
    DemoCamera,
    VlmServer,
    dashboard_port,
    find_clips,
    find_local_vlm,
    find_nats_server,
    free_port,
    probe_vlm,
)
from appliance.demo.demo_console import DemoConsole
from appliance.demo.looping_clip import as_camera_clip

DETECTOR_JUDGES = (
    "Judged by a detector that looks again: it can reject or doubt, not confirm. A real model: "
    "vedette judge says which fits this machine and starts it; the demo then finds it by itself."
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `vedette demo`."""

    clip: Path | None = None  # played as the one camera
    cameras: tuple[str, ...] = ()  # RTSP addresses to use instead
    port: int | None = None  # None: 8080 or the next free one
    data: Path | None = None  # None: ./vedette-data/demo
    open_browser: bool = True
    seconds: float | None = None  # stop by itself so long after the dashboard is up
    model: str | None = None
    vlm: str | None = None  # a language model's server; None: one of this machine; NO_VLM: a detector judges
    vlm_model: str | None = None  # None: the only one that the server has
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The programs in order of starting, and their ports."""

    programs: tuple[ChildProgram, ...]
    nats_port: int
    rtsp_port: int | None
    dashboard_port: int
    data: Path
    judge: str  # what judges, one line

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}/"


def make_plan(options: DemoOptions, data: Path, console: DemoConsole) -> DemoPlan:
    """Find what is needed, write the configuration files, and plan how each program is started. Raises UsageError."""
    nats = find_nats_server()
    vlm, judge = _judge(options, console)
    with_key = bool(os.environ.get(VLM_KEY)) and options.vlm is not None
    rtsp_port = None if options.cameras else free_port()
    cameras, rtsp = _cameras(options, data, rtsp_port, console)
    port = dashboard_port(options.port)
    if options.port is None and port != DASHBOARD_PORT:
        console.emit("port", f"port {DASHBOARD_PORT} is taken; the dashboard uses {port}", port=port)
    nats_port = free_port()
    model = _model(options.model)
    address = f"nats://127.0.0.1:{nats_port}"
    site_path = _write(data / "demo.yaml", demo_config.site_file(data, cameras, address, port, model))
    worker_path = _write(data / "worker.yaml", demo_config.worker_file(address, model, vlm, with_key=with_key))
    nats_path = _write(data / "nats.conf", demo_config.nats_file(data, nats_port))
    secrets = {camera.variable: camera.password for camera in cameras if camera.password}
    python = sys.executable
    programs = (
        ChildProgram("nats-server", (str(nats), "-c", str(nats_path))),
        *rtsp,
        ChildProgram("worker", (python, "-m", CLOUD_WORKER, "run", "--config", str(worker_path)), stop_s=10.0),
        ChildProgram("vedette", (python, "-m", APPLIANCE, "run", "--config", str(site_path)), 25.0, secrets),
    )
    return DemoPlan(programs, nats_port, rtsp_port, port, data, judge)


def _judge(options: DemoOptions, console: DemoConsole) -> tuple[VlmServer | None, str]:
    """Return the language model's server, which has answered, and one line on what judges. Raise UsageError."""
    if options.vlm == NO_VLM:
        return None, DETECTOR_JUDGES
    if options.vlm is None:
        found, why = find_local_vlm(options.vlm_model)
        if found is not None:
            console.emit("judge", f"found a model server on this machine: {found.model} at {found.url}", url=found.url)
            return found, f"Judged by the vision-language model {found.model} at {found.url}."
        if options.vlm_model is not None:
            raise UsageError(f"--vlm-model needs --vlm: no server on this machine has it{f' ({why})' if why else ''}")
        if why:
            console.emit("judge", f"a server on this machine is not used: {why}")
        return None, DETECTOR_JUDGES
    console.emit("probe", f"asking the model at {options.vlm} a trial question ...", url=options.vlm)
    vlm = probe_vlm(options.vlm, options.vlm_model, os.environ.get(VLM_KEY, ""))
    return vlm, f"Judged by the vision-language model {vlm.model} at {vlm.url}."


def _cameras(
    options: DemoOptions, data: Path, rtsp_port: int | None, console: DemoConsole
) -> tuple[tuple[DemoCamera, ...], tuple[ChildProgram, ...]]:
    """Return the cameras, and the program that plays them if they are files."""
    if options.cameras:
        if options.clip is not None:
            raise UsageError("give either --clip or --camera, not both")
        return _given(options.cameras), ()
    if options.clip is not None:
        clips = {demo_config.camera_name(options.clip): _playable(options.clip.absolute(), data, console)}
    else:
        clips = dict(find_clips())
    mounts = tuple(f"{name}={path}" for name, path in clips.items())
    command = (sys.executable, "-m", RTSP_SERVER, "--port", str(rtsp_port), *mounts)
    cameras = tuple(DemoCamera(name, f"rtsp://127.0.0.1:{rtsp_port}/{name}") for name in clips)
    return cameras, (ChildProgram("rtsp", command),)


def _given(urls: tuple[str, ...]) -> tuple[DemoCamera, ...]:
    for url in urls:
        if not url.startswith(("rtsp://", "rtsps://")):
            raise UsageError(f"`{url}` is not a camera's address: it must begin with rtsp:// or rtsps://")
    return tuple(demo_config.camera_from_url(f"camera{number}", url) for number, url in enumerate(urls, 1))


def _playable(clip: Path, data: Path, console: DemoConsole) -> Path:
    try:
        return as_camera_clip(clip, data / "clips", lambda text: console.emit("convert", text))
    except SourceRefused as error:
        raise UsageError(f"--clip {error}") from None


def _model(model: str | None) -> str | None:
    """Return the model; a path as an absolute one, since the children run in other folders."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_file() else model


def _write(path: Path, text: str) -> Path:
    """Write a file that only this user may read: it holds user names and addresses of cameras."""
    path.unlink(missing_ok=True)
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600), encoding="utf-8") as file:
        file.write(text)
    return path
