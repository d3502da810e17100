"""`vedette check`: tries each part of a site file for a moment and reports one finding for each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from rich.table import Table

from appliance import config
from appliance.base import yamlfile
from appliance.base.clock import Clock, SystemClock
from appliance.base.console import text_console
from appliance.base.errors import (
    MissingDependency,
    SourceError,
    SourceRefused,
    StoreError,
    StoreUnavailable,
    camera_address,
)
from appliance.cli.detector_check import Lines, detector_findings
from appliance.config import CameraConfig, SiteConfig
from appliance.config.site_file import secrets_exposed, secrets_path
from appliance.config.values import Finding
from appliance.detect import runtime_choice
from appliance.detect.model_advice import DetectorLoad
from appliance.detect.runtime_choice import RuntimeOption, runtime_options, table_lines
from appliance.ingest.camera_probe import ProbeResult, probe
from appliance.ingest.hardware_decoders import HardwareDecoders
from appliance.ingest.process import RING_FREE_BYTES_MIN
from appliance.ingest.rtsp_source import is_address
from appliance.mqtt.broker_session import check_mqtt
from appliance.notify.notifier import check_targets
from appliance.sandbox.confinement import missing_confinement
from appliance.store.paths import DATABASE, PREROLL
from appliance.store.quotas import StorageLimits
from appliance.store.storage_report import read_storage_offline
from appliance.store.users import stored_users
from appliance.types import HARDWARE_KINDS
from appliance.web.tls import ServerCertificate

Level = Literal["ok", "warning", "unreachable", "wrong"]
PROBES_AT_ONCE = 8  # cameras; each decodes for a moment, and more would slow each other down
BROKER_TIMEOUT_S = 3.0  # TCP repeats a lost SYN after 1 s
BUSY_SHARE_MAX = 0.85  # of all cores: recording, tracking and pages need the rest
DAYS_LEFT_MIN = 2.0  # less is worth a note
_ESCAPED = "in a user name or password write / as %2F, ? as %3F, # as %23, @ as %40"
_LEVEL_MARKUP = {
    "ok": "[green]ok[/]",
    "warning": "[yellow]note[/]",
    "unreachable": "[red]fails[/]",
    "wrong": "[red]wrong[/]",
}


def check(site_file: Path, *, probe: bool, as_json: bool) -> int:
    """Print what was found; 0 ready, 1 something did not answer, 2 the file is wrong. Raises ConfigError."""
    site = config.load(site_file)
    options = runtime_options(site.detector, runtime_choice.remembered_choice(site.detector, site.storage.dir))
    lines = yamlfile.line_numbers(site_file)
    findings = [*_secrets(site_file), *exposures(site, site_file), *_findings(site, lines, options, contact=probe)]
    if as_json:
        print(json.dumps(_as_json(site_file, findings, options)))
    else:
        _print(site_file, findings, options)
    return exit_code(findings)


def exit_code(findings: list[Finding]) -> int:
    """Return 2 when the file must be changed, 1 when something did not answer, else 0."""
    levels = {finding.level for finding in findings}
    if "wrong" in levels:
        return 2
    return 1 if "unreachable" in levels else 0


def _findings(site: SiteConfig, lines: Lines, options: Sequence[RuntimeOption], *, contact: bool) -> Iterator[Finding]:
    loads: list[DetectorLoad] = []
    yield _storage(site.storage.dir)
    yield from _preroll(site)
    yield from _forecast(site, SystemClock())
    yield from detector_findings(site.for_ingest(), lines, loads, options)
    yield from _hardware_decode(site)
    yield _confinement()
    yield _dashboard(site)
    if not site.cameras:
        yield Finding("cameras", "warning", "no camera yet: add one on the dashboard, or here")
    yield from _addresses(site)
    yield from _broker_files(site)
    if contact:
        answers = _probed(site)
        yield from (_camera(each) for each in answers)
        yield from _together(answers, loads)
        if site.uplink is not None:
            yield from (_broker(each.url) for each in site.uplink.addresses)
    if site.uplink is None:
        leaving = ["notifications"] if any(each.enabled and not each.local for each in site.notify.values()) else []
        if site.mqtt is not None and site.mqtt.enabled and not site.mqtt.local:
            leaving.append("what `mqtt` publishes")
        what = f"only {' and '.join(leaving)} leave this appliance" if leaving else "nothing leaves this appliance"
        yield Finding("uplink", "ok", f"absent: edge only, {what}")
    yield from check_targets(
        site.notify, public_url=site.dashboard.public_url, has_judge=site.for_decisions().has_judge, contact=contact
    )
    if site.mqtt is not None and site.mqtt.enabled:
        yield from check_mqtt(site.mqtt, contact=contact)


def _addresses(site: SiteConfig) -> Iterator[Finding]:
    """Find addresses that cannot be right; nothing is contacted."""
    for name, camera in site.cameras.items():
        for key, url in (("url", camera.url), ("detect_url", camera.detect_url)):
            about = f"cameras.{name}.{key}"
            if not url or url.startswith("file:"):
                continue
            if not is_address(url):
                text = f"{camera_address(url)} is not an address like rtsp://host:554/path; {_ESCAPED}"
                yield Finding(about, "wrong", text)
            elif re.search("[/?#].*@", url.partition("://")[2]):
                yield Finding(about, "warning", f"the host is what comes before the first /, ? or #: {_ESCAPED}")


def _secrets(site_file: Path) -> Iterator[Finding]:
    """Find secrets that others can read."""
    if secrets_exposed(site_file):
        path = secrets_path(site_file)
        yield Finding("secrets", "warning", f"{path} can be read by other users of this machine: chmod 600 {path}")


def exposures(site: SiteConfig, site_file: Path) -> Iterator[Finding]:
    """Find secrets that others can read: in the site file, and on the way to the broker."""
    uplink, text = site.uplink, site_file.read_text(encoding="utf-8")
    urls = [
        url for each in site.cameras.values() for url in (each.url, each.detect_url, each.onvif) if url and "@" in url
    ]
    secrets = [url.partition("://")[2].rpartition("@")[0].partition(":")[2] for url in urls] + list(
        uplink.secrets if uplink else ()
    )
    if site.mqtt is not None and site.mqtt.password is not None:
        secrets.append(site.mqtt.password.get_secret_value())
    if site.dashboard.token is not None:
        secrets.append(site.dashboard.token.get_secret_value())
    if site_file.stat().st_mode & stat.S_IROTH and any(each and each in text for each in secrets):
        yield Finding(
            "secrets", "warning",
            f"{site_file} holds a password and can be read by every user of this machine: chmod 640 {site_file}, or "
            "write ${NAME} for it",
        )  # fmt: skip
    if uplink is None or not uplink.secrets or uplink.tls_ca is not None:
        return
    for parts in (urlsplit(each.url) for each in uplink.addresses):
        if parts.scheme in {"nats", "ws"} and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
            text = f"its secret crosses the network to {parts.netloc.rpartition('@')[2]} in the clear: use tls://"
            yield Finding("uplink.url", "warning", text)


def _storage(folder: Path) -> Finding:
    existing = _existing(folder)
    if not existing.is_dir():
        return Finding("storage.dir", "wrong", f"{existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("storage.dir", "wrong", f"{existing} cannot be written by this user")
    free_gb = shutil.disk_usage(existing).free / 1e9
    return Finding("storage.dir", "ok", f"{folder}, {free_gb:.1f} GB free")


def _preroll(site: SiteConfig) -> Iterator[Finding]:
    """Check that the pre-roll rings fit where they lie, and that an alert's pre-roll fits into them."""
    rings = StorageLimits.of(site.storage, site.cameras).rings
    folder = site.storage.preroll_dir
    if not rings:
        if folder is not None:
            yield Finding("storage.preroll_dir", "warning", "no camera has `record: pre_roll`: nothing will lie there")
        return
    need = sum(rings.values())
    if folder is None:
        text = f"{len(rings)} rings of {need / 1e6:.0f} MB together on the disk of storage.dir"
        yield Finding("storage.preroll_dir", "ok", f"{text}; a folder in memory would spare an SD card")
        return
    existing = _existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Finding("storage.preroll_dir", "wrong", f"{existing} is not a folder that this user may write")
        return
    now_there = 0  # bytes of an appliance that runs, which replaces its segments meanwhile
    for file in (site.storage.dir / PREROLL).glob("*/*"):
        with contextlib.suppress(OSError):
            now_there += file.stat().st_size
    free = shutil.disk_usage(existing).free + now_there
    if free < need + RING_FREE_BYTES_MIN:
        text = f"{folder} has {free / 1e6:.0f} MB free and the rings need {need / 1e6:.0f}: lower quota.preroll_mb"
        yield Finding("storage.preroll_dir", "wrong", text)
    elif existing.stat().st_dev == _existing(site.storage.dir).stat().st_dev:
        yield Finding("storage.preroll_dir", "warning", f"{folder} is on the disk of storage.dir: nothing is spared")
    else:
        yield Finding("storage.preroll_dir", "ok", f"{folder}, {need / 1e6:.0f} of {free / 1e6:.0f} MB for the rings")


