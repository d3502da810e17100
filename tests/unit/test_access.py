"""Users, roles and cameras: who signs in, what each may, what one of some cameras never sees, and what is on record."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.credentials import hashed, is_password
from appliance.base.errors import UsageError
from appliance.core.app import check_guarded
from appliance.dashboard.access_rights import RIGHTS
from appliance.dashboard.app import ROUTES, create_app
from appliance.store.health_events import HealthEventStore
from appliance.store.users import LOG_ROWS_MAX, AccessLog, SessionStore, UserStore
from appliance.types import HealthEvent
from appliance.types.accounts import SessionRow, UserRow
from appliance.web.auth import Access, SessionCookies
from appliance.web.routes import RouteList
from appliance.web.sign_in_throttle import FREE_TRIES, FREE_TRIES_ACCOUNT
from tests.support.dashboard_site import Site, config_of, password_hash, running

T0 = 1_700_000_000.0
HERE = "http://127.0.0.1:8080"
PASSWORD = "four words to remember"
TOKEN = "correct horse battery staple"
HASH = password_hash(PASSWORD)
NO_FACTOR = {"state": "none", "wanted": False, "recovery": 0}


def app_of(site: Site) -> FastAPI:
    return create_app(site.stored, site.config.for_dashboard())


def client_of(app: FastAPI, address: str = "192.168.1.7") -> TestClient:
    return TestClient(app, base_url=HERE, follow_redirects=False, client=(address, 4000))


def signed_in(app: FastAPI, name: str) -> TestClient:
    client = client_of(app)
    assert client.post("/login", json={"name": name, "password": PASSWORD}).status_code == 200
    return client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    made = Site(tmp_path / "site", clock, config=config_of(token=TOKEN))
    users = UserStore(made.db)
    users.add(UserRow(name="anna", role="admin", cameras=None, password=HASH))
    users.add(UserRow(name="rita", role="reviewer", cameras=None, password=HASH))
    users.add(UserRow(name="vic", role="viewer", cameras=None, password=HASH))
    users.add(UserRow(name="gatehouse", role="reviewer", cameras=("gate",), password=HASH))
    for camera in ("gate", "dock"):
        made.live(camera, T0)
        made.raise_alert(f"alert-{camera}", T0 + 2, camera=camera)
    yield made
    made.close()


def film(site: Site) -> None:
    """Give both cameras a recording, and their alerts a still and a clip."""
    for camera in ("gate", "dock"):
        site.record(camera, T0)
        detail = site.alerts.get(f"alert-{camera}")
        assert detail is not None
        site.cut(detail.alert)


# Who may what, by hand and not from the program's table: first the least role, then what a visitor of some cameras is
# shown: of their own; nothing, for it tells of the whole site; one camera's, alert's or fault's, if it is theirs.
WHO_MAY_WHAT = """
everybody own:
  GET /healthz; POST /language; GET,POST /login; POST /logout; GET /manifest.webmanifest; GET /readyz
  GET,POST /setup; GET,POST /snooze/{token}; GET /static/texts/{language}.js; GET /sw.js
  GET /shared/{token}; GET /shared/{token}/clip.mp4
viewer own:
  GET /; GET /account; GET /api/v1/alerts; GET /api/v1/arming; GET /api/v1/cameras; GET /api/v1/health/events
  GET /api/v1/live; GET /api/v1/me; POST /api/v1/me/password; POST /api/v1/me/second-factor
  POST /api/v1/me/second-factor/confirm; GET /api/v1/me/second-factor/qr.svg; POST /api/v1/me/second-factor/remove
  GET /api/v1/me/sessions; DELETE /api/v1/me/sessions/{session}; GET,POST /api/v1/push
  DELETE /api/v1/push/{browser}; POST /api/v1/push/{browser}/test; POST /api/v1/push/preferences; GET /api/v1/stream
  GET /cameras
  GET /fragments/troubles; GET /live; GET /notify; GET /timeline
viewer site:
  GET /agreement; GET /api/v1/agreement
  GET /api/v1/cascade; GET /api/v1/costs; GET /api/v1/costs.csv; GET /api/v1/costs/history; GET /api/v1/headroom
  GET /api/v1/savings; GET /api/v1/savings.csv; GET /api/v1/savings/history; GET /api/v1/scenarios
  GET /api/v1/scenarios/run; GET /api/v1/scenarios/{name}/clip.mp4; GET /api/v1/storage; GET /metrics; GET /savings
  GET /scenarios; GET /storage
