"""Who gets in: Host names, origins, the token, and what happens to those who guess."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from appliance.base.clock import ManualClock
from appliance.base.errors import MissingDependency
from appliance.config import DashboardConfig
from appliance.dashboard.app import create_app
from appliance.store.alerts import AlertStore
from appliance.store.users import SessionStore, UserStore
from appliance.types.accounts import UserRow
from appliance.web.auth import COOKIE, SessionCookies
from appliance.web.guard import AllowedHosts
from appliance.web.login_api import local_path
from appliance.web.server import WebServer
from appliance.web.sign_in_throttle import LoginThrottle
from tests.support.dashboard_site import Site, config_of, running
from tests.support.waiting import ANSWER_S

TOKEN = "correct horse battery staple"
T0 = 1_700_000_000.0
HERE = "http://127.0.0.1:8080"


def client_of(site: Site, base: str = HERE) -> TestClient:
    app = create_app(site.stored, site.config.for_dashboard())
    return TestClient(app, base_url=base, follow_redirects=False)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    made = Site(tmp_path / "open", clock)
    made.raise_alert("a", T0)
    yield made
    made.close()


@pytest.fixture
def guarded(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    made = Site(tmp_path / "guarded", clock, config=config_of(token=TOKEN))
    made.raise_alert("a", T0)
    yield made
    made.close()


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "vedette.lan"])
def test_answers_to_its_own_names(host: str) -> None:
    assert AllowedHosts.of(DashboardConfig(allowed_hosts=("vedette.lan",))).accept(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "192.168.1.5", "[::1", "a@localhost.evil"]
)
def test_does_not_answer_to_a_name_that_was_rebound(site: Site, host: str) -> None:
    assert not AllowedHosts.of(DashboardConfig()).accept(host)
    answer = client_of(site).get("/api/v1/alerts", headers={"Host": host})
    assert answer.status_code == 403
    assert "intruder" not in answer.text


def test_takes_addresses_in_figures_only_when_open_to_the_network() -> None:
    hosts = AllowedHosts.of(DashboardConfig.model_validate({"host": "0.0.0.0", "token": "long enough token"}))
    assert hosts.accept("192.168.1.5:8080")
    assert not hosts.accept("vedette.example")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_cannot_change_anything(site: Site, headers: dict[str, str]) -> None:
    answer = client_of(site).post("/api/v1/alerts/a/review", json={"review": "reviewed"}, headers=headers)
    assert answer.status_code == 403
    detail = site.alerts.get("a")
    assert detail is not None
    assert detail.row.reviewed.review is None


def test_its_own_pages_and_programs_can(site: Site) -> None:
    with client_of(site) as client:
        own = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
        for headers in (own, {}):
            answer = client.post("/api/v1/alerts/a/review", json={"review": "reviewed"}, headers=headers)
            assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Type": "text/plain"}, 415), ({"Content-Type": "application/x-www-form-urlencoded"}, 415)],
)
def test_a_form_cannot_change_anything(site: Site, headers: dict[str, str], status: int) -> None:
    body = b'{"review": "reviewed"}'
    assert client_of(site).post("/api/v1/alerts/a/review", content=body, headers=headers).status_code == status


def test_a_change_is_small(site: Site) -> None:
    body = b'{"review": "' + b"x" * 5000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert client_of(site).post("/api/v1/alerts/a/review", content=body, headers=headers).status_code == 400


def test_a_length_that_is_no_plain_number_is_refused(site: Site) -> None:
    client, body = client_of(site), b'{"review": "reviewed"}'
    for length in ("0" * 18 + "22", "9" * 5000, "-22", "+22", "2 2", "0x16", "²²", ""):
        headers = {b"Content-Type": b"application/json", b"Content-Length": length.encode()}
        answer = client.post("/api/v1/alerts/a/review", content=body, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 400, length


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a]b"])
def test_an_origin_that_is_no_address_is_another_site(site: Site, origin: str) -> None:
    answer = client_of(site).post("/login", json={"token": "x"}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.168.1.77", {}, 403),
        ("127.0.0.1", {"X-Forwarded-For": "192.168.1.77"}, 403),
        ("127.0.0.1", {"Forwarded": "for=192.168.1.77"}, 403),
        ("127.0.0.1", {"X-Real-IP": "192.168.1.77"}, 403),
        ("127.0.0.1", {"Via": "1.1 proxy"}, 403),
        *(
            ("127.0.0.1", {name: "192.168.1.77"}, 403)
            for name in (
                "CF-Connecting-IP",
                "True-Client-IP",
                "X-Client-IP",
                "X-Forwarded-Port",
                "X-Forwarded-Server",
                "CDN-Loop",
                "Fastly-Client-IP",
                "X-Cluster-Client-IP",
            )
        ),
    ],
)
def test_without_a_token_only_this_machine_looks_and_not_through_a_proxy(
    site: Site, client: str, headers: dict[str, str], status: int
) -> None:
    app = create_app(site.stored, site.config.for_dashboard())
    made = TestClient(app, base_url=HERE, client=(client, 4000), follow_redirects=False)
    for path in ("/api/v1/alerts", "/", "/api/v1/alerts/a/evidence/still.jpg", "/metrics"):
        answer = made.get(path, headers={"Accept": "text/html", **headers})
        assert (answer.status_code == 403) == (status == 403), path
    assert made.get("/healthz", headers=headers).status_code == 200


def test_a_proxy_that_says_nothing_is_known_by_its_old_protocol(site: Site) -> None:
    """nginx passes requests on as HTTP/1.0 and without a header of its own, unless it is told otherwise."""
    with running(site.serve()) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 20) as connection:
            connection.sendall(b"GET /api/v1/alerts HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.makefile("rb").readline().split()[1] == b"403"


def test_a_bug_is_answered_with_the_strict_headers_and_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug with a secret in it")

    monkeypatch.setattr(AlertStore, "get", broken)
    client = client_of(site)
    for n in range(20):
        answer = client.get(f"/api/v1/alerts/a?n={n}")
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "fault of the appliance" in client.get("/alerts/a", headers={"Accept": "text/html"}).text
    assert len([each for each in caplog.records if "met a bug" in each.message]) == 1


def test_another_site_may_link_here_but_not_embed_or_read(site: Site) -> None:
    client = client_of(site)
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200
    for path in ("/api/v1/cameras/gate/picture", "/static/page.js"):
        assert (
            client.get(path, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403
        )


def test_neither_a_stranger_nor_a_sibling_host_reads_pictures(site: Site) -> None:
    """An image in a page of another host of the same domain would otherwise show what the cameras see."""
    client = client_of(site)
    for path in ("/", "/api/v1/alerts", "/static/page.js"):
        for origin in ("cross-site", "same-site"):
            for mode in ("no-cors", "cors", "websocket", ""):
                asked = {"Sec-Fetch-Site": origin, **({"Sec-Fetch-Mode": mode} if mode else {})}
                assert client.get(path, headers=asked).status_code == 403, (path, asked)
        for origin in ("same-origin", "none"):
            own = {"Sec-Fetch-Site": origin, "Sec-Fetch-Mode": "cors"}
            assert client.get(path, headers=own).status_code == 200, (path, own)


def test_every_answer_carries_the_strict_headers(site: Site) -> None:
    with client_of(site) as client:
        for path in ("/", "/static/style.css", "/api/v1/alerts", "/nowhere", "/healthz"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "unsafe" not in policy
            assert "http" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"


def test_without_the_token_only_health_and_the_sign_in_page_are_seen(guarded: Site) -> None:
    with client_of(guarded) as client:
        paths = ["/api/v1/alerts", "/api/v1/stream", "/api/v1/cameras/gate/picture", "/metrics", "/api/openapi.json"]
        for path in [*paths, "/api/v1/alerts/a/evidence/clip.mp4", "/fragments/alerts/a"]:
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/problem+json"
        away = client.get("/alerts/a?x=1", headers={"Accept": "text/html"})
        assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Falerts%2Fa%3Fx%3D1")
        assert client.get("/login").status_code == 200
        assert client.get("/static/login.js").status_code == 200


def test_health_is_open_but_says_why_only_to_those_who_may_look(guarded: Site) -> None:
    guarded.cameras.mark_all_lost(T0, "no answer from gate")
    with client_of(guarded) as client:
        assert client.get("/healthz").json() == {"status": "degraded", "reasons": []}
        told = client.get("/healthz", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        assert any("gate" in reason for reason in told["reasons"])


def test_readiness_is_open_but_says_why_only_to_those_who_may_look(guarded: Site) -> None:
    guarded.cameras.mark_all_lost(T0, "no answer from gate")
    with client_of(guarded) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "degraded", "reasons": []})
        told = client.get("/readyz", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        assert any("gate" in reason for reason in told["reasons"])


def test_signing_in_gives_a_cookie_that_is_not_the_token(guarded: Site) -> None:
    with client_of(guarded) as client:
        answer = client.post("/login", json={"token": TOKEN})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert TOKEN not in answer.text
        assert len(cookie.partition(";")[0]) < 120, "it goes with each request"
        page = client.get("/")
        assert page.status_code == 200
        assert TOKEN not in page.text
        assert "Sign out" in page.text
        client.post("/logout", json={})
        assert client.get("/api/v1/alerts").status_code == 401


def test_a_program_sends_the_token_as_a_bearer(guarded: Site) -> None:
    with client_of(guarded) as client:
        assert client.get("/api/v1/alerts", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/v1/alerts", headers={"Authorization": "Bearer nearly"}).status_code == 401
        assert client.get(f"/api/v1/alerts?token={TOKEN}").status_code == 401


def test_guessing_a_programs_token_gets_slow_and_sending_the_right_one_never_does(guarded: Site) -> None:
    with client_of(guarded) as client:

        def asked(token: str) -> int:
            return client.get("/api/v1/alerts", headers={"Authorization": f"Bearer {token}"}).status_code

        assert {asked(TOKEN) for _ in range(40)} == {200}
        guesses = [asked(f"guess {n}") for n in range(40)]
        assert (guesses[0], guesses[-1]) == (401, 429)
        assert guesses.count(401) <= 10


def test_a_page_speaks_the_browsers_language_and_a_chosen_one_before_it(site: Site) -> None:
    client = client_of(site)
    german = {"Accept": "text/html", "Accept-Language": "de-AT,de;q=0.9,en;q=0.5"}
    assert '<html lang="de"' in client.get("/", headers=german).text
    assert '<html lang="en"' in client.get("/", headers={**german, "Accept-Language": "en"}).text
    assert client.post("/language", json={"language": "en"}, headers={"Accept-Language": "de"}).status_code < 400
    assert '<html lang="en"' in client.get("/", headers=german).text


@pytest.mark.parametrize("change", ["", "x", "1.2.3", "9999999999.nonce.00", "…", "."])
def test_a_made_up_cookie_is_refused(guarded: Site, change: str) -> None:
    with client_of(guarded) as client:
        answer = client.get("/api/v1/alerts", headers={"Cookie": f"{COOKIE}={change}".encode()})
        assert answer.status_code == 401


def test_a_cookie_ends_with_its_time_and_with_the_token(clock: ManualClock, site: Site) -> None:
    store = SessionStore(site.db)
    sessions = SessionCookies(TOKEN, clock, store)
    cookie = sessions.issue()
    assert sessions.find(cookie)
    expiry, nonce, mac = cookie.split(".")
    assert not sessions.find(f"{int(expiry) + 1}.{nonce}.{mac}")
    assert not SessionCookies("another token", clock, store).find(cookie)
    assert SessionCookies(TOKEN, clock, store).find(cookie), "a restart signs nobody out"
    clock.advance(30 * 86_400 + 1)
    assert not sessions.find(cookie)


def test_a_session_lasts_thirty_days_and_no_longer(guarded: Site, clock: ManualClock) -> None:
    with client_of(guarded) as client:
        given = client.post("/login", json={"token": TOKEN}).headers["set-cookie"].lower()
        assert "max-age=2592000;" in given, "the browser forgets it, too"
        clock.advance(30 * 86_400 - 60)
        assert client.get("/api/v1/alerts").status_code == 200
        clock.advance(61)
        assert client.get("/api/v1/alerts").status_code == 401


def test_signing_out_ends_the_session_wherever_the_cookie_was_copied_to(guarded: Site) -> None:
    with client_of(guarded) as client, client_of(guarded) as thief:
        for each in (client, client):  # two sessions: another browser stays signed in
            answer = each.post("/login", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"].split(";")[0]
        assert client.get("/api/v1/alerts", headers={"Cookie": cookie}).status_code == 200
        out = client.post("/logout", json={})
        assert out.headers["clear-site-data"] == '"cache"'
        assert client.get("/api/v1/alerts", headers={"Cookie": cookie}).status_code == 401
        assert thief.get("/api/v1/alerts", headers={"Cookie": cookie}).status_code == 401, "after a restart, too"
    assert len(SessionStore(guarded.db).all()) == 1


def test_sessions_are_bounded_and_hold_no_cookie(clock: ManualClock, site: Site) -> None:
    store = SessionStore(site.db)
    sessions = SessionCookies(TOKEN, clock, store)
    cookie = sessions.issue()
    with site.db.read() as connection:
        row = connection.execute("SELECT * FROM session").fetchone()
    assert row["user"] == ""
    assert cookie.split(".")[1] not in str(tuple(row))
    clock.advance(30 * 86_400 + 1)
    sessions.issue()
    assert len(store.all()) == 1
    with site.db.read() as connection:
        assert connection.execute("SELECT count(*) FROM session").fetchone()[0] == 1, "what is over is removed"


def test_guessing_gets_slow_and_patience_is_forgiven(guarded: Site, clock: ManualClock) -> None:
    with client_of(guarded) as client:
        statuses = [client.post("/login", json={"token": f"guess {n}"}).status_code for n in range(7)]
        assert statuses == [401] * 5 + [429] * 2
        blocked = client.post("/login", json={"token": TOKEN})
        assert blocked.status_code == 429, "or the right guess would show"
        assert int(blocked.headers["retry-after"]) >= 1
        assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 429
        clock.advance(2)
        assert client.post("/login", json={"token": TOKEN}).status_code == 200


def test_who_signs_in_is_forgiven_what_went_wrong_before(guarded: Site) -> None:
    with client_of(guarded) as client:
        for _ in range(3):
            for n in range(4):
                assert client.post("/login", json={"token": f"guess {n}"}).status_code == 401
            assert client.post("/login", json={"token": TOKEN}).status_code == 200


def test_a_session_of_the_token_ends_with_the_first_user(guarded: Site, clock: ManualClock) -> None:
    with client_of(guarded) as client:
        assert client.post("/login", json={"token": TOKEN}).status_code == 200
        assert client.get("/api/v1/me").json()["role"] == "admin"
        UserStore(guarded.db).add(UserRow(name="anna", role="admin", cameras=None, password="no hash"))
        clock.advance(2)
        assert client.get("/api/v1/me").status_code == 401, "from now on everybody signs in by name"
        assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_programs_stream_goes_on_as_long_as_its_token_holds(guarded: Site, clock: ManualClock) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with (
        running(guarded.serve()) as url,
        httpx.Client(base_url=url, timeout=ANSWER_S, headers=bearer) as http,
        http.stream("GET", f"/api/v1/stream?since={guarded.db.rev()}") as answer,
    ):
        lines = answer.iter_lines()
        for name in ("first", "second"):
            clock.advance(2)
            guarded.raise_alert(name, T0 + 20)
            assert any(f'"{name}"' in line for line in lines), "it ended"


def test_who_guesses_from_here_cannot_say_to_be_somebody_else(guarded: Site) -> None:
    with running(guarded.serve()) as url, httpx.Client(base_url=url, timeout=ANSWER_S) as client:
        statuses = [
            client.post("/login", json={"token": f"guess {n}"}, headers={"X-Forwarded-For": f"10.0.0.{n}"}).status_code
            for n in range(7)
        ]
    assert statuses == [401] * 5 + [429] * 2


def test_a_proxy_that_the_site_file_names_says_who_guesses(tmp_path: Path, clock: ManualClock) -> None:
    site = Site(tmp_path, clock, config=config_of(token=TOKEN, trusted_proxies=["127.0.0.0/8"]))
    with running(site.serve()) as url, httpx.Client(base_url=url, timeout=ANSWER_S) as client:
        for n in range(7):
            answer = client.post("/login", json={"token": "guess"}, headers={"X-Forwarded-For": f"10.0.0.{n}"})
            assert answer.status_code == 401
        answer = client.post("/login", json={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
        assert "Secure" in answer.headers["set-cookie"]
    site.close()


def test_the_throttle_forgets_and_is_bounded(clock: ManualClock) -> None:
    throttle = LoginThrottle(clock)
    for _ in range(30):
        throttle.wrong("10.0.0.1")
    assert 0 < throttle.wait_s("10.0.0.1") <= 60
    for n in range(5000):
        throttle.wrong(f"10.1.{n // 256}.{n % 256}")
    assert throttle.wait_s("10.0.0.1") == 0
    assert len(throttle) <= 1024


def test_the_token_is_in_no_log_and_no_answer(guarded: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with client_of(guarded) as client:
        texts = [
            client.post("/login", json={"token": TOKEN, "extra": 1}).text,
            client.post("/login", json={"token": [TOKEN]}).text,
            client.get("/", headers={"Authorization": f"Bearer {TOKEN}x"}).text,
        ]
    assert TOKEN not in "".join(texts)
    assert TOKEN not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("appliance"))


@pytest.mark.parametrize(
    ("wanted", "leads_to"),
    [
        ("/alerts/a?x=1", "/alerts/a?x=1"), ("//evil.example", "/"), ("/\\evil.example", "/"),
        ("https://evil.example", "/"), ("/\t/evil.example", "/"), ("", "/"), ("javascript:alert(1)", "/"),
    ],
)  # fmt: skip
def test_signing_in_leads_only_to_pages_of_this_appliance(wanted: str, leads_to: str) -> None:
    assert local_path(wanted) == leads_to


def test_a_taken_port_is_reported_with_the_remedy(site: Site) -> None:
    app = create_app(site.stored, site.config.for_dashboard())
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(MissingDependency, match=r"dashboard\.port"):
        WebServer(app, "127.0.0.1", other.getsockname()[1])


@pytest.mark.parametrize("host", ["192.0.2.1", "box..lan"])
def test_a_host_that_is_not_ours_is_reported(site: Site, host: str) -> None:
    app = create_app(site.stored, site.config.for_dashboard())
    with pytest.raises(MissingDependency):
        WebServer(app, host, 0)