def _forecast(site: SiteConfig, clock: Clock) -> Iterator[Finding]:
    """Find how long the recording goes on, as measured here; not known before the appliance has ever run."""
    root = site.storage.dir.absolute()
    if not (root / DATABASE).is_file():
        yield Finding("storage", "ok", "days left: not yet known, nothing was recorded here")
        return
    try:
        found = read_storage_offline(root, StorageLimits.of(site.storage, site.cameras), clock.now())
    except StoreUnavailable as error:
        yield Finding("storage", "warning", f"days left: not known ({error})")
        return
    except StoreError as error:  # `vedette run` would not start on it
        yield Finding("storage", "wrong", str(error))
        return
    taken = f"{sum(found.taken.values()) / 1e9:.1f} of {found.limits.size_bytes / 1e9:g} GB taken"
    forecast = found.forecast
    if forecast.outlook == "unknown":
        yield Finding("storage", "ok", f"{taken}; days left: not yet known, it takes an hour of recorded video")
    elif forecast.outlook == "fills" and forecast.days_left is not None:
        text = f"{taken}; {forecast.days_left:.1f} days left until `{forecast.limit}` deletes recording before its time"
        yield Finding("storage", "warning" if forecast.days_left < DAYS_LEFT_MIN else "ok", text)
    else:
        yield Finding("storage", "ok", f"{taken}; everything is kept as long as it should be")
    for each in found.cameras:
        keeps, rate = each.forecast.keeps_s, each.rate
        if each.mode != "continuous" or keeps is None or rate is None:
            continue
        text = f"{rate * 86400 / 1e9:.1f} GB a day, will reach {keeps / 3600:.0f} h back"
        short = keeps < each.limits.keep_s * 0.999
        why = f" instead of the {each.limits.keep_s / 3600:g} h it should: {each.forecast.limit}" if short else ""
        yield Finding(f"cameras.{each.camera}", "warning" if short else "ok", text + why)