viewer camera:
  GET /api/v1/cameras/{name}; GET /api/v1/cameras/{name}/boxes; GET /api/v1/cameras/{name}/frame
  GET /api/v1/cameras/{name}/jobs/{job}; GET /api/v1/cameras/{name}/picture; GET /api/v1/cameras/{name}/proposals
  GET /api/v1/cameras/{name}/recording; GET,HEAD /api/v1/cameras/{name}/recording.mp4
  GET /api/v1/cameras/{name}/timeline; GET /api/v1/cameras/{name}/why; GET /api/v1/cameras/{name}/why/replay/{job}
  GET /cameras/{name}; GET /cameras/{name}/timeline; GET /cameras/{name}/why
viewer alert:
  GET /alerts/{alert_id}; GET /api/v1/alerts/{alert_id}; GET /api/v1/analyze/{alert_id}
  GET,HEAD /api/v1/alerts/{alert_id}/evidence/{name}
  GET /api/v1/alerts/{alert_id}/rendition; GET /api/v1/alerts/{alert_id}/rendition.mp4
  GET /fragments/alerts/{alert_id}
viewer health:
  GET /api/v1/health/events/{event}; GET /fragments/health/{event}
reviewer own:
  POST /api/v1/alerts/delete; POST /api/v1/alerts/restore; POST /api/v1/alerts/review
  GET /api/v1/exports; DELETE,GET /api/v1/exports/{export}; GET /api/v1/exports/{export}/export.zip
  DELETE,POST /api/v1/exports/{export}/link
  POST /api/v1/analyze
reviewer camera:
  DELETE /api/v1/cameras/{name}/jobs/{job}; POST /api/v1/cameras/{name}/pause; GET,POST /api/v1/cameras/{name}/ptz
  POST /api/v1/cameras/{name}/why/replay; POST /api/v1/cameras/{name}/export
admin camera:
  POST /api/v1/cameras/{name}/erase
reviewer alert:
  POST /api/v1/alerts/{alert_id}/escalate; POST /api/v1/alerts/{alert_id}/keep; POST /api/v1/alerts/{alert_id}/note
  POST /api/v1/alerts/{alert_id}/review; POST /api/v1/alerts/{alert_id}/export
reviewer health:
  POST /api/v1/health/events/{event}/seen
reviewer site:
  POST /api/v1/arming; POST /api/v1/scenarios/run; POST /api/v1/scenarios/run/cancel
  DELETE /api/v1/scenarios/{name}
admin site:
  GET /proofs; GET /api/v1/proofs
  POST /api/v1/push/target
  GET /api/v1/erasures; GET /models; GET /api/v1/models; POST /api/v1/models/pull; POST /api/v1/models/offers
  DELETE,POST /api/v1/models/shadow
  POST /api/v1/models/use; POST /api/v1/models/back; POST /api/v1/proofs; DELETE /api/v1/proofs
  GET /access; GET /api/v1/access-log; GET /api/v1/access-log.csv
  GET,POST /api/v1/backups; DELETE,GET /api/v1/backups/{backup}
  GET,POST /api/v1/cameras/{name}/trials; DELETE,GET /api/v1/cameras/{name}/trials/{trial}; GET /api/v1/notify
  DELETE,POST /api/v1/notify/{target}; POST /api/v1/notify/{target}/test; DELETE,POST /api/v1/restore
  POST /api/v1/restore/upload; GET /api/v1/sessions; DELETE /api/v1/sessions/{session}; GET,POST /api/v1/settings
  POST /api/v1/settings/check; GET /api/v1/settings/connection; GET /api/v1/settings/networks
  POST /api/v1/settings/take-edit; POST /api/v1/settings/try; GET /api/v1/settings/versions
  GET /api/v1/settings/versions/{number}; POST /api/v1/settings/versions/{number}/restore
  POST /api/v1/setup/cameras; POST /api/v1/setup/cameras/{name}; POST /api/v1/setup/cameras/{name}/copy
  POST /api/v1/setup/cameras/{name}/remove; POST /api/v1/setup/discover; POST /api/v1/setup/onvif
  GET /api/v1/setup/pictures/{key}; POST /api/v1/setup/probe; GET /api/v1/setup/vendors; GET /api/v1/system
  GET /api/v1/system/diagnostics.zip; GET /api/v1/system/log; GET,POST /api/v1/tokens
  DELETE /api/v1/tokens/{token}; GET,POST /api/v1/users; DELETE,POST /api/v1/users/{user}; GET /cameras/new
  GET /cameras/{name}/edit; GET /cameras/{name}/settings; GET /cameras/{name}/trials; GET /cameras/{name}/trials/{trial}
  POST /fragments/setup/discover; POST /fragments/setup/onvif; POST /fragments/setup/probe; GET /settings
  GET /settings/adjoining; GET /settings/{form}; GET /system; GET /users
