"""`/api/v1/settings`: the site file read, changed key by key, checked before it is saved, and taken back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from pydantic import Field

from appliance.base.clock import Clock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ConfigError, ModelError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError
from appliance.canary.candidates import KeyChange
from appliance.config import DecisionConfig
from appliance.dashboard.deps import DatabasePart
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.settings_forms import cost_of, secret_keys
from appliance.detect.model_files import present_models
from appliance.settings.rule_trial import TrialSide, try_rules
from appliance.settings.secret_scrubber import HIDDEN, without_secret
from appliance.settings.settings_service import SettingsService, SettingsStatus
from appliance.settings.site_editor import SiteFileChanged, SiteText, file_keys, leaves
from appliance.settings.yaml_edit import SiteChange
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.web.acceptor import CertificateFacts
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided

if TYPE_CHECKING:
    from appliance.web.tls import ServerCertificate  # cryptography: 9 MB, only where it speaks HTTPS

CHANGES_MAX = 200  # of one save; a camera with 20 zones and rules has some 100 keys

router = RouteList(prefix=f"{API}/settings", tags=["settings"])


class SettingsPart:
    """The settings of the appliance that the dashboard runs in; None: it runs without a site file.

    certificate: that the dashboard shows; None: it speaks HTTP.
    """

    def __init__(self, service: SettingsService | None, certificate: ServerCertificate | None = None) -> None:
        self._service = service
        self.certificate = certificate

    @property
    def is_editable(self) -> bool:
        return self._service is not None

    def decisions_at(self, t: float) -> DecisionConfig | None:
        """Return the settings that decided at a time (UTC seconds); None: they are not kept."""
        found = None if self._service is None else self._service.config_at(t)
        return None if found is None else found.for_decisions()

    @property
    def service(self) -> SettingsService:
        if self._service is None:
            raise Problem(404, "This appliance was started without a site file: there is nothing to change.")
        return self._service


Settings = Annotated[SettingsPart, Depends(provided(SettingsPart))]


async def editable_settings(part: Settings) -> SettingsService:
    """Return the settings. Raise Problem where there is nothing to change."""
    return part.service


@dataclass(frozen=True, slots=True)
class CertificateItem(CertificateFacts):
    """The dashboard's certificate. own: the appliance made it. fault: why newer files do not count."""

    fault: str


class ConnectionReport(ApiModel):
    """How this dashboard is reached. certificate null: over HTTP."""

    certificate: CertificateItem | None

    @classmethod
    def of(cls, certificate: ServerCertificate | None) -> ConnectionReport:
        if certificate is None:
            return cls(certificate=None)
        return cls(certificate=CertificateItem(**asdict(certificate.facts), fault=certificate.fault))


class FileKeyItem(ApiModel):
    """A key that only the site file changes. value: as written, or the default. names: what it names, which is why."""

    key: str
    value: str
    names: str


class SettingsReport(ApiModel):
    """The site file as it is written: `${NAME}` not expanded, defaults not filled in, secrets as `***`.

    digest: of the file; send it as `base` with a change. edited: the file was changed by hand and that is not in force;
    `diff` says how, `error` why it cannot be taken. waiting: keys whose new value comes with the next start. file_keys:
    those that have a value and are not changed from here.
    """

    digest: str
    edited: bool
    diff: str
    error: str
    waiting: tuple[str, ...]
    file_keys: tuple[FileKeyItem, ...]
    site: dict[str, Any]

    @classmethod
    def of(cls, service: SettingsService) -> SettingsReport:
        return cls.after(service, service.status())

    @classmethod
    def after(cls, service: SettingsService, status: SettingsStatus) -> SettingsReport:
        written = without_secrets(service.running.as_written())
        given = dict(leaves(written))
        held = [
            FileKeyItem(key=key, value=str(given.get(key, value)), names=names)
            for key, (names, value) in file_keys(service.running.config).items()
            if value is not None
        ]
        return cls.of_row(status, site=written, file_keys=tuple(held))


class ChangeItem(KeyChange, RequestModel):
    """Set the value at `path`, or take the key away. A name selects the list item with that `name`."""

    path: Annotated[tuple[str | int, ...], Field(min_length=1, max_length=12)]


