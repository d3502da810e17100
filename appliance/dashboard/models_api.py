"""`/api/v1/models`: networks, installed and available: what each finds and costs; download, put in force, go back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends, Request
from pydantic import Field

from appliance import version
from appliance.base.errors import ModelError, PreconditionError, UsageError
from appliance.bundle.bundle_fetch import BundleFetch
from appliance.bundle.bundle_store import InForceTable
from appliance.bundle.manifest import BundleManifest, BundleRef, ModelEntry, check_minimum
from appliance.bundle.rollout import begin_shadow, bundle_bytes, end_shadow, needed_bytes, shortage
from appliance.config import OWN_NETWORKS_MAX, DecisionConfig
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.headroom_api import HeadroomReader
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart, settings_problems, user_of
from appliance.detect.model_advice import DetectorLoad, ap50_by_class, better_models, inferences_wanted
from appliance.detect.model_download import ModelDownload
from appliance.detect.model_files import (
    AUTO_MODEL,
    OWN_MODEL,
    bundle_store,
    model_bundles,
    named_model,
    present_models,
    pull_folder,
)  # fmt: skip
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList, provided

if TYPE_CHECKING:
    from appliance.bundle.trust import TrustedRepository

logger = logging.getLogger(__name__)

REFUSALS: dict[type[Exception], int] = {PreconditionError: 409, UsageError: 422}
KEY = ("detector", "model")

router = RouteList(prefix=f"{API}/models", tags=["models"])

ModelState = Literal["here", "absent", "hash missing", "quarantined"]


class PullItem(ApiModel):
    """A pull that runs, or the last one and why it ended. bytes_total 0: not known. error '': it runs, or is done."""

    bytes_done: int
    bytes_total: int
    running: bool
    error: str


class ModelItem(ApiModel):
    """A network, or a version of one (`NAME@VERSION`).

    bytes 0: not known before it is pulled. finds: class to the mean AP50 on pictures that no network here learnt from,
    0..1; empty: not measured. cost: CPU time of an inference against the network in force; load: the share of the
    detector's time that it would take here with all cameras moving; null: not known. shadow_bytes: about the memory
    that it takes to compare it live; 0: it is no bundle.
    """

    name: str
    state: ModelState
    bytes: int
    licence: str
    note: str
    finds: dict[str, float]
    cost: float | None
    load: float | None
    in_force: bool
    pull: PullItem | None
    shadow_bytes: int = 0


class SwitchItem(ApiModel):
    """The last switch of networks. reason: of a refusal, or why detection was started anew for it."""

    progress: Literal["", "trying", "loading", "in force", "restarted", "refused"]
    networks: str
    reason: str


class ShadowItem(ApiModel):
    """The network that examines live frames beside the one in force. candidate: the bundle that is judged by it.

    reason: why it waits. memory_bytes: its process; cpu_share: of a core, at most; both 0: not measured yet.
    """

    progress: Literal["", "measuring", "looking", "waiting"]
    candidate: str
    reason: str
    frames: int
    memory_bytes: int
    cpu_share: float


class ModelList(ApiModel):
    """The networks, the one in force first.

    in_force: the one that `detector.model` stands for now. before: what `back` would put in force; '': nothing is to be
    taken back. cameras: those that have a network of their own, and which. switch: how far the last switch is, or how
    it ended. better: the best that finds more and fits on this
    appliance; '': none is known. publisher: whose bundles are on offer; '': nobody is trusted yet. base: send it with
    `use`.
    """

    models: list[ModelItem]
    in_force: str
    before: str
    cameras: dict[str, str]
    better: str
    publisher: str
    base: str
    switch: SwitchItem
    shadow: ShadowItem


class NameModel(RequestModel):
    """A network of the list."""

    model: Annotated[str, Field(min_length=1, max_length=130)]


class UseModel(NameModel):
    """base: the digest of the settings for which it is meant. camera: for this one alone; '': for all.

    The network of all cameras, asked for by a camera, takes back what it has of its own.
    """

    camera: Annotated[str, Field(max_length=64)] = ""
    base: Annotated[str, Field(max_length=64)]


class ModelPuller:
    """Pulls one network at a time, in a thread `model pull`; State: the last one, for who asks how far it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._item: PullItem | None = None

    def of(self, name: str) -> PullItem | None:
        """Return how far the pull of `name` is, or how it ended."""
        return self._item if self._name == name else None

    def start(self, name: str) -> None:
        """Begin. Raise Problem: another one runs, or there is no such network."""
        work = self._work(name)
        with self._lock:
            if self._item is not None and self._item.running:
                raise Problem(409, f"{self._name} is being pulled: wait until it is here.")
            self._name, self._item = name, PullItem(bytes_done=0, bytes_total=0, running=True, error="")
        threading.Thread(target=self._run, args=(work,), name="model pull", daemon=True).start()

    def _work(self, name: str) -> Callable[[], object]:
        if "@" in name:
            return lambda: self._install(BundleRef.parse(name))
        entry = model_bundles().get(name)
        if entry is None:
            raise Problem(404, f"There is no network {name}.")
        return lambda: self._pull(entry)

    def _pull(self, entry: ModelEntry) -> None:
        ModelDownload(pull_folder(), self._progress).pull(entry)
        known = model_bundles()
        for other in entry.variants.values():  # what may stand in for it, where it is to be had
            if known[other].url and known[other].sha256:
                ModelDownload(pull_folder(), self._progress).pull(known[other])

    def _install(self, ref: BundleRef) -> None:
        store = bundle_store()
        trusted = _publisher()
        genuine = trusted.genuine(ref)
        check_minimum(genuine.manifest, version())
        BundleFetch(store, trusted.repository, self._progress).install(genuine)

    def _run(self, work: Callable[[], object]) -> None:
        error = "it ended by a bug; the log says where"
        try:
            work()
            error = ""
        except (UsageError, OSError) as refused:
            error = str(refused)
            logger.warning("%s was not pulled: %s", self._name, refused)
        finally:  # else no other one could begin
            with self._lock:
                if self._item is not None:
                    self._item = self._item.model_copy(update={"running": False, "error": error})

    def _progress(self, done: int, whole: int) -> None:
        self._item = PullItem(bytes_done=done, bytes_total=whole, running=True, error="")