"""


def who_may_what() -> dict[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    role = shows = ""
    for line in WHO_MAY_WHAT.strip().splitlines():
        if not line.startswith(" "):
            role, shows = line.rstrip(":").split()
            continue
        for each in filter(None, line.strip().split("; ")):
            methods, path = each.split()
            found.update({(method, path): (role, shows) for method in methods.split(",")})
    return found


def routes() -> set[tuple[str, str]]:
    app = FastAPI()
    for each in ROUTES:
        each.add_to(app.router)
    return {(method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods}


def test_a_declared_route_is_built_for_the_application_alone() -> None:
    app = FastAPI()
    listed = RouteList(prefix="/api", tags=["gates"], include_in_schema=False, default_response_class=PlainTextResponse)

    @listed.get("/gate", tags=["open"])
    def gate() -> str:
        return "shut"

    assert not listed.routes, "built here it would stay in memory, beside the one that is served"
    listed.add_to(app.router)
    (route,) = (each for each in app.routes if isinstance(each, APIRoute))
    assert (route.path, route.tags, route.include_in_schema) == ("/api/gate", ["gates", "open"], False)
    answer = TestClient(app).get("/api/gate")
    assert (answer.text, answer.headers["content-type"]) == ("shut", "text/plain; charset=utf-8")
    assert [each.routes for each in ROUTES if each.routes] == []


def test_dashboards_of_one_process_share_routes_and_code_and_nothing_else(tmp_path: Path) -> None:
    sites = []
    for name in ("north", "south"):
        config = config_of()
        named = config.model_copy(update={"site": config.site.model_copy(update={"name": name})})
        sites.append(Site(tmp_path / name, ManualClock(1e9), named))
        sites[-1].raise_alert(f"at-{name}", 1e9 - 60)
    apps = [site.app() for site in sites]
    shared = {id(route) for route in apps[0].routes} & {id(route) for route in apps[1].routes}
    assert len(shared) > 150, "to build one takes milliseconds"
    with (
        TestClient(apps[0], base_url="http://127.0.0.1:8080") as north,
        TestClient(apps[1], base_url="http://127.0.0.1:8080") as south,
    ):
        for path in ("/", "/api/v1/alerts"):
            answers = [client.get(path).text for client in (north, south, north)]
            assert ["at-north" in text for text in answers] == [True, False, True], path
            assert ["at-south" in text for text in answers] == [False, True, False], path
    compiled = [app.state.templates._environment.get_template("alerts.html").root_render_func for app in apps]
    assert compiled[0].__code__ is compiled[1].__code__
    for site in sites:
        site.close()


def test_every_route_says_who_may() -> None:
    served = routes()
    assert served - RIGHTS.keys() == set(), "add these to RIGHTS in access_rights.py"
    assert RIGHTS.keys() - served == set(), "these are gone: take them off RIGHTS"


def test_the_rights_are_those_that_were_decided() -> None:
    said = {key: (right.role or "everybody", right.shows) for key, right in RIGHTS.items()}
    decided = who_may_what()
    assert {key: (said.get(key), right) for key, right in decided.items() if said.get(key) != right} == {}
    assert said.keys() - decided.keys() == set(), "say in WHO_MAY_WHAT who may this"


def test_a_route_that_nobody_wrote_down_is_for_admins_only(site: Site) -> None:
    app = app_of(site)

    @app.get("/forgotten")
    def forgotten() -> int:
        return 1

    assert signed_in(app, "anna").get("/forgotten").status_code == 200
    assert signed_in(app, "rita").get("/forgotten").status_code == 403


def filled(path: str, camera: str) -> str:
    """A path with the names and ids of one camera's things."""
    values = {"alert_id": f"alert-{camera}", "event": f"fault-{camera}", "number": "1", "key": "k"}
    path = path.replace("/evidence/{name}", "/evidence/still.jpg")
    for key, value in {**values, "name": camera, "user": "vic", "session": "s", "token": "t"}.items():
        path = path.replace("{" + key + "}", value)
    return path


