"""`/setup` makes the first user and names the site; `/api/v1/setup` adds, changes, copies or removes a camera.

The first user needs the one-time code of the console. A camera's password is kept apart from the site file.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Depends, Request
from pydantic import AfterValidator, Field, SecretStr
from starlette.responses import JSONResponse

from appliance.base.credentials import hashed, new_code
from appliance.config import SiteIdentity, id_of
from appliance.dashboard.camera_address import CAMERA_ID, VENDORS, CameraStreams, Vendor, with_login
from appliance.dashboard.deps import DatabasePart, StorageRoot
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart, SettingsReport, settings_problems, user_of
from appliance.dashboard.setup_probe_api import configured_camera, stored_streams, with_stored_login
from appliance.dashboard.users_api import refusals
from appliance.settings.site_editor import SiteText
from appliance.settings.yaml_edit import REMOVED, KeyPath, SiteChange
from appliance.store.retention import delete_camera
from appliance.types.accounts import UserRow, name_problem, same_name
from appliance.web.auth import Access, AccessPart, SignedIn, address_of, check_wait, signed_in
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.sign_in_throttle import Guess

SET_UP = "This box is set up already: sign in."
_ONE_AT_A_TIME = threading.Lock()

router = RouteList(prefix=f"{API}/setup", tags=["setup"])
first_user_router = RouteList(tags=["session"])


def new_setup_code() -> str:
    """40 bits: at five tries, then one a minute, from a million addresses, nobody guesses it in a year."""
    return new_code(2)


class FirstUser(RequestModel):
    """site: its name for people, of which its id is made."""

    code: Annotated[str, Field(max_length=64)]
    site: Annotated[str, Field(min_length=1, max_length=64)]
    name: Annotated[str, Field(max_length=64), AfterValidator(same_name)]
    password: SecretStr


@first_user_router.post("/setup", response_model=SignedIn)
async def set_up(request: Request, access: AccessPart, settings: Settings, given: FirstUser) -> JSONResponse:
    """Make the first user, an admin, and sign them in."""
    if not access.in_setup:
        raise Problem(409, SET_UP)
    address = address_of(request.scope)
    guess = Guess("the setup code", address, at_home=True)  # nobody's account: 40 bits, guessed slowly by each address
    check_wait(access.throttle.wait_s(guess))
    if not hmac.compare_digest(_plain(given.code), _plain(access.setup_code)):
        access.throttle.wrong(guess)
        raise Problem(401, "That is not the code: it is in the console in which Vedette was started.")
    await asyncio.to_thread(_make_first_user, access, settings, given, address)
    return await signed_in(request, access, given.name)


def _make_first_user(access: Access, settings: SettingsPart, given: FirstUser, address: str) -> None:
    """Make the first user. Raise Problem, also for the second of two at once."""
    with _ONE_AT_A_TIME, refusals(access):
        if not access.in_setup:
            raise Problem(409, SET_UP)
        if problem := name_problem(given.name):  # before the site is named: a refused set-up changes nothing
            raise Problem(422, sentence(problem))
        user = UserRow(name=given.name, role="admin", cameras=None, password=hashed(given.password.get_secret_value()))
        service = settings.service
        with settings_problems():
            if changes := named_site(service.running.config.site, given.site.strip()):
                service.change(changes, service.running.digest, given.name, "named at the first start")
        access.store.add(user)
    access.log.write(given.name, address, "set this appliance up")


def named_site(site: SiteIdentity, title: str) -> list[SiteChange]:
    """Return the changes that give a site a name for people, and an id made of it."""
    if title in (site.title, site.name):
        return []
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", title):
        return [SiteChange(("site", "name"), title)]
    return [SiteChange(("site", "title"), title), SiteChange(("site", "name"), id_of(title, otherwise="site"))]


def _plain(code: str) -> bytes:
    return code.upper().replace("-", "").replace(" ", "").encode()


Recording = Literal["continuous", "pre_roll", "none"]


class AddCamera(CameraStreams):
    """onvif: of a camera that is to be turned from the dashboard; '': it is not.

    title: its name for people. name: its id; '': one is made of the title.
    """

    base: Annotated[str, Field(max_length=64)]
    name: Annotated[str, Field(pattern=rf"^({CAMERA_ID})?$")] = ""
    title: Annotated[str, Field(max_length=64)] = ""
    record: Recording = "continuous"


class ChangeCamera(CameraStreams):
    """A camera as it shall be; its zones, rules and history stay.

    url '': the addresses stay (of a file that plays a camera, say). password '' with the stored user: it stays.
    """

    url: Annotated[str, Field(max_length=1000, pattern=r"^(rtsps?://.+)?$")] = ""
    base: Annotated[str, Field(max_length=64)]
    title: Annotated[str, Field(max_length=64)] = ""
    record: Recording = "continuous"
    audio: Flag = False
    enabled: Flag = True


class RemoveCamera(RequestModel):
    """recordings: keep them until they are too old, or delete them, and pictures and clips of alerts, at once."""

    base: Annotated[str, Field(max_length=64)]
    recordings: Literal["keep", "delete"]


class CopyRules(RequestModel):
    """to: the camera whose zones, lines and rules are replaced."""

    base: Annotated[str, Field(max_length=64)]
    to: Annotated[str, Field(pattern=rf"^{CAMERA_ID}$")]


class AddedCamera(SettingsReport):
    """camera: the id of the camera that was added."""

    camera: str


class RemovedCamera(SettingsReport):
    """deleted_bytes: of recordings and evidence. changed: keys of targets and profiles that had named the camera."""

    deleted_bytes: int
    changed: list[str]


class VendorList(ApiModel):
    vendors: tuple[Vendor, ...]


@router.get("/vendors")
def vendors() -> VendorList:
    """How the streams of common cameras are called."""
    return VendorList(vendors=VENDORS)


def _addressed(written: SiteText, name: str, wanted: CameraStreams) -> tuple[dict[str, str], dict[str, str]]:
    """Return the addresses as the site file names them, and the secrets beside it. Raise Problem."""
    section = wanted.addresses()
    _, user, password = wanted.parts()
    if not user and not password:
        return section, {}
    stem = written.free_stem(f"CAMERA_{name.upper().replace('-', '_')}", ("USER", "PASSWORD"), f"cameras.{name}")
    names = f"{stem}_USER", f"{stem}_PASSWORD"
    kept = {names[0]: quote(user, safe=""), names[1]: quote(password, safe="")}
    return {key: with_login(url, f"${{{names[0]}}}", f"${{{names[1]}}}") for key, url in section.items()}, kept


@router.post("/cameras", status_code=201)
def add_camera(request: Request, part: Settings, wanted: AddCamera) -> AddedCamera:
    """Add a camera to the site file; user and password go to the secrets file beside it. 409: there is one already."""
    service, title = part.service, wanted.title.strip()
    known = service.running.config.cameras
    if wanted.name == "new":
        raise Problem(422, "A camera cannot be called new: that is the name of a page.")
    if wanted.name in known:
        raise Problem(409, f"There is already a camera {wanted.name}.")
    if not wanted.name and not title:
        raise Problem(422, "title: give the camera a name.")
    name = wanted.name or id_of(title, {"new", *known})
    addresses, kept = _addressed(service.running, name, wanted)
    section: dict[str, Any] = {**({"title": title} if title not in ("", name) else {}), **addresses}
    if wanted.onvif:
        section["health_ignore"] = ["moved"]  # a view that changes on purpose is no fault
    if wanted.record != "continuous":
        section["record"] = False if wanted.record == "none" else wanted.record
    with settings_problems():
        changes = [SiteChange(("cameras", name), section)]
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} added", kept)
        return AddedCamera(**dict(SettingsReport.after(service, status)), camera=name)


@router.post("/cameras/{name}")
def change_camera(request: Request, part: Settings, name: str, wanted: ChangeCamera) -> SettingsReport:
    """Change a camera's name, addresses, login, recording or sound, or switch it off or on."""
    service, camera = part.service, configured_camera(part, name)
    title, record = wanted.title.strip(), False if wanted.record == "none" else wanted.record
    values = {
        "title": ("" if title == name else title, ""), "record": (record, "continuous"), "audio": (wanted.audio, False),
        "enabled": (wanted.enabled, True),
    }  # fmt: skip
    changes = [
        SiteChange(("cameras", name, key), REMOVED if value == default else value)
        for key, (value, default) in values.items()
        if value != getattr(camera, key)
    ]
    kept: dict[str, str] = {}
    if wanted.url:
        whole = with_stored_login(camera, wanted)
        if camera.is_file or _facts(whole) != _facts(stored_streams(camera)):
            addresses, kept = _addressed(service.running, name, whole)
            changes += [
                SiteChange(("cameras", name, key), addresses.get(key, REMOVED))
                for key in ("url", "detect_url", "onvif")
                if key in addresses or getattr(camera, key) is not None
            ]
    with settings_problems():
        if not changes:
            return SettingsReport.of(service)
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} changed", kept)
        return SettingsReport.after(service, status)


