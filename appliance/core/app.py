"""Runs `vedette run` in three steps: build every service, recover from a kill of the last run, start the services."""

from __future__ import annotations

import contextlib
import linecache
import logging
import resource
import secrets
import signal
import stat
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from appliance import config as site_config
from appliance.backup.restore import apply_ready
from appliance.base.clock import Clock, SystemClock, local_day
from appliance.base.errors import MissingDependency, StoreError, UsageError
from appliance.base.process_memory import (
    CORE_MMAP_THRESHOLD_BYTES,
    TRIM_EVERY_S,
    MemoryTrimmer,
    free_import_leftovers,
    hold_little,
    share_methods,
    spare_what_stays,
)
from appliance.base.telemetry import LogRing, remove_identifiers
from appliance.base.threads import Service, ServiceGroup, ServiceRestarts, periodic_service
from appliance.bundle.rollout import SHADOW_EVERY_S
from appliance.canary.candidates import EVERY_S as PROOF_EVERY_S
from appliance.canary.candidates import NightlyProof
from appliance.canary.proof_store import ProofStore
from appliance.config import SiteConfig, StorageConfig
from appliance.core.appliance_monitor import READ_EVERY_S, ApplianceMonitor, DiskWatch
from appliance.core.background_services import (
    BackgroundConfig,
    BackgroundServices,
    LastingParts,
    stop_all,
)
from appliance.core.core_loop import Core
from appliance.core.core_settings import CoreStores
from appliance.core.detector_switch import DetectorSwitch
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.shadow_trial import ShadowSources, ShadowTrial
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import MediaReaders, StoredSite
from appliance.dashboard.setup_api import new_setup_code
from appliance.detect.bundle_maker import adopt_network
from appliance.detect.model_files import bundle_store, pull_folder
from appliance.evidence.uploaded_media import forget_unasked
from appliance.health.load_shedding import LoadShedding
from appliance.media.recording_reader import LIMITS, SandboxedReader
from appliance.recheck.service import ImageDetector
from appliance.settings.settings_service import SettingsService
from appliance.settings.site_editor import first_site_file
from appliance.store.cameras import NOT_RUNNING, CameraStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.paths import CUTS, DATABASE, EVIDENCE, PREROLL, SCENARIOS, SEGMENTS
from appliance.store.preroll_ring import prepare_ring_folder
from appliance.store.segments import MeasureSegment
from appliance.store.users import UserStore
from appliance.store.write_backlog import WriteBacklog
from appliance.types import HealthEvent
from appliance.web.server import WebServer

logger = logging.getLogger(__name__)

OPEN_FILES_MAX = 8192  # as LimitNOFILE of deploy/systemd/vedette.service
METER_EVERY_S = 1.0  # a kill loses the counts of at most one second; a shorter interval wears out an SD card
VIEW_IDLE_S = 60.0  # the child process that decodes for the live view ends after so long without a viewer


def run_command(site_file: Path | None, listen: str | None) -> int:
    """Run the appliance; put a restored backup in place first. Returns the exit code."""
    if site_file is not None and listen is not None:
        raise UsageError(f"--listen is for the first run, without --config: set dashboard.host in {site_file}")
    path = site_file or first_site_file(Path("site.yaml").absolute(), listen)
    site = site_config.load(path)
    if apply_ready(path, site.storage.dir.absolute()):
        site = site_config.load(path)
    return run(site, path)