@dataclass(frozen=True, slots=True)
class _Now:
    """The model in force. entry None: nothing is known of it."""

    name: str
    entry: ModelEntry | None
    table: InForceTable
    load: DetectorLoad | None


class ModelReader:
    """Reads what is here, and puts one in force: a version by its pointer, a name by the settings. Any thread."""

    def __init__(
        self, config: DecisionConfig, probes: CoreProbes, headroom: HeadroomReader, settings: SettingsPart,
        puller: ModelPuller,
    ) -> None:  # fmt: skip
        self._config = config
        self._probes = probes
        self._headroom = headroom
        self._settings = settings
        self.puller = puller
        self._suggested = ""

    def report(self) -> ModelList:
        """Raise ModelError: a models.toml cannot be read."""
        store, now = bundle_store(), self._now()
        installed = store.installed()
        known, present = model_bundles(), present_models()
        variants = {name for entry in known.values() for name in entry.variants.values()}
        rows = [
            self._item(name, entry, "here" if name in present else "absent" if entry.sha256 else "hash missing", now)
            for name, entry in sorted(known.items())
            if name not in variants and (name == now.name or all(ref.name != name for ref in installed))
        ]
        file = "" if now.entry is None or "@" in now.name else now.entry.sha256  # a copy of it is no other choice
        rows += [self._version(ref, each, now) for ref, each in installed.items() if each.model.sha256 != file]
        publisher, offered = self._offered()
        rows += [_offer(ref, self.puller.of(str(ref))) for ref in offered if ref not in installed]
        slot = now.table.everywhere
        before = "" if slot is None else str(slot.before) if slot.before else OWN_MODEL
        better = self._better(now)
        return ModelList(
            models=sorted(rows, key=lambda each: (not each.in_force, each.state != "here", each.name)),
            in_force=now.name, before=before, cameras=self._own(now.table), better=better, publisher=publisher,
            base=self._settings.service.status().digest if self._settings.is_editable else "",
            switch=SwitchItem.of_row(self._probes.orders.switched()),
            shadow=ShadowItem.of_row(self._probes.orders.shadow()),
        )  # fmt: skip

    def better(self) -> str:
        """Return the best network that finds more and fits on this appliance; '': none is known."""
        return self._better(self._now())

    def use(self, wanted: UseModel, who: str) -> None:
        """Put a network in force. Raise ModelError: it is not here; UsageError: the settings refuse; Problem."""
        store, at = bundle_store(), "@" in wanted.model
        value = AUTO_MODEL if at or wanted.model == OWN_MODEL else wanted.model
        if not at and wanted.model not in present_models():
            raise ModelError(f"{wanted.model} is not here: pull it first")
        changes = [SiteChange(KEY, value)] if self._config.detector.model != value else []
        if changes:  # what the settings refuse moves no pointer
            self._settings.service.propose(changes, wanted.base)
        with store.undone_on_failure():
            if at:
                store.put_in_force(BundleRef.parse(wanted.model), state="probation")
            elif store.in_force().everywhere is not None:  # `auto` would follow it, and so would its own name
                store.withdraw()
            if changes:
                self._settings.service.change(changes, wanted.base, who, f"network {wanted.model}")
        self._probes.orders.switch()

    def use_for_camera(self, wanted: UseModel, who: str) -> None:
        """Put a network in force for one camera. Raise as `use` does; Problem: no such camera, or a third network."""
        if wanted.camera not in self._config.cameras:
            raise Problem(404, "There is no such camera in the site file.")
        store, now = bundle_store(), self._now()
        key = ("cameras", wanted.camera, "model")
        has_own, why = self._config.cameras[wanted.camera].model is not None, f"network {wanted.model}"
        if wanted.model == now.name:
            if has_own:
                self._settings.service.propose([SiteChange(key, REMOVED)], wanted.base)
            with store.undone_on_failure(wanted.camera):
                store.release([wanted.camera])
                if has_own:
                    self._settings.service.change([SiteChange(key, REMOVED)], wanted.base, who, why)
        elif "@" in wanted.model and self._config.detector.model == AUTO_MODEL and not has_own:
            others = {each for name, each in self._own(now.table).items() if name != wanted.camera}
            if len(others | {wanted.model}) > OWN_NETWORKS_MAX:
                raise Problem(409, f"Two networks run at once: {min(others)} is the own one of another camera.")
            store.put_in_force(BundleRef.parse(wanted.model), wanted.camera, state="probation")
        elif "@" not in wanted.model and wanted.model not in present_models():
            raise ModelError(f"{wanted.model} is not here: pull it first")
        else:
            self._settings.service.change([SiteChange(key, wanted.model)], wanted.base, who, why)
        self._probes.orders.switch()

    def _own(self, table: InForceTable) -> dict[str, str]:
        """Return the networks that cameras have of their own."""
        own = {
            name: str(slot.bundle) for name, slot in table.cameras.items() if self._config.detector.model == AUTO_MODEL
        }
        return {**own, **{name: each.model for name, each in self._config.cameras.items() if each.model}}

    def go_back(self) -> None:
        """Put in force what was before. Raise PreconditionError: nothing is to be taken back."""
        bundle_store().roll_back()
        self._probes.orders.switch()

    def _now(self) -> _Now:
        settings, table = self._config.detector, bundle_store().in_force()
        name = named_model(settings.model)
        entry = model_bundles().get(name)
        if "@" not in name and table.everywhere is not None and table.everywhere.bundle.name == name:
            name = str(table.everywhere.bundle)
        ms = self._headroom.report().inference_ms
        load = DetectorLoad(ms / 1000, inferences_wanted(self._config.cameras)) if ms else None
        return _Now(name, entry, table, load)

    def _better(self, now: _Now) -> str:
        if now.load is None or not now.load.wanted:
            return ""
        config = self._config
        found = better_models(config.detector.model, model_bundles(), config.cameras, now.load, self._suggested)
        self._suggested = found[0].name if found else ""
        return self._suggested

    def _item(self, name: str, entry: ModelEntry, state: ModelState, now: _Now) -> ModelItem:
        cost = entry.cost / now.entry.cost if entry.cost and now.entry is not None and now.entry.cost else None
        load = cost * now.load.share if cost is not None and now.load is not None else None
        return ModelItem.of_row(
            entry, name=name, state=state, finds=ap50_by_class(entry), cost=cost, load=load, in_force=name == now.name,
            pull=self.puller.of(name), shadow_bytes=0,
        )  # fmt: skip

    def _version(self, ref: BundleRef, manifest: BundleManifest, now: _Now) -> ModelItem:
        state: ModelState = "quarantined" if ref in now.table.quarantined else "here"
        item = self._item(str(ref), manifest.model, state, now)
        need = needed_bytes(max((each.bytes for each in manifest.files.values()), default=0))
        return item.model_copy(update={"bytes": manifest.total_bytes, "shadow_bytes": need})

    def begin_shadow(self, name: str) -> None:
        """Have a bundle examine live frames. Raise ModelError, PreconditionError: see `bundle.rollout`, or no room."""
        store, ref = bundle_store(), BundleRef.parse(name)
        sensors = self._probes.sensors
        need = needed_bytes(bundle_bytes(store, ref))
        if sensors is not None and (why := shortage(need, sensors().memory)):
            raise PreconditionError(f"{ref} does not examine live frames: {why}")
        begin_shadow(store, ref)

    def _offered(self) -> tuple[str, tuple[BundleRef, ...]]:
        try:
            trusted = _publisher()
        except UsageError:
            return "", ()
        return trusted.repository.address, trusted.known()