class ChangeSettings(RequestModel):
    base: Annotated[str, Field(max_length=64)]
    changes: Annotated[list[ChangeItem], Field(min_length=1, max_length=CHANGES_MAX)]
    why: Annotated[str, Field(max_length=200)] = ""

    def parsed(self) -> list[SiteChange]:
        """Return the changes. Raise Problem if a secret that was not given came back as it was shown."""
        for change in self.changes:
            if _holds_hidden(change.value):
                key = ".".join(map(str, change.path))
                raise Problem(422, f"{key}: {HIDDEN} is no value; leave a secret out to keep it.")
        return [each.change() for each in self.changes]


class SettingsDiff(ApiModel):
    """The change of the file, as a unified difference without secrets; '': nothing changes.

    cost: what it deletes at once and what room it takes, in sentences.
    """

    diff: str
    cost: tuple[str, ...] = ()


class VersionItem(ApiModel):
    """A text of the site file that was in force from `t` on. who: a user, or `file` for an edit by hand."""

    number: int
    t: float
    who: str
    why: str


class VersionList(ApiModel):
    """Newest first."""

    versions: list[VersionItem]


class Base(RequestModel):
    base: Annotated[str, Field(max_length=64)]


class NetworkItem(ApiModel):
    """A network whose file is here, for `detector.model`."""

    name: str
    licence: str
    note: str


class NetworkList(ApiModel):
    """The networks that can be chosen. in_force: what `detector.model` says now; score_min: its threshold."""

    networks: list[NetworkItem]
    in_force: str
    score_min: float


class TrialReport(ApiModel):
    """The rules in force (`now`) and the changed ones (`then`) on the same stored boxes of one camera."""

    camera: str
    t0: float
    t1: float
    frames: int
    now: TrialSide
    then: TrialSide


class TryRules(ChangeSettings):
    camera: Annotated[str, Field(max_length=64)]
    hours: Annotated[float, Field(gt=0, le=168)] = 24.0


class RuleTrials:
    """Tries changed rules on stored boxes, one trial at a time."""

    def __init__(self, boxes: BoxStore, cameras: CameraStore, config: DecisionConfig, clock: Clock) -> None:
        self._boxes = boxes
        self._cameras = cameras
        self._config = config
        self._clock = clock
        self._one_at_a_time = threading.Lock()

    def run(self, name: str, then: DecisionConfig, hours: float) -> TrialReport:
        """Try the rules of a camera. Raise Problem if there is no such camera, before or after the change."""
        row = next((each for each in self._cameras.all() if each.name == name), None)
        now_camera, then_camera = self._config.cameras.get(name), then.cameras.get(name)
        if row is None or now_camera is None or then_camera is None:
            raise Problem(404, f"There is no camera {name} whose rules could be tried.")
        t1 = self._clock.now()
        with self._one_at_a_time:
            trial = try_rules(
                self._boxes, name, row.size if row.size[0] else (16, 9),
                (now_camera, self._config.alerts), (then_camera, then.alerts), (t1 - hours * 3600, t1),
            )  # fmt: skip
        return TrialReport.of_row(trial, camera=name)


@router.get("")
def settings(part: Settings) -> SettingsReport:
    """Return the site file and how it stands to what runs."""
    return SettingsReport.of(part.service)


@router.get("/connection")
def connection(part: Settings) -> ConnectionReport:
    """Return the certificate that browsers are shown."""
    return ConnectionReport.of(part.certificate)


@router.get("/networks")
def networks(part: Settings) -> NetworkList:
    """Return the networks that can be chosen."""
    return installed_networks(part.service.running.config.detector)


@router.post("/check")
def check_change(part: Settings, db: DatabasePart, wanted: ChangeSettings) -> SettingsDiff:
    """Return what a change would do and cost, without doing it. 422 names every fault of what the file would be."""
    with settings_problems():
        found = part.service.propose(wanted.parsed(), wanted.base)
        return SettingsDiff(
            diff=found.diff,
            cost=tuple(cost_of(db, *(each.config.for_dashboard() for each in (part.service.running, found.after)))),
        )


@router.post("/try")
def try_change(
    part: Settings, trials: Annotated[RuleTrials, Depends(provided(RuleTrials))], wanted: TryRules
) -> TrialReport:
    """Return the reports that changed rules would have made in the last hours, beside those of the rules in force.

    The rules decide on stored boxes.
    """
    with settings_problems():
        then = part.service.propose(wanted.parsed(), wanted.base).after.config
        return trials.run(wanted.camera, then.for_decisions(), wanted.hours)