SPAN = {"from": T0, "to": T0 + 6}
QUERY = {
    "boxes": {"t": T0 + 2},
    "timeline": SPAN,
    "why": SPAN,
    "recording": SPAN,
    "recording.mp4": SPAN,
    "frame": {"t": T0 + 2},
}


def query_of(path: str) -> dict[str, float]:
    return QUERY.get(path.rsplit("/", 1)[-1], {})


def test_each_role_may_what_the_table_says_and_no_more(site: Site) -> None:
    app = app_of(site)
    ranks = {"vic": 0, "rita": 1, "anna": 2}
    needed = {"everybody": 0, "viewer": 0, "reviewer": 1, "admin": 2}
    for name, rank in ranks.items():
        client = signed_in(app, name)
        for (method, path), (role, _) in who_may_what().items():
            if path.endswith(("/stream", "/login", "/logout", "/probe")):
                continue
            if rank >= needed[role] and method != "GET":
                continue  # what it does is tested elsewhere; here it would be done
            body = None if method in {"GET", "HEAD"} else "{}"
            kind = "octet-stream" if path.endswith("/upload") else "json"
            headers = {"Content-Type": f"application/{kind}"} if body else {}
            answer = client.request(method, filled(path, "gate"), content=body, headers=headers, params=query_of(path))
            refused = answer.status_code == 403
            assert refused == (rank < needed[role]), (name, method, path, answer.status_code, answer.text[:200])


def test_who_has_one_camera_is_never_shown_another(site: Site) -> None:
    """Every GET route, with the other camera's names and ids: nothing of it comes back."""
    film(site)
    for camera in ("gate", "dock"):
        fault = HealthEvent(
            id=f"fault-{camera}", camera=camera, kind="frozen", t_start=T0, t_end=None, t=T0, reason="", recovery="",
            attempts=0, times=1,
        )  # fmt: skip
        HealthEventStore(site.db).put(fault)
    client = signed_in(app_of(site), "gatehouse")
    walked = 0
    for (method, path), (role, shows) in who_may_what().items():
        if path.endswith("/stream") or (shows == "own" and method in {"POST", "DELETE"}):
            continue
        body = None if method in {"GET", "HEAD"} else "{}"
        headers = {"Accept": "*/*", **({"Content-Type": "application/json"} if body else {})}
        asked = filled(path, "dock")
        answer = client.request(method, asked, content=body, params=query_of(path), headers=headers)
        assert b"dock" not in answer.content, (path, answer.text[:300])
        if shows == "site" and not path.endswith("/upload"):
            assert answer.status_code == 403, (method, path, answer.status_code)
        if shows in {"camera", "alert", "health"}:
            walked += 1
            assert answer.status_code in {403, 404}, (method, path, answer.status_code)
            if method in {"POST", "DELETE"}:
                continue  # with their own camera it would be done
            own = client.request(method, filled(path, "gate"), params=query_of(path))
            gone = "is not converted" in own.text or "Nothing was asked" in own.text
            gone |= "{job}" in path and own.status_code == 404  # there is no job
            there = own.status_code in {200, 202, 204} or gone
            assert role != "viewer" or there, (path, own.status_code, own.text[:300])
    assert walked >= 10
    for path in ("/api/v1/alerts", "/", "/api/v1/cameras", "/api/v1/health/events"):
        assert "gate" in client.get(path, headers={"Accept": "*/*"}).text
    assert client.get("/api/v1/alerts?camera=dock").json()["alerts"] == []
    assert client.get("/api/v1/live?camera=gate&camera=dock").status_code == 404
    ids = ["alert-dock", "alert-gate"]
    for what, change in (
        ("review", {"review": "reviewed"}), ("delete", {"reason": "a test"}), ("restore", {}),
    ):  # fmt: skip
        assert client.post(f"/api/v1/alerts/{what}", json={"ids": ids, **change}).json()["missing"] == ["alert-dock"]
    assert client.post("/api/v1/alerts/alert-dock/review", json={"review": "reviewed"}).status_code == 404
    assert client.post("/api/v1/alerts/alert-gate/review", json={"review": "reviewed"}).status_code == 200


def test_a_stream_has_the_changes_of_ones_own_cameras_and_ends_with_the_session(site: Site) -> None:
    users, since = UserStore(site.db), site.db.rev()
    with running(site.serve()) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/login", json={"name": "gatehouse", "password": PASSWORD}).status_code == 200
        with http.stream("GET", f"/api/v1/stream?since={since}") as answer:
            site.raise_alert("secret", T0 + 20, camera="dock")
            site.raise_alert("own", T0 + 21, camera="gate")
            seen, lines = "", answer.iter_lines()
            for line in lines:
                seen += line
                if '"own"' in line:
                    break
            assert "dock" not in seen
            users.change("gatehouse", lambda row: replace(row, enabled=False))
            site.clock.advance(2)  # type: ignore[attr-defined]
            site.raise_alert("later", T0 + 22, camera="gate")
            assert "later" not in "".join(lines), "the stream ended"