def _publisher() -> TrustedRepository:
    """Return the repository of the trusted publisher. Raise UsageError: there is none yet."""
    from appliance.bundle.trust import TrustedRepository, trust_folder  # a third of a second: TUF

    return TrustedRepository(trust_folder(bundle_store().root))


def _offer(ref: BundleRef, pull: PullItem | None) -> ModelItem:
    return ModelItem(
        name=str(ref), state="absent", bytes=0, licence="", note="", finds={}, cost=None, load=None, in_force=False,
        pull=pull,
    )  # fmt: skip


Models = Annotated[ModelReader, Depends(provided(ModelReader))]


@router.get("")
def models(reader: Models) -> ModelList:
    """Return the networks that are here and that can be had."""
    with refused_as(REFUSALS):
        return reader.report()


@router.post("/pull")
def pull(reader: Models, wanted: NameModel) -> ModelList:
    """Begin to pull a network; the list says how far it is."""
    with refused_as(REFUSALS):
        reader.puller.start(wanted.model)
        return reader.report()


@router.post("/offers")
def look_for_offers(reader: Models) -> ModelList:
    """Ask the trusted publisher which bundles are on offer now."""
    with refused_as(REFUSALS):
        _publisher().offered()
        return reader.report()


@router.post("/use")
def use(request: Request, part: Settings, reader: Models, wanted: UseModel) -> ModelList:
    """Put a network in force between two frames; where it cannot be loaded beside the other, by a short restart."""
    _ = part.service  # raises Problem where there is nothing to change
    with settings_problems(), refused_as(REFUSALS):
        (reader.use_for_camera if wanted.camera else reader.use)(wanted, user_of(request))
        return reader.report()


@router.post("/shadow")
def compare_live(reader: Models, wanted: NameModel) -> ModelList:
    """Have a bundle examine some of the live frames beside what is in force. 409: there is no memory for it."""
    with refused_as(REFUSALS):
        reader.begin_shadow(wanted.model)
        return reader.report()


@router.delete("/shadow")
def end_live_comparison(reader: Models) -> ModelList:
    """End it; what was found is kept."""
    end_shadow(bundle_store())
    with refused_as(REFUSALS):
        return reader.report()


@router.post("/back")
def go_back(reader: Models) -> ModelList:
    """Put in force what was before, in the same way."""
    with refused_as(REFUSALS):
        reader.go_back()
        return reader.report()
