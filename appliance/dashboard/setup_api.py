"""`/setup`: take the one-time code from the console, name the site, and make the first user."""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
from typing import Annotated

from fastapi import Request
from pydantic import AfterValidator, Field, SecretStr
from starlette.responses import JSONResponse

from appliance.base.credentials import hashed, new_code
from appliance.config import SiteIdentity, id_of
from appliance.dashboard.schemas import RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart, settings_problems
from appliance.dashboard.users_api import refusals
from appliance.settings.yaml_edit import SiteChange
from appliance.types.accounts import UserRow, name_problem, same_name
from appliance.web.auth import Access, AccessPart, SignedIn, address_of, signed_in, too_many_tries
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList
from appliance.web.sign_in_throttle import Guess

SET_UP = "This box is set up already: sign in."
_ONE_AT_A_TIME = threading.Lock()

router = RouteList(tags=["session"])


def new_setup_code() -> str:
    """40 bits: at five tries, then one a minute, from a million addresses, nobody guesses it in a year."""
    return new_code(2)


class FirstUser(RequestModel):
    """site: its name for people, of which its id is made."""

    code: Annotated[str, Field(max_length=64)]
    site: Annotated[str, Field(min_length=1, max_length=64)]
    name: Annotated[str, Field(max_length=64), AfterValidator(same_name)]
    password: SecretStr


@router.post("/setup", response_model=SignedIn)
async def set_up(request: Request, access: AccessPart, settings: Settings, given: FirstUser) -> JSONResponse:
    """Make the first user, an admin, and sign them in."""
    if not access.in_setup:
        raise Problem(409, SET_UP)
    address = address_of(request.scope)
    guess = Guess("the setup code", address, at_home=True)  # nobody's account: 40 bits, guessed slowly by each address
    wait_s = access.throttle.wait_s(guess)
    if wait_s:
        raise too_many_tries(wait_s)
    if not hmac.compare_digest(_plain(given.code), _plain(access.setup_code)):
        access.throttle.wrong(guess)
        raise Problem(401, "That is not the code: it is in the console in which Vedette was started.")
    await asyncio.to_thread(_make, access, settings, given, address)
    return await signed_in(request, access, given.name)


def _make(access: Access, settings: SettingsPart, given: FirstUser, address: str) -> None:
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