def _facts(streams: CameraStreams) -> tuple[object, ...]:
    _, user, password = streams.parts()
    return tuple(streams.addresses().items()), user, password


@router.post("/cameras/{name}/remove")
def remove_camera(
    request: Request,
    part: Settings,
    db: DatabasePart,
    root: Annotated[StorageRoot, Depends(provided(StorageRoot))],
    name: str,
    wanted: RemoveCamera,
) -> RemovedCamera:
    """Take a camera out of the site file, and out of what names it; delete what it recorded if that is wanted.

    Alerts stay in the list. A target that was told of this camera alone, or of rules that only it has, is switched off:
    without a camera or rule it would be told of all.
    """
    service = part.service
    camera = configured_camera(part, name)
    changes = [SiteChange(("cameras", name), REMOVED)]
    config = service.running.config
    others = {rule.name for other, each in config.cameras.items() if other != name for rule in each.rules}
    for key, gone in (("cameras", {name}), ("rules", {rule.name for rule in camera.rules} - others)):
        naming: dict[KeyPath, tuple[str, ...] | None]
        naming = {("notify", target): getattr(row, key) for target, row in config.notify.items()}
        naming |= {("arming", "profiles", each): getattr(row, key) for each, row in config.arming.profiles.items()}
        for path, names in naming.items():
            if gone.intersection(names or ()):
                left = [each for each in names or () if each not in gone]
                changes.append(SiteChange((*path, key), left))
                changes += [SiteChange((*path, "enabled"), False)] if path[0] == "notify" and not left else []
    adjoining = [each for each in config.alerts.adjoining if all(camera != name for camera, _ in each.places)]
    if len(adjoining) < len(config.alerts.adjoining):
        changes.append(SiteChange(("alerts", "adjoining"), [each.model_dump(mode="json") for each in adjoining]))
    with settings_problems():
        status = service.change(changes, wanted.base, user_of(request), f"camera {name} removed")
    freed = delete_camera(db, root.path, name) if wanted.recordings == "delete" else 0
    named = sorted({".".join(map(str, each.path[:-1])) for each in changes[1:]})
    return RemovedCamera(**dict(SettingsReport.after(service, status)), deleted_bytes=freed, changed=named)