def run(config: SiteConfig, site_file: Path) -> int:
    """Run the appliance until SIGINT or SIGTERM. Returns 0, 1 after a service failed, 2 for an unusable model.

    site_file: the file from which `config` was read; the dashboard may change it.

    Raise UsageError before anything is started, for example if a port is taken or the storage folder is unusable. The
    model is loaded only in the ingest process, which uses it. Here it would cost 70 MB for nothing.
    """
    remove_identifiers()
    # These three keep the memory of this process small. They come before anything that stays is made.
    hold_little(CORE_MMAP_THRESHOLD_BYTES)  # sets malloc up: large freed blocks go back, and threads share heaps
    share_methods()  # dataclasses share the methods that Python writes anew for each class
    free_import_leftovers()  # frees annotations and caches that only imports needed
    _raise_open_files_limit()
    group = ServiceGroup()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: group.stop())
    clock = SystemClock()
    log = LogRing(clock)
    logging.getLogger().addHandler(log)
    root = storage_folder(config.storage)
    db = Database(root / DATABASE, clock)
    try:
        users = UserStore(db).users()
        setup_code = new_setup_code() if is_in_setup(config, users) else ""
        if not setup_code:
            check_guarded(config, users)
        appliance = build(config, root, db, clock, group, site_file, setup_code, log=log)
        with contextlib.closing(SandboxedReader(root)) as reader:
            recover(config, root, appliance.stores, clock, reader.recover_segment, new_database=db.is_new)
        start(appliance, group)
        appliance.warm_up()
        spare_what_stays()  # the garbage collector need not look at what was made so far
        logger.info("site %s, %d cameras; %s", config.site.name, len(config.cameras), appliance.where)
        if appliance.fingerprint:
            text = "The browser will not know this certificate; compare its SHA-256:"
            print(f"{text}\n{appliance.fingerprint}", flush=True)
        if setup_code:  # on the console and not in the log, which goes to other places
            print(f"\nSet this appliance up in a browser: {appliance.url}setup   code {setup_code}\n", flush=True)
        code = group.wait()
        appliance.close(clock)
        return code
    finally:
        db.close()