def _existing(folder: Path) -> Path:
    return next(place for place in [folder.absolute(), *folder.absolute().parents] if place.exists())


def _hardware_decode(site: SiteConfig, decoders: HardwareDecoders | None = None) -> Iterator[Finding]:
    """Report what the requested hardware gives; nothing if software decodes every camera. decoders: as probed."""
    decoders = decoders or HardwareDecoders(site.decode)
    asked = {name: decoders.settings.hardware_of(camera.decode) for name, camera in site.cameras.items()}
    if "auto" in asked.values():
        for probed in decoders.probed():
            yield Finding(f"decode.hardware {probed.kind}", "ok", probed.text if probed.works else probed.reason)
    for name, camera in site.cameras.items():
        try:
            decoders.must_have({name: camera})
        except MissingDependency as error:
            yield Finding(f"cameras.{name}.decode", "wrong", str(error))
    for probed in decoders.probed([kind for kind in HARDWARE_KINDS if kind in asked.values()]):
        level: Level = "ok" if probed.works else "warning"
        yield Finding(f"decode.hardware {probed.kind}", level, probed.text)


def _confinement() -> Finding:
    """Report how far this kernel keeps processes that decode video from all else."""
    missing = missing_confinement()
    text = "; ".join(missing) or "video is decoded by processes with files, ports and system calls of their own alone"
    return Finding("confinement", "warning" if missing else "ok", text)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of one stream of a camera. detects: it is the one that is decoded."""

    about: str
    found: ProbeResult | SourceError
    detects: bool


def _probed(site: SiteConfig) -> list[_Answer]:
    """Probe the streams of all cameras, several at once."""
    jobs = [
        (key, name, camera, url)
        for name, camera in site.cameras.items()
        for key, url in (("url", camera.url), ("detect_url", camera.detect_url))
        if url is not None and camera.enabled
    ]
    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe") as pool:
        return list(pool.map(lambda job: _answer(*job), jobs))


def _answer(key: str, name: str, camera: CameraConfig, url: str) -> _Answer:
    detects = key == "detect_url" or camera.detect_url is None
    try:
        return _Answer(f"cameras.{name}.{key}", probe(name, camera, url, key), detects)
    except SourceError as error:
        return _Answer(f"cameras.{name}.{key}", error, detects)


def _camera(answer: _Answer) -> Finding:
    if isinstance(answer.found, SourceError):
        level: Level = "wrong" if isinstance(answer.found, SourceRefused) else "unreachable"
        return Finding(answer.about, level, str(answer.found))
    return Finding(answer.about, "ok", answer.found.summary())


def _together(answers: list[_Answer], loads: list[DetectorLoad]) -> Iterator[Finding]:
    """Estimate what decoding and detecting take when every camera moves, for the cameras that answered."""
    decoded = [each.found for each in answers if each.detects and isinstance(each.found, ProbeResult)]
    if not loads or not any(each.decode_s for each in decoded):
        return
    cores = len(os.sched_getaffinity(0))
    decoding = sum(each.decode_share for each in decoded)
    need = decoding + loads[0].share
    text = (
        f"when every camera moves, decoding takes {decoding:.0%} and the detector {loads[0].share:.0%} of a core: "
        f"{need / cores:.0%} of this machine's {cores}"
    )
    busy = need > BUSY_SHARE_MAX * cores
    if busy:
        text += "; cameras will be overloaded: a smaller detect_url, a lower detect.fps, or fewer cameras"
    yield Finding("machine", "warning" if busy else "ok", text)


def _broker_files(site: SiteConfig) -> Iterator[Finding]:
    """Find files of the uplink that cannot be read: without them nothing would ever leave the outbox."""
    for key, path in site.uplink.unreadable_files() if site.uplink is not None else ():
        yield Finding(f"uplink.{key}", "wrong", f"{path} is no file that this user can read")


def _broker(url: str) -> Finding:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 4222
    try:
        with socket.create_connection((host, port), BROKER_TIMEOUT_S):
            return Finding("uplink.url", "ok", f"{host}:{port} answers")
    except OSError as error:
        reason = error.strerror or "no answer"
        return Finding("uplink.url", "unreachable", f"{host}:{port}: {reason}; alerts would wait in the outbox")


def _dashboard(site: SiteConfig) -> Finding:
    if not site.dashboard.enabled:
        return Finding("dashboard", "ok", "switched off")
    if site.dashboard.open_to_all and not stored_users(site.storage.dir / DATABASE):
        return Finding("dashboard.host", "wrong", site.dashboard.open_to_all)
    host, port = site.dashboard.host, site.dashboard.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((host, port))
        except OSError as error:
            text = f"{host}:{port}: {error.strerror}; is Vedette running already? Else set dashboard.port"
            return Finding("dashboard.port", "warning", text)
    try:
        certificate = site.dashboard.certificate and ServerCertificate.of(site.dashboard, Path(), SystemClock())
    except MissingDependency as error:
        return Finding("dashboard.certificate", "wrong", str(error))
    if certificate and certificate.facts.expires_t < SystemClock().now():
        return Finding("dashboard.certificate", "wrong", f"{site.dashboard.certificate} has expired")
    return Finding("dashboard.port", "ok", f"{'https' if site.dashboard.speaks_https else 'http'}://{host}:{port}")


def _as_json(path: Path, findings: list[Finding], options: Sequence[RuntimeOption]) -> dict[str, object]:
    bad = [f"{finding.about}: {finding.text}" for finding in findings if finding.level in {"wrong", "unreachable"}]
    code = exit_code(findings)
    return {
        "ok": code == 0, "file": str(path), "problems": bad, "findings": [finding._asdict() for finding in findings],
        "runtimes": [asdict(each) for each in options],
    }  # fmt: skip


def _print(path: Path, findings: list[Finding], options: Sequence[RuntimeOption]) -> None:
    console = text_console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(_LEVEL_MARKUP[finding.level], finding.about, finding.text.replace("[", r"\["))
    console.print(table)
    if options:
        console.print("\nWhat this appliance has to run the network with (detector.backend: auto):")
        for line in table_lines(options):
            console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
        console.print()
    verdicts: dict[int, Callable[[], str]] = {
        0: lambda: f"{path}: ready. Start it with: vedette run --config {path}",
        1: lambda: f"{path}: the file is right, but not everything answers.",
        2: lambda: f"{path}: must be changed before it can run.",
    }
    console.print(verdicts[exit_code(findings)](), soft_wrap=True)