@router.post("/cameras/{name}/copy")
def copy_rules(request: Request, part: Settings, name: str, wanted: CopyRules) -> SettingsReport:
    """Give another camera the zones, lines and rules of this one; its own go. An older version brings them back."""
    service = part.service
    configured_camera(part, name), configured_camera(part, wanted.to)
    if name == wanted.to:
        raise Problem(422, "to: choose another camera.")
    written = service.running.as_written()["cameras"]
    source, target = written[name] or {}, written[wanted.to] or {}
    cameras = service.running.config.cameras
    private = cameras[wanted.to].privacy
    for zone in (*private.mask, *(zone for never in private.never for zone in never.zones)):
        if cameras[name].zones.get(zone) != cameras[wanted.to].zones[zone]:
            raise Problem(422, f"to: the privacy of {wanted.to} names its zone {zone}, which the copy would replace.")
    changes = [
        SiteChange(("cameras", wanted.to, key), source.get(key, REMOVED))
        for key in ("zones", "ignore", "lines", "rules")
        if source.get(key) != target.get(key)
    ]
    with settings_problems():
        if not changes:
            return SettingsReport.of(service)
        why = f"zones and rules of {name} copied to {wanted.to}"
        status = service.change(changes, wanted.base, user_of(request), why)
        return SettingsReport.after(service, status)