def _raise_open_files_limit() -> None:
    """Allow OPEN_FILES_MAX open files: each connection, segment and database reader is one.

    systemd and shells start a process with 1024, which a site with many cameras and viewers would exceed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Appliance:
    """Everything that runs, wired.

    State: the settings that are in force, and the services that are made anew when these change. where: the dashboard's
    address, for people. `reconfigure` is called by one thread at a time.
    """

    def __init__(
        self,
        config: SiteConfig,
        lasting: LastingParts,
        background: BackgroundServices,
        core: Core,
        group: ServiceGroup,
        site_file: Path,
        setup_code: str = "",
    ) -> None:
        """group: that runs the services. site_file: which the settings are changed in."""
        self.config = config
        self.core = core
        self.stores = lasting.stores
        self._lasting = lasting
        self._background = background
        self._group = group
        self.settings = SettingsService(site_file, lasting.root, lasting.clock, self.reconfigure)
        self._proof = NightlyProof(lasting.root, site_file, bundle_store(), lambda: lasting.monitor.shed, lasting.clock)
        self._dashboard = (
            _build_dashboard(config, lasting, background, self.settings, setup_code)
            if config.dashboard.enabled
            else None
        )
        self._configure_monitor()
        self.url = self._dashboard.url if self._dashboard else ""
        self.fingerprint = self._dashboard.fingerprint if self._dashboard else ""
        self.where = f"dashboard at {self._dashboard.url}" if self._dashboard else "no dashboard"

    @property
    def services(self) -> tuple[Service, ...]:
        """The services in the order of starting. The makers of alerts start last, and so stop first."""
        lasting, dashboard = self._lasting, self._dashboard
        meter = periodic_service(
            "meter", METER_EVERY_S, partial(_flush_meter, lasting.stores.meter, lasting.clock), lasting.clock
        )
        memory = periodic_service(
            "memory", TRIM_EVERY_S, partial(_give_memory_back, lasting.db, MemoryTrimmer()), lasting.clock
        )
        sensors = periodic_service("sensors", READ_EVERY_S, lasting.monitor.run_once, lasting.clock)
        disk = periodic_service("disk", READ_EVERY_S, lasting.disk.run_once, lasting.clock)
        networks = Service("networks", lasting.networks.run, lasting.networks.stop)
        compared = periodic_service("shadow", SHADOW_EVERY_S, lasting.shadow.run_once, lasting.clock)
        stop = partial(stop_all, compared.stop, lasting.shadow.stop)
        shadow = lasting.restarts.guard(Service("shadow", compared.run, stop, resumes=False))
        services = [meter, memory, sensors, disk, networks, shadow, *self._background.services]
        if dashboard is not None:
            services.append(
                Service(
                    "dashboard",
                    dashboard.run,
                    partial(stop_all, dashboard.stop, *(each.close for each in lasting.readers)),
                    resumes=False,
                )
            )
        proof = periodic_service("proof", PROOF_EVERY_S, self._proof.run_once, lasting.clock)
        services.append(Service("proof", proof.run, partial(stop_all, proof.stop, self._proof.stop)))
        supervisor = lasting.supervisor
        return (*services, Service("core", partial(supervisor.run, self.core), supervisor.stop))

    def reconfigure(self, config: SiteConfig) -> tuple[str, ...]:
        """Put new settings in force while it runs. Returns the keys that a restart alone can change: they stay.

        Cameras that did not change are not touched: neither their connection nor their recording nor their open alerts.
        Raises UsageError before anything was changed.
        """
        config, waiting = keep_until_restart(self.config, config)
        if _loaded_by(config) != _loaded_by(self.config):
            self._lasting.supervisor.trial.run(config.for_ingest())
        background = BackgroundServices(_background_config(config), self._lasting, self._background)
        self._group.replace(self._background.services, background.services)
        self._background, self.config = background, config
        cameras = {name: camera.url for name, camera in config.cameras.items() if camera.enabled}
        self.stores.cameras.configure(cameras)
        self.core.reconfigure(background.core_settings)
        self._lasting.networks.reconfigure(config.for_ingest())
        self._configure_monitor()
        background.preroll.shrink(self._preroll_share())
        if self._dashboard is not None:
            self._dashboard.configure(config.for_dashboard(), background.dashboard_probes)
        return waiting

    def warm_up(self) -> None:
        """Do what would make the first page late, and keep the network in use; call it when the services run."""
        try:
            if pull_folder().is_dir() and (kept := adopt_network(self.config.detector.model)):
                logger.info("the network in use is kept as %s", kept)
        except UsageError as error:
            logger.warning("the network in use is not kept as a bundle: %s", error)
        if self._dashboard is None:
            return
        try:
            self._dashboard.warm_up()
        except StoreError as error:  # the page that wants it says so again
            logger.warning("nothing was made ready for the first page: %s", error)

    def _configure_monitor(self) -> None:
        config, monitor = self.config, self._lasting.monitor
        monitor.configure(config.load_shedding, config.health.ignore, self._shed_memory)
        self._lasting.disk.configure(config.storage.disk_free_min_mb * 1_000_000)

    def _shed_memory(self, shed: LoadShedding) -> None:
        """Release what can be read again when the step of memory changes. Called by the monitor's thread."""
        self._background.preroll.shrink(self._preroll_share())
        if shed.memory.step == 0:
            return
        for reader in self._lasting.readers:
            reader.rest()
        if self._dashboard is not None:
            self._dashboard.empty_caches()

    def _preroll_share(self) -> float:
        """Return the share that the pre-roll rings keep; 1.0 if they lie on a disk, where they take no memory."""
        return 1.0 if self.config.storage.preroll_dir is None else self._lasting.monitor.shed.preroll_share

    def close(self, clock: Clock) -> None:
        """Write what is buffered; call after the services have stopped."""
        self.core.close()
        _flush_meter(self.stores.meter, clock)


def _background_config(config: SiteConfig) -> BackgroundConfig:
    return BackgroundConfig(
        config.for_decisions(),
        config.arming,
        config.storage,
        config.second_look,
        config.uplink,
        config.notify,
        config.mqtt,
        config.dashboard.public_url,
        config.dashboard.certificate if config.dashboard.speaks_https else None,
    )


def _loaded_by(config: SiteConfig) -> tuple[object, ...]:
    """Return the settings that may keep the detection process from starting."""
    hardware = {
        name: each.decode for name, each in config.cameras.items() if config.decode.hardware_of(each.decode) != "off"
    }
    return config.detector, config.second_look.model, config.decode, hardware


