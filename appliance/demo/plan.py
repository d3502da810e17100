"""What the demo is made of: the request, the parts it needs, and the files that configure them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from appliance.demo import site
from appliance.demo.children import Program
from appliance.demo.convert import as_camera_clip
from appliance.demo.parts import DASHBOARD_PORT, dashboard_port, find_clips, find_nats_server, free_port
from appliance.demo.site import DemoCamera
from appliance.demo.story import Teller
from appliance.errors import SourceRefused, UsageError


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What `vedette demo` was asked for.

    clip: play this file as the one camera. cameras: use these RTSP addresses instead. port: None is 8080 or the next
    free one. data: None is `./vedette-data/demo`. seconds: stop by itself that long after the dashboard is up.
    """

    clip: Path | None = None
    cameras: tuple[str, ...] = ()
    port: int | None = None
    data: Path | None = None
    open_browser: bool = True
    seconds: float | None = None
    model: str | None = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class House:
    """What is to run, in order of starting, and where it is to be seen."""

    programs: tuple[Program, ...]
    nats_port: int
    rtsp_port: int | None
    dashboard_port: int
    data: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}/"


def make_plan(options: DemoOptions, data: Path, teller: Teller) -> House:
    """Find the parts, write the configuration, and say how each program is started. Raises UsageError."""
    nats = find_nats_server()
    rtsp_port = None if options.cameras else free_port()
    cameras, rtsp = _cameras(options, data, rtsp_port, teller)
    port = dashboard_port(options.port)
    if options.port is None and port != DASHBOARD_PORT:
        teller.tell("port", f"port {DASHBOARD_PORT} is taken; the dashboard uses {port}", port=port)
    nats_port = free_port()
    model = _model(options.model)
    address = f"nats://127.0.0.1:{nats_port}"
    site_path = _write(data / "demo.yaml", site.site_file(data, cameras, address, port, model))
    worker_path = _write(data / "worker.yaml", site.worker_file(address, model))
    nats_path = _write(data / "nats.conf", site.nats_file(data, nats_port))
    secrets = {camera.variable: camera.password for camera in cameras if camera.password}
    python = sys.executable
    programs = (
        Program("nats-server", (str(nats), "-c", str(nats_path))),
        *rtsp,
        Program("worker", (python, "-m", "cloud_worker", "run", "--config", str(worker_path)), stop_s=10.0),
        Program("vedette", (python, "-m", "appliance", "run", "--config", str(site_path)), 25.0, secrets),
    )
    return House(programs, nats_port, rtsp_port, port, data)


def _cameras(
    options: DemoOptions, data: Path, rtsp_port: int | None, teller: Teller
) -> tuple[tuple[DemoCamera, ...], tuple[Program, ...]]:
    """The cameras, and the program that plays them if they are files."""
    if options.cameras:
        if options.clip is not None:
            raise UsageError("give either --clip or --camera, not both")
        return _given(options.cameras), ()
    if options.clip is not None:
        clips = {site.camera_name(options.clip): _playable(options.clip.absolute(), data, teller)}
    else:
        clips = dict(find_clips())
    mounts = tuple(f"{name}={path}" for name, path in clips.items())
    command = (sys.executable, "-m", "appliance.demo.rtsp_server", "--port", str(rtsp_port), *mounts)
    cameras = tuple(DemoCamera(name, f"rtsp://127.0.0.1:{rtsp_port}/{name}") for name in clips)
    return cameras, (Program("rtsp", command),)


def _given(urls: tuple[str, ...]) -> tuple[DemoCamera, ...]:
    for url in urls:
        if not url.startswith(("rtsp://", "rtsps://")):
            raise UsageError(f"`{url}` is not a camera's address: it must begin with rtsp:// or rtsps://")
    return tuple(site.camera_from_url(f"camera{number}", url) for number, url in enumerate(urls, 1))


def _playable(clip: Path, data: Path, teller: Teller) -> Path:
    try:
        return as_camera_clip(clip, data / "clips", lambda text: teller.tell("convert", text))
    except SourceRefused as error:
        raise UsageError(f"--clip {error}") from None


def _model(model: str | None) -> str | None:
    """A path stays right wherever the children look from."""
    return str(Path(model).absolute()) if model is not None and Path(model).is_file() else model


def _write(path: Path, text: str) -> Path:
    """Only we may read it: a camera's user name and address are in it."""
    path.unlink(missing_ok=True)
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600), encoding="utf-8") as file:
        file.write(text)
    return path