@router.post("")
def change_settings(request: Request, part: Settings, wanted: ChangeSettings) -> SettingsReport:
    """Write a change and put it in force; cameras that it does not touch go on as they are."""
    with settings_problems():
        changes, kept = _secrets_apart(wanted.parsed(), part.service.running)
        status = part.service.change(changes, wanted.base, user_of(request), wanted.why or "changed", kept)
        return SettingsReport.after(part.service, status)


def _secrets_apart(changes: list[SiteChange], site: SiteText) -> tuple[list[SiteChange], dict[str, str]]:
    """Return the changes with `${NAME}` in place of secrets that a form takes, and those by name."""
    kept: dict[str, str] = {}
    found = []
    for change in changes:
        key, value = ".".join(map(str, change.path)), change.value
        if key in secret_keys() and isinstance(value, str) and "${" not in value:
            *above, last = key.upper().split(".")
            name = f"{site.free_stem('_'.join(above), (last,), key)}_{last}"
            kept[name], value = value.strip(), f"${{{name}}}"
        found.append(SiteChange(change.path, value))
    return found, kept


@router.post("/take-edit")
def take_edit(request: Request, part: Settings) -> SettingsReport:
    """Put the file in force as it was edited by hand."""
    with settings_problems():
        return SettingsReport.after(part.service, part.service.take_edit(user_of(request)))


@router.get("/versions")
def versions(part: Settings) -> VersionList:
    """Return the last texts of the site file."""
    return VersionList(versions=[VersionItem.model_validate(each) for each in part.service.versions.all()])


@router.get("/versions/{number}")
def version_diff(part: Settings, db: DatabasePart, number: int, against: int | None = None) -> SettingsDiff:
    """Return what going back to a version would change and cost, or how it differs from another version (`against`)."""
    service = part.service
    with settings_problems():
        diff = service.version_diff(number, against)
        if against is not None:
            return SettingsDiff(diff=diff)
        try:
            then = service.version_config(number).for_dashboard()
        except ConfigError as error:  # of another release, or with a variable that is gone
            return SettingsDiff(diff=diff, cost=tuple(error.problems))
        return SettingsDiff(diff=diff, cost=tuple(cost_of(db, service.running.config.for_dashboard(), then)))


@router.post("/versions/{number}/restore")
def restore(request: Request, part: Settings, number: int, wanted: Base) -> SettingsReport:
    """Go back to a version."""
    with settings_problems():
        status = part.service.restore(number, wanted.base, user_of(request))
        return SettingsReport.after(part.service, status)


def installed_networks(detector: DetectorConfig) -> NetworkList:
    """Return the networks that are installed. Raise Problem if one cannot be read."""
    try:
        found = present_models()
    except ModelError as error:
        raise Problem(422, str(error)) from None
    items = [NetworkItem(name=name, licence=each.licence, note=each.note) for name, each in found.items()]
    return NetworkList(networks=items, in_force=detector.model, score_min=detector.score_min)


def without_secrets(value: Any, path: tuple[str | int, ...] = ("",)) -> Any:
    """Return a part of the site file as pages may show it. A key that only names a variable is no secret."""
    if isinstance(value, dict):
        return {str(name): without_secrets(item, (*path, str(name))) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, (*path, number)) for number, item in enumerate(value)]
    return without_secret(path, value) if isinstance(value, str) else value


def _holds_hidden(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(_holds_hidden(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and (HIDDEN in value)


def user_of(request: Request) -> str:
    """Return the name of the visitor who changes something, for the record."""
    return str(getattr(request.state, "user", "") or "dashboard")


@contextmanager
def settings_problems() -> Iterator[None]:
    """Errors of the settings as problems that name the key."""
    try:
        yield
    except SiteFileChanged as error:
        raise Problem(409, str(error)) from None
    except PreconditionError as error:
        raise Problem(404, str(error)) from None
    except ConfigError as error:
        raise Problem(422, "; ".join(error.problems)) from None
    except UsageError as error:
        raise Problem(422, str(error)) from None
    except DiskWriteError as error:
        raise Problem(507, str(error)) from None