def keep_until_restart(running: SiteConfig, new: SiteConfig) -> tuple[SiteConfig, tuple[str, ...]]:
    """Return `new` with what only a restart can change as it is running, and the keys of that."""
    waiting = []
    storage, dashboard, sensors = new.storage, new.dashboard, new.sensors
    if sensors.root != running.sensors.root:
        waiting.append("sensors.root")
        sensors = sensors.model_copy(update={"root": running.sensors.root})
    for key in ("dir", "preroll_dir"):
        if getattr(storage, key) != getattr(running.storage, key):
            waiting.append(f"storage.{key}")
            storage = storage.model_copy(update={key: getattr(running.storage, key)})
    for key in type(dashboard).model_fields:
        if key != "public_url" and getattr(dashboard, key) != getattr(running.dashboard, key):
            waiting.append(f"dashboard.{key}")
            dashboard = dashboard.model_copy(update={key: getattr(running.dashboard, key)})
    return new.model_copy(update={"storage": storage, "dashboard": dashboard, "sensors": sensors}), tuple(waiting)


def build(
    config: SiteConfig,
    root: Path,
    db: Database,
    clock: Clock,
    group: ServiceGroup,
    site_file: Path,
    setup_code: str = "",
    *,
    log: LogRing | None = None,
) -> Appliance:
    """Step 1: make each part and hand it its sections of the site file and its neighbours.

    Nothing is written but the text of the site file as the newest version. log: where the last lines are kept.
    """
    log = LogRing(clock) if log is None else log
    stores = CoreStores.of(db, Meter(db, secrets.token_hex(8)))
    supervisor = IngestSupervisor(
        config.for_ingest(), clock, log_line=log.add_child_line, replace_network=_leave_probation
    )
    limits = replace(LIMITS, idle_s=VIEW_IDLE_S)
    readers = SandboxedReader(root, limits), SandboxedReader(root, limits), SandboxedReader(root, limits)
    live = partial(_count_live, stores.cameras)
    disk = DiskWatch(root, config.storage.disk_free_min_mb * 1_000_000, clock)
    monitor = ApplianceMonitor(config.sensors.root, stores.meter, clock, live, supervisor, config.detector.hailo)
    networks = DetectorSwitch(
        config.for_ingest(), bundle_store(), supervisor, clock, lambda: monitor.status.memory, ProofStore(root).agrees
    )
    sources = ShadowSources(
        lambda: monitor.shed, lambda: monitor.status, lambda: networks.status.progress in ("trying", "loading"),
        lambda: monitor.hot_c,
    )  # fmt: skip
    shadow = ShadowTrial(root, lambda: networks.settings, bundle_store(), supervisor, sources, clock)
    lasting = LastingParts(
        db,
        root,
        clock,
        stores,
        WriteBacklog(clock),
        supervisor,
        readers,
        log,
        monitor,
        disk,
        ServiceRestarts(clock),
        ImageDetector(supervisor.send),
        networks,
        shadow,
    )
    background = BackgroundServices(_background_config(config), lasting)
    core = Core(stores, background.core_settings, lasting.backlog, clock)
    return Appliance(config, lasting, background, core, group, site_file, setup_code)


def recover(
    config: SiteConfig,
    root: Path,
    stores: CoreStores,
    clock: Clock,
    measure: MeasureSegment,
    *,
    new_database: bool = False,
) -> None:
    """Step 2, after a kill: the index against the disk, alerts that were left open, cameras as the file has them."""
    prepare_ring_folder(root, config.storage.preroll_dir)
    had_recordings = new_database and any((root / SEGMENTS).glob("*/*/*"))
    stores.segments.reconcile(root, measure=measure)
    ended = stores.alerts.end_interrupted()
    if ended:
        logger.info("%d alerts were left open by the last run; they were ended where their boxes end", ended)
    stores.health.end_open(clock.now(), NOT_RUNNING)
    if had_recordings:
        _report_new_database(stores, clock)
    if not new_database:  # one that is put back may know them
        forget_unasked(root, lambda name: stores.alerts.camera_of(name) is not None)
    stores.cameras.ensure({name: camera.url for name, camera in config.cameras.items() if camera.enabled})