def test_a_user_signs_in_with_their_password_and_nothing_else(site: Site) -> None:
    app = app_of(site)
    for wrong in (
        {"name": "anna", "password": "wrong"},
        {"name": "nobody", "password": PASSWORD},
        {"token": TOKEN},
        {},
    ):
        answer = client_of(app).post("/login", json=wrong)
        assert answer.status_code == 401, wrong
        assert answer.json()["detail"] == "Name and password do not fit."
    client = signed_in(app, "anna")
    assert client.get("/api/v1/me").json() == {
        "name": "anna",
        "role": "admin",
        "cameras": None,
        "second_factor": NO_FACTOR,
    }
    assert "Signed in as anna" in client.get("/", headers={"Accept": "text/html"}).text
    bearer = client_of(app).get("/api/v1/me", headers={"Authorization": f"Bearer {TOKEN}"})
    assert bearer.json() == {"name": "", "role": "admin", "cameras": None, "second_factor": NO_FACTOR}, (
        "programs go on with the site's token"
    )
    with site.db.read() as connection:
        stored = str([tuple(row) for row in connection.execute("SELECT * FROM user")])
    assert PASSWORD not in stored
    assert "$argon2id$" in stored


def test_without_users_and_token_this_machine_is_the_owner_until_the_first_user(
    tmp_path: Path, clock: ManualClock
) -> None:
    site = Site(tmp_path, clock)
    app = app_of(site)
    client = client_of(app, "127.0.0.1")
    assert client.get("/api/v1/me").json()["role"] == "admin"
    assert client.post("/api/v1/users", json={"name": "v", "password": PASSWORD, "role": "viewer"}).status_code == 422
    assert client.post("/api/v1/tokens", json={"name": "ha", "scope": "admin"}).status_code == 422
    assert client.post("/api/v1/users", json={"name": "anna", "password": PASSWORD, "role": "admin"}).status_code == 201
    assert client.get("/api/v1/me").status_code == 401, "from now on everybody signs in, this machine too"
    assert signed_in(app, "anna").get("/api/v1/me").status_code == 200
    site.close()


def test_guessing_a_password_gets_slow_for_the_address_and_for_the_account(site: Site, clock: ManualClock) -> None:
    app = app_of(site)
    guess = {"name": "anna", "password": "wrong"}
    one = client_of(app, "10.0.0.1")
    assert [one.post("/login", json=guess).status_code for _ in range(FREE_TRIES + 1)] == [401] * FREE_TRIES + [429]
    for n in range(FREE_TRIES_ACCOUNT - FREE_TRIES):
        assert client_of(app, f"10.0.1.{n}").post("/login", json=guess).status_code == 401
    from_elsewhere = client_of(app, "10.0.2.1")
    right = {"name": "anna", "password": PASSWORD}
    assert from_elsewhere.post("/login", json=right).status_code == 429, "many addresses guess one account"
    assert from_elsewhere.post("/login", json={"name": "rita", "password": PASSWORD}).status_code == 200
    clock.advance(61)
    assert from_elsewhere.post("/login", json=right).status_code == 200


