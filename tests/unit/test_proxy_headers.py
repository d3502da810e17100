"""A reverse proxy names its visitor: believed of the one that the site file names, ignored and counted from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.config import DashboardConfig
from appliance.store.users import AccessLog, UserStore
from appliance.types.accounts import UserRow
from appliance.web.visitor import Visitor
from tests.support.dashboard_site import Site, config_of, password_hash, running
from tests.support.waiting import ANSWER_S

TOKEN = "correct horse battery staple"
PROXY, CLIENT, FORGER = "172.18.0.2", "203.0.113.9", "192.168.1.66"
HASH = password_hash("four words to remember")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = site_of(tmp_path, user_header="Remote-User", second_factor=["admin"])
    yield made
    made.close()


def site_of(folder: Path, **settings: object) -> Site:
    config = config_of(token=TOKEN, trusted_proxies=[PROXY, "127.0.0.0/8"], **settings)
    site = Site(folder, ManualClock(), config=config)
    for name, role, cameras in (("anna", "admin", None), ("vic", "viewer", ("gate",))):
        UserStore(site.db).add(UserRow(name=name, role=role, cameras=cameras, password=HASH))  # type: ignore[arg-type]
    for camera in ("gate", "dock"):
        site.raise_alert(f"alert-{camera}", site.clock.now(), camera=camera)
    return site


def through(app: FastAPI, address: str, **headers: str) -> TestClient:
    made = TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False, client=(address, 4000))
    made.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return made


def ignored(app: FastAPI) -> dict[str, float]:
    text = through(app, "127.0.0.1", **BEARER).get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("vedette_dashboard_headers_ignored_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if not line.endswith(" 0.0")}


def test_whom_the_proxy_names_is_that_user_and_it_is_on_record(site: Site) -> None:
    app = site.app()
    vic = through(app, PROXY, Remote_User="vic", X_Forwarded_For=CLIENT)
    assert vic.get("/api/v1/me").json()["name"] == "vic"
    assert [each["id"] for each in vic.get("/api/v1/alerts").json()["alerts"]] == ["alert-gate"]
    assert vic.get("/api/v1/users").status_code == 403
    anna = through(app, PROXY, Remote_User="anna", X_Forwarded_For=CLIENT)
    assert anna.get("/api/v1/users").status_code == 200, "the second factor is the proxy's affair"
    assert 'id="leave"' not in anna.get("/", headers={"Accept": "text/html"}).text
    rows = [(each.who, each.address, each.what) for each in AccessLog(site.db).newest()]
    assert rows.count(("vic", CLIENT, "came through the proxy")) == 1, "once, not with each request"


@pytest.mark.parametrize("address", [FORGER, CLIENT, "::1", "172.18.0.3"])
def test_a_forged_header_is_ignored_and_counted(site: Site, address: str) -> None:
    app = site.app()
    forger = through(app, address, Remote_User="anna", X_Forwarded_For="127.0.0.1", X_Forwarded_Proto="https")
    assert forger.get("/api/v1/me").status_code == 401
    assert ignored(app) == {"remote-user": 1, "x-forwarded-for": 1, "x-forwarded-proto": 1}


def test_a_visitor_cannot_name_themselves_through_the_proxy(site: Site) -> None:
    """A proxy that adds its header to the visitor's own, and one that names nobody."""
    app = site.app()
    client = through(app, PROXY, X_Forwarded_For=CLIENT)
    both = client.get("/api/v1/me", headers=[("Remote-User", "anna"), ("Remote-User", "vic")])
    assert both.status_code == 401
    assert ignored(app) == {"remote-user": 1}
    assert client.get("/api/v1/me").status_code == 401
    assert client.get("/api/v1/me", headers={"Remote-User": ""}).status_code == 401
    assert client.get("/api/v1/me", headers={"Remote-User": "nobody"}).status_code == 403
    assert client.get("/api/v1/me", headers=BEARER).status_code == 200, "a program sends its token through it"


def test_who_is_disabled_is_not_let_in_by_the_proxy(site: Site) -> None:
    app = site.app()
    anna = through(app, PROXY, Remote_User="anna")
    assert anna.post("/api/v1/users/vic", json={"enabled": False}).status_code == 200
    assert through(app, PROXY, Remote_User="vic").get("/api/v1/me").status_code == 403


def test_another_site_changes_nothing_with_the_proxys_word(site: Site) -> None:
    anna = through(site.app(), PROXY, Remote_User="anna", Origin="http://evil.example")
    assert anna.post("/api/v1/users", json={"name": "eve", "password": "four words to forget"}).status_code == 403


def test_without_the_key_no_header_names_anybody(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert through(site.app(), PROXY, Remote_User="anna").get("/api/v1/me").status_code == 401
    site.close()


@pytest.mark.parametrize(
    ("chain", "address"),
    [
        (CLIENT, CLIENT), (f"1.2.3.4, {CLIENT}", CLIENT), (f"1.2.3.4, {CLIENT}, 127.0.0.9", CLIENT),
        ("127.0.0.9", PROXY), ("rubbish", PROXY), (f"{CLIENT}, rubbish", PROXY), ("2001:db8::7", "2001:db8::/64"),
    ],
)  # fmt: skip
def test_the_address_is_the_last_that_no_proxy_of_ours_is(site: Site, chain: str, address: str) -> None:
    """What stands before it, the visitor may have written."""
    through(site.app(), PROXY, X_Forwarded_For=chain).post("/login", json={"name": "anna", "password": "wrong"})
    assert AccessLog(site.db).newest()[0].address == address


def test_over_a_real_connection_the_protocol_makes_the_cookie_secure(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    signing_in = {"name": "anna", "password": "four words to remember"}
    with running(site.serve()) as url:
        plain = httpx.post(f"{url}/login", timeout=ANSWER_S, json=signing_in)
        secure = httpx.post(f"{url}/login", timeout=ANSWER_S, json=signing_in, headers={"X-Forwarded-Proto": "https"})
    assert "; Secure" not in plain.headers["Set-Cookie"]
    assert "; Secure" in secure.headers["Set-Cookie"]
    site.close()


def test_an_open_stream_ends_with_the_user_whom_the_proxy_named(
    site: Site, set_visitor: Callable[[Visitor, str], None]
) -> None:
    from starlette.requests import Request

    from appliance.store.users import AccessLog, SecondFactorStore, SessionStore
    from appliance.types.accounts import AccountTables
    from appliance.web.auth import Access
    from appliance.web.visitor import visitor

    db = site.db
    tables = AccountTables(UserStore(db), SessionStore(db), SecondFactorStore(db), AccessLog(db))
    access = Access(None, site.clock, tables)
    set_visitor(access.of_proxy("vic"), PROXY)
    still = access.still(Request({"type": "http", "headers": []}))
    assert still() == visitor()
    UserStore(site.db).remove("vic")
    access.reread()
    assert still() is None


@pytest.mark.parametrize(
    "settings", [{"user_header": "Remote-User"}, {"user_header": "Cookie", "trusted_proxies": [PROXY]},
                 {"user_header": "a b", "trusted_proxies": [PROXY]}]
)  # fmt: skip
def test_a_header_without_a_proxy_and_one_that_is_taken_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="user_header"):
        DashboardConfig.model_validate(settings)