def start(appliance: Appliance, group: ServiceGroup) -> None:
    """Step 3: one thread for each service."""
    for service in appliance.services:
        group.start(service)


def _report_new_database(stores: CoreStores, clock: Clock) -> None:
    """Report recordings without their database: it was deleted, moved away or emptied while nothing ran."""
    now = clock.now()
    reason = (
        "the database was gone or empty at the start, and a new one was begun beside the recordings that were there: "
        "they are listed again, alerts and reviews are not; put a copy of it back to have them"
    )
    logger.warning("%s", reason)
    stores.health.put(
        HealthEvent(camera="", id=uuid4().hex[:16], kind="database", t=now, t_start=now, t_end=now, reason=reason)
    )


def _build_dashboard(
    config: SiteConfig,
    lasting: LastingParts,
    background: BackgroundServices,
    settings: SettingsService,
    setup_code: str,
) -> WebServer:
    served = config.dashboard
    certificate: ServerCertificate | None = None
    if served.speaks_https:
        from appliance.web.tls import ServerCertificate

        certificate = ServerCertificate.of(served, lasting.root, lasting.clock)
    app = create_app(
        StoredSite(lasting.db, lasting.stores.meter, lasting.root, lasting.clock),
        config.for_dashboard(),
        media=MediaReaders(*lasting.readers, detect=lasting.image_detector.detect),
        probes=background.dashboard_probes,
        settings=settings,
        setup_code=setup_code,
        certificate=certificate,
    )
    return WebServer(app, served.host, served.port, trusted_proxies=served.trusted_proxies, certificate=certificate)


def _count_live(cameras: CameraStore) -> int:
    return sum(each.state == "live" for each in cameras.all())


def _flush_meter(meter: Meter, clock: Clock) -> None:
    meter.count_uptime()
    meter.flush(local_day(clock.now()))


def _give_memory_back(db: Database, trim_memory: MemoryTrimmer) -> None:
    db.readers.close_spare()
    linecache.clearcache()  # FastAPI reads the source file of each page's function at its first request, for tracebacks
    trim_memory()


def _keep_from_others(root: Path) -> None:
    """Close files that an earlier version left readable for every user of the machine; a group keeps its rights."""
    files = (f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", ".lock"))
    for name in ("", SEGMENTS, PREROLL, EVIDENCE, SCENARIOS, CUTS, *files):
        with contextlib.suppress(FileNotFoundError, *([] if name else [PermissionError])):  # of a volume, another's
            path = root / name
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & stat.S_IRWXO and not mode & stat.S_ISVTX:
                path.chmod(mode & ~stat.S_IRWXO)


def is_in_setup(config: SiteConfig, users: Collection[str]) -> bool:
    """Return True at the first run: there is no camera, and nobody who may sign in."""
    return config.dashboard.enabled and not config.cameras and not users and config.dashboard.token is None


def check_guarded(config: SiteConfig, users: Collection[str]) -> None:
    """Raise UsageError if the dashboard would be open to everybody on the network."""
    if config.dashboard.enabled and not users and (fault := config.dashboard.open_to_all):
        raise UsageError(fault)


def storage_folder(storage: StorageConfig) -> Path:
    """Return the folder that everything is stored in; create it if it is missing. Raises MissingDependency."""
    root = storage.dir.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingDependency(
            f"storage.dir {root} cannot be made: {error.strerror}: name a folder that this user may write to"
        ) from None
    try:
        _keep_from_others(root)
    except OSError as error:
        raise MissingDependency(
            f"storage.dir: {error.filename} cannot be closed to other users of this machine ({error.strerror}): chown "
            f"{root} and what is in it to the user that runs Vedette"
        ) from None
    return root


def _leave_probation(reason: str) -> bool:
    """Return whether networks on probation, with which ingest does not come up, were put in quarantine."""
    bundles = bundle_store().end_probation(f"ingest does not stay up with it: {reason}")
    for bundle in bundles:
        logger.error("%s is in quarantine, and what was proven before comes back: %s", bundle, reason)
    return bool(bundles)