def test_a_user_is_changed_disabled_and_removed_and_their_sessions_end(site: Site) -> None:
    app = app_of(site)
    anna, vic = signed_in(app, "anna"), signed_in(app, "vic")
    assert vic.get("/api/v1/alerts").status_code == 200
    anna.post("/api/v1/users/vic", json={"role": "reviewer", "cameras": ["dock"]})
    assert vic.get("/api/v1/me").json() == {
        "name": "vic",
        "role": "reviewer",
        "cameras": ["dock"],
        "second_factor": NO_FACTOR,
    }, "at once"
    anna.post("/api/v1/users/vic", json={"cameras": None})
    assert vic.get("/api/v1/me").json()["cameras"] is None
    anna.post("/api/v1/users/vic", json={"enabled": False})
    assert vic.get("/api/v1/alerts").status_code == 401
    assert vic.post("/login", json={"name": "vic", "password": PASSWORD}).status_code == 401
    anna.post("/api/v1/users/vic", json={"enabled": True, "password": "another one, longer"})
    assert vic.post("/login", json={"name": "vic", "password": PASSWORD}).status_code == 401
    assert vic.post("/login", json={"name": "vic", "password": "another one, longer"}).status_code == 200
    assert vic.post("/api/v1/me/password", json={"old": "wrong", "new": PASSWORD}).status_code == 403
    assert vic.post("/api/v1/me/password", json={"old": "another one, longer", "new": PASSWORD}).status_code == 200
    assert vic.get("/api/v1/alerts").status_code == 401, "another password ends all sessions"
    assert anna.request("DELETE", "/api/v1/users/vic", json={}).status_code == 200
    assert "vic" not in {each["name"] for each in anna.get("/api/v1/users").json()}


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"enabled": False}, {"cameras": ["gate"]}, None])
def test_the_last_admin_stays(site: Site, change: dict[str, object] | None) -> None:
    anna = signed_in(app_of(site), "anna")
    if change is None:
        answer = anna.request("DELETE", "/api/v1/users/anna", json={})
    else:
        answer = anna.post("/api/v1/users/anna", json=change)
    assert answer.status_code == 422
    assert "one admin" in answer.json()["detail"].lower()
    assert anna.get("/api/v1/me").json()["role"] == "admin"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"name": "x", "password": "short"}, "a password has 10"), ({"name": "../x", "password": PASSWORD}, "no name"),
        ({"name": "ANNA", "password": PASSWORD}, "already"),
        ({"name": "x", "password": PASSWORD, "cameras": ["attic"]}, "no camera attic"),
    ],
)  # fmt: skip
def test_a_user_that_cannot_be_is_refused_with_the_reason(site: Site, user: dict[str, object], words: str) -> None:
    answer = signed_in(app_of(site), "anna").post("/api/v1/users", json=user)
    assert answer.status_code == 422
    assert words in answer.json()["detail"].lower()
    assert PASSWORD not in answer.text


def test_what_changes_while_a_password_is_checked_or_chosen_is_heeded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread does, or `vedette users` in another process: this one knows of it a second later."""
    app, users = app_of(site), UserStore(site.db)
    client = signed_in(app, "vic")
    users.change("vic", lambda row: replace(row, role="reviewer", enabled=False))
    client.post("/api/v1/me/password", json={"old": PASSWORD, "new": "four other words to keep"})
    changed = users.users()["vic"]
    assert (changed.role, changed.enabled, changed.password == HASH) == ("reviewer", False, False)
    access: Access = app.state.parts[Access]
    issue = access.sessions.issue

    def overtaken(user: str = "", address: str = "") -> str:
        users.change("rita", lambda row: replace(row, password=changed.password))
        return issue(user, address)

    monkeypatch.setattr(access.sessions, "issue", overtaken)
    assert client_of(app).post("/login", json={"name": "rita", "password": PASSWORD}).status_code == 401
    assert [each.user for each in SessionStore(site.db).all().values()] == []


def test_what_was_read_before_a_change_never_takes_the_place_of_what_was_read_after_it(site: Site) -> None:
    has_read, go = threading.Event(), threading.Event()

    class Slow(SessionStore):
        def all(self) -> dict[str, SessionRow]:
            found = super().all()
            if threading.current_thread().name == "slow":
                has_read.set()
                go.wait(60)
            return found

    sessions, cookies = SessionCookies(TOKEN, site.clock, Slow(site.db)), list[str]()
    reads = threading.Thread(target=sessions.reread, name="slow")
    signs_in = threading.Thread(target=lambda: cookies.append(sessions.issue()))
    reads.start()
    assert has_read.wait(60)
    signs_in.start()
    signs_in.join(0.3)  # it waits for the other
    go.set()
    for each in (reads, signs_in):
        each.join(60)
    assert sessions.find(cookies[0]), "who has just signed in is not known"


def test_sessions_are_listed_and_ended_by_an_admin(site: Site) -> None:
    app = app_of(site)
    anna, vic = signed_in(app, "anna"), signed_in(app, "vic")
    found = {each["user"]: each for each in anna.get("/api/v1/sessions").json()}
    assert found["vic"]["address"] == "192.168.1.7"
    assert (found["anna"]["here"], found["vic"]["here"]) == (True, False)
    assert anna.request("DELETE", f"/api/v1/sessions/{found['vic']['id']}", json={}).status_code == 200
    assert vic.get("/api/v1/alerts").status_code == 401
    assert anna.get("/api/v1/alerts").status_code == 200


def test_a_programs_token_is_shown_once_and_may_what_its_scope_says(site: Site) -> None:
    app = app_of(site)
    anna = signed_in(app, "anna")
    made = anna.post("/api/v1/tokens", json={"name": "home/assistant", "scope": "reviewer"})
    assert made.status_code == 422, "a name has no slash"
    made = anna.post("/api/v1/tokens", json={"name": "ha", "scope": "reviewer"})
    token = made.json()["token"]
    assert token not in anna.get("/api/v1/tokens").text
    assert token not in str(list(site.db._writer.execute("SELECT * FROM api_token").fetchone()))
    program = client_of(app)
    program.headers["Authorization"] = f"Bearer {token}"
    assert program.get("/api/v1/me").json() == {
        "name": "token ha",
        "role": "reviewer",
        "cameras": None,
        "second_factor": NO_FACTOR,
    }
    assert program.post("/api/v1/alerts/alert-gate/review", json={"review": "reviewed"}).status_code == 200
    assert program.get("/api/v1/users").status_code == 403
    anna.request("DELETE", f"/api/v1/tokens/{made.json()['id']}", json={})
    assert program.get("/api/v1/me").status_code == 401


def test_what_an_admins_token_does_ends_with_it(site: Site) -> None:
    app = app_of(site)
    made = signed_in(app, "anna").post("/api/v1/tokens", json={"name": "ops", "scope": "admin"})
    new = {"name": "eve", "password": PASSWORD, "role": "admin"}
    for token in (made.json()["token"], TOKEN):  # a program's, and the site's
        program = client_of(app)
        program.headers["Authorization"] = f"Bearer {token}"
        for path, body in (
            ("users", new), ("users/vic", {"role": "admin"}), ("users/anna", {"password": "other " + PASSWORD}),
            ("users/anna", {"second_factor": False}), ("users/anna", {"enabled": True, "password": "x" + PASSWORD}),
            ("users/anna", {"enabled": False, "second_factor": False}),  # until she is let in again
            ("users/anna", {"enabled": False, "password": "x" + PASSWORD}),
            ("users/vic", {"enabled": False, "role": "admin", "password": "x" + PASSWORD}),
            ("tokens", {"name": "more", "scope": "admin"}), ("restore", {}),
        ):  # fmt: skip
            answer = program.post(f"/api/v1/{path}", json=body)
            assert (answer.status_code, "lasting admin rights" in answer.text) == (403, True), path
        assert program.post("/api/v1/users/vic", json={"enabled": True}).status_code == 200
    assert "eve" not in site_users(site)
    signed_in(app, "anna")


def site_users(site: Site) -> set[str]:
    return set(UserStore(site.db).users())


def test_the_sites_token_adds_the_first_user_and_no_admin_after(tmp_path: Path, clock: ManualClock) -> None:
    site = Site(tmp_path, clock, config=config_of(token=TOKEN))
    program = client_of(app_of(site))
    program.headers["Authorization"] = f"Bearer {TOKEN}"
    new = {"name": "anna", "password": PASSWORD, "role": "admin"}
    assert program.post("/api/v1/users", json=new).status_code == 201
    assert program.post("/api/v1/users", json={**new, "name": "eve"}).status_code == 403
    assert program.post("/api/v1/users", json={**new, "name": "vic", "role": "viewer"}).status_code == 201
    site.close()


@pytest.mark.parametrize("password", ["1234567890", "Password123", "qwertyuiop", "aaaaaaaaaaaa", "1212121212121"])
def test_a_password_that_everybody_tries_is_refused(password: str) -> None:
    with pytest.raises(UsageError, match="tried first"):
        hashed(password)


def test_logins_and_changes_are_on_record_and_the_record_is_bounded(site: Site) -> None:
    app = app_of(site)
    client_of(app).post("/login", json={"name": "anna", "password": "wrong"})
    anna = signed_in(app, "anna")
    anna.post("/api/v1/users/vic", json={"role": "reviewer"})
    anna.post("/api/v1/users/vic", json={"role": "no such role"})
    signed_in(app, "vic").post("/api/v1/alerts/alert-gate/review", json={"review": "reviewed"})
    rows = [(row["who"], row["what"], row["about"]) for row in anna.get("/api/v1/access-log").json()]
    assert rows == [
        ("vic", "reviewed", "alert-gate"), ("vic", "signed in", ""), ("anna", "changed a user", "vic"),
        ("anna", "signed in", ""), ("anna", "was refused: wrong password", ""),
    ]  # fmt: skip
    page = anna.get("/users", headers={"Accept": "text/html"}).text
    assert "was refused: wrong password" in page
    log = AccessLog(site.db)
    last = "INSERT INTO access_log (id, t, who, address, what, about) VALUES (?, 1, 'x', 'y', 'last', '')"
    site.db.execute(last, (LOG_ROWS_MAX + len(rows),))
    log.write("x", "y", "one more")
    assert [row.what for row in log.newest()] == ["one more", "last"], "the oldest of too many goes"


def test_a_change_is_on_record_before_its_answer_leaves(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(site)
    order: list[str] = []
    write = AccessLog.write
    monkeypatch.setattr(AccessLog, "write", lambda log, *row: (order.append("logged"), write(log, *row))[1])

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            order.append(message["type"])
            await send(message)

        await app(scope, receive, sent)

    anna = signed_in(app, "anna")
    order.clear()
    told = TestClient(watched, base_url=HERE, cookies=anna.cookies, client=("192.168.1.7", 4000))
    assert told.post("/api/v1/users/vic", json={"role": "reviewer"}).status_code == 200
    assert order[:2] == ["logged", "http.response.start"]


def test_a_password_is_right_or_wrong() -> None:
    assert is_password(PASSWORD, HASH)
    assert not is_password(PASSWORD + "x", HASH)
    assert not is_password(PASSWORD, None)
    assert hashed(PASSWORD) != HASH, "salted"


def test_an_open_address_without_users_or_token_does_not_start(tmp_path: Path, clock: ManualClock) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_guarded(config_of(host=host), ())
    check_guarded(config_of(host="0.0.0.0", token=TOKEN), ())
    check_guarded(config_of(host="0.0.0.0"), ("anna",))
    with pytest.raises(UsageError, match=r"vedette users add NAME --role admin.*set dashboard\.token"):
        check_guarded(config_of(host="192.168.1.5"), ())


@pytest.fixture
def site_file(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(
        f"storage: {{dir: {tmp_path / 'data'}}}\ndashboard: {{host: 0.0.0.0, port: 0}}\n"
        "cameras: {gate: {url: 'rtsp://127.0.0.1/x'}}\n"
    )
    return path


def typed(monkeypatch: pytest.MonkeyPatch, *words: str, password: str = PASSWORD) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(password + "\n"))
    return main(["users", *words])


def test_users_are_kept_from_the_command_line_also_while_the_appliance_runs(
    site_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: ManualClock
) -> None:
    where = ["--config", str(site_file)]
    assert typed(monkeypatch, "add", "rita", "--role", "reviewer", *where) == 2, "the first is an admin"
    assert typed(monkeypatch, "add", "anna", "--role", "admin", *where) == 0
    site = Site(site_file.parent / "data", clock)  # as the appliance holds the file
    app = app_of(site)
    anna = signed_in(app, "anna")
    assert typed(monkeypatch, "add", "rita", "--role", "reviewer", "--camera", "gate", *where) == 0
    assert typed(monkeypatch, "add", "rita", "--role", "viewer", *where) == 2
    assert typed(monkeypatch, "add", "paul", "--role", "viewer", "--camera", "attic", *where) == 2
    assert typed(monkeypatch, "passwd", "anna", *where, password="another one, longer") == 0
    clock.advance(2)
    assert anna.get("/api/v1/me").status_code == 401, "signed out within a second"
    assert typed(monkeypatch, "remove", "anna", *where) == 2
    capsys.readouterr()
    assert typed(monkeypatch, "list", "--json", *where) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "anna", "role": "admin", "cameras": None, "enabled": True},
        {"name": "rita", "role": "reviewer", "cameras": ["gate"], "enabled": True},
    ]
    assert signed_in_with(app, "anna", "another one, longer").get("/api/v1/me").status_code == 200
    site.close()


def signed_in_with(app: FastAPI, name: str, password: str) -> TestClient:
    client = client_of(app)
    assert client.post("/login", json={"name": name, "password": password}).status_code == 200
    return client


def test_check_says_that_an_open_address_needs_users(
    site_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["check", str(site_file), "--no-probe", "--json"]
    assert main(arguments) == 2
    assert "open to the network" in capsys.readouterr().out
    assert typed(monkeypatch, "add", "anna", "--role", "admin", "--config", str(site_file)) == 0
    capsys.readouterr()
    assert main(arguments) == 0, capsys.readouterr().out
