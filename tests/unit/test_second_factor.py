"""The second factor: codes by time, each once, guessed slowly; recovery codes; roles that must have one."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.credentials import STEP_S, code_at, step_of
from appliance.store.users import SecondFactorStore, UserStore
from appliance.types.accounts import UserRow
from appliance.web.login_api import CODE_WANTED
from appliance.web.sign_in_throttle import FREE_TRIES
from tests.support.dashboard_site import Site, config_of, password_hash

T0 = 1_700_000_010.0  # the beginning of a step
PASSWORD = "four words to remember"
RFC_SECRET = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"  # "12345678901234567890"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


def site_of(folder: Path, clock: ManualClock, *must: str) -> Site:
    site = Site(folder, clock, config=config_of(token="correct horse battery staple", second_factor=must))
    for name, role in (("anna", "admin"), ("vic", "viewer")):
        UserStore(site.db).add(UserRow(name=name, role=role, cameras=None, password=password_hash(PASSWORD)))  # type: ignore[arg-type]
    return site


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    made = site_of(tmp_path, clock)
    yield made
    made.close()


def client_of(app: FastAPI, address: str = "192.168.1.7") -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False, client=(address, 4000))


def sign_in(client: TestClient, name: str = "anna", **more: str) -> tuple[int, str]:
    answer = client.post("/login", json={"name": name, "password": PASSWORD, **more})
    return answer.status_code, answer.json().get("type", "")


def code(secret: str, clock: ManualClock, steps: int = 0) -> str:
    return code_at(secret, int(clock.now()) // STEP_S + steps)


def set_up(client: TestClient, clock: ManualClock) -> tuple[str, list[str]]:
    """Returns the secret and the recovery codes."""
    secret = client.post("/api/v1/me/second-factor", json={"password": PASSWORD}).json()["secret"]
    done = client.post("/api/v1/me/second-factor/confirm", json={"code": code(secret, clock)})
    assert done.status_code == 200, done.text
    return secret, done.json()["codes"]


@pytest.mark.parametrize(
    ("t", "wanted"),
    [(59, "94287082"), (1111111109, "07081804"), (1111111111, "14050471"), (1234567890, "89005924"),
     (2000000000, "69279037"), (20000000000, "65353130")],
)  # fmt: skip
def test_codes_are_those_of_the_rfc(t: int, wanted: str) -> None:
    assert code_at(RFC_SECRET, t // STEP_S, digits=8) == wanted


def test_a_clock_may_be_off_by_half_a_minute_and_no_more() -> None:
    given = code_at(RFC_SECRET, 1000)
    assert [step_of(RFC_SECRET, given, 1000.5 * STEP_S + n * STEP_S) for n in (-2, -1, 0, 1, 2)] == [
        None, 1000, 1000, 1000, None,
    ]  # fmt: skip
    assert step_of(RFC_SECRET, f"{given[:3]} {given[3:]}", 1000 * STEP_S) == 1000, "as apps show it"
    assert [step_of(RFC_SECRET, wrong, 1000 * STEP_S) for wrong in ("", "12345", "Ω", given + "0")] == [None] * 4


def test_a_sign_in_asks_for_a_code_and_each_is_good_once(site: Site, clock: ManualClock) -> None:
    app = site.app()
    here, elsewhere = client_of(app), client_of(app)
    assert sign_in(elsewhere)[0] == sign_in(here)[0] == 200
    secret, _ = set_up(here, clock)
    assert here.get("/api/v1/me").json()["second_factor"] == {"state": "on", "wanted": False, "recovery": 10}
    assert elsewhere.get("/api/v1/me").status_code == 401, "other sessions end"
    other = client_of(app)
    assert sign_in(other) == (401, CODE_WANTED)
    assert sign_in(other, code=code(secret, clock)) == (401, CODE_WANTED), "the one that set it up is used"
    clock.advance(STEP_S)
    now = code(secret, clock)
    assert sign_in(other, code=now)[0] == 200
    assert sign_in(client_of(app), code=now) == (401, CODE_WANTED), "a code that was seen over a shoulder"
    assert sign_in(client_of(app), code=code(secret, clock, -1)) == (401, CODE_WANTED), "nor the one before it"
    wrong = other.post("/login", json={"name": "anna", "password": "wrong", "code": code(secret, clock, 1)})
    assert (wrong.status_code, wrong.json()["type"]) == (401, "about:blank"), "a wrong password asks for no code"
    rows = [(each.who, each.what) for each in site_log(site)]
    assert ("anna", "set up a second factor") in rows
    assert ("anna", "was refused: wrong code") in rows


def site_log(site: Site) -> list:  # type: ignore[type-arg]
    from appliance.store.users import AccessLog

    return AccessLog(site.db).newest()


def test_codes_are_guessed_slowly(site: Site, clock: ManualClock) -> None:
    app = site.app()
    here = client_of(app)
    sign_in(here)
    secret, _ = set_up(here, clock)
    clock.advance(STEP_S)
    guesser = client_of(app, "192.168.1.66")
    assert [sign_in(guesser, code=f"{n:06d}")[0] for n in range(FREE_TRIES)] == [401] * FREE_TRIES
    assert sign_in(guesser, code=code(secret, clock))[0] == 429
    for n in range(40):  # from as many addresses: the account waits, too
        answer = sign_in(client_of(app, f"10.0.{n}.1"), code="000000")[0]
    assert answer == 429


def test_a_recovery_code_signs_in_once(site: Site, clock: ManualClock) -> None:
    app = site.app()
    here = client_of(app)
    sign_in(here)
    _, codes = set_up(here, clock)
    assert len(set(codes)) == 10
    assert sign_in(client_of(app), code=codes[3].lower())[0] == 200
    assert sign_in(client_of(app), code=codes[3])[0] == 401
    assert here.get("/api/v1/me").json()["second_factor"]["recovery"] == 9
    stored = SecondFactorStore(site.db).all()["anna"]
    assert not set(codes) & set(stored.recovery), "digests are stored"


def test_setting_it_up_needs_the_password_and_a_right_code(site: Site, clock: ManualClock) -> None:
    app = site.app()
    here = client_of(app)
    sign_in(here)
    assert here.post("/api/v1/me/second-factor", json={"password": "wrong"}).status_code == 403
    assert here.get("/api/v1/me/second-factor/qr.svg").status_code == 404
    secret = here.post("/api/v1/me/second-factor", json={"password": PASSWORD}).json()["secret"]
    assert sign_in(client_of(app))[0] == 200, "not asked for yet"
    picture = here.get("/api/v1/me/second-factor/qr.svg")
    assert picture.headers["Content-Type"] == "image/svg+xml"
    assert picture.text.startswith("<?xml")
    assert picture.headers["Cache-Control"] == "no-store"
    assert here.post("/api/v1/me/second-factor/confirm", json={"code": "000000"}).status_code == 422
    set_right = here.post("/api/v1/me/second-factor/confirm", json={"code": code(secret, clock)})
    assert set_right.status_code == 200
    assert here.get("/api/v1/me/second-factor/qr.svg").status_code == 404, "never shown again"
    assert here.post("/api/v1/me/second-factor", json={"password": PASSWORD}).status_code == 409
    assert here.post("/api/v1/me/second-factor/remove", json={"password": "wrong"}).status_code == 403
    assert here.post("/api/v1/me/second-factor/remove", json={"password": PASSWORD}).status_code == 200
    assert sign_in(client_of(app))[0] == 200


def test_a_role_that_must_have_one_can_do_nothing_before(tmp_path: Path, clock: ManualClock) -> None:
    site = site_of(tmp_path, clock, "admin")
    app = site.app()
    anna, vic = client_of(app), client_of(app)
    sign_in(anna)
    sign_in(vic, "vic")
    assert vic.get("/api/v1/alerts").status_code == 200
    assert anna.get("/api/v1/alerts").status_code == 403
    assert anna.post("/api/v1/users", json={"name": "x", "password": PASSWORD}).status_code == 403
    led = anna.get("/users", headers={"Accept": "text/html"})
    assert (led.status_code, led.headers["Location"]) == (303, "/account")
    assert "needs a second factor" in anna.get("/account", headers={"Accept": "text/html"}).text
    set_up(anna, clock)
    assert anna.get("/api/v1/alerts").status_code == 200
    token = {"Authorization": "Bearer correct horse battery staple"}
    assert client_of(app).get("/api/v1/users", headers=token).status_code == 200, "programs have none"
    assert anna.post("/api/v1/me/second-factor/remove", json={"password": PASSWORD}).status_code == 200
    assert anna.get("/api/v1/alerts").status_code == 403
    site.close()


def test_who_lost_the_phone_is_let_in_by_an_admin_or_on_the_box(
    site: Site, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = site.app()
    vic, anna = client_of(app), client_of(app)
    sign_in(vic, "vic")
    sign_in(anna)
    set_up(vic, clock)
    listed = {each["name"]: each["second_factor"] for each in anna.get("/api/v1/users").json()}
    assert listed == {"anna": False, "vic": True}
    assert anna.post("/api/v1/users/vic", json={"second_factor": False}).status_code == 200
    assert sign_in(client_of(app), "vic")[0] == 200
    set_up(anna, clock)
    site_file = tmp_path / "site.yaml"
    site_file.write_text(f"storage: {{dir: {tmp_path}}}\ncameras: {{}}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("another one, longer\n"))
    assert main(["users", "passwd", "anna", "--without-second-factor", "--config", str(site_file)]) == 0
    clock.advance(2)
    again = client_of(app).post("/login", json={"name": "anna", "password": "another one, longer"})
    assert again.status_code == 200
    assert UserStore(site.db).users()["vic"].name
    UserStore(site.db).remove("vic")
    assert "vic" not in SecondFactorStore(site.db).all()


def test_each_sees_and_ends_only_their_own_sessions(site: Site) -> None:
    app = site.app()
    vic, phone, anna = client_of(app), client_of(app, "192.168.1.9"), client_of(app)
    sign_in(vic, "vic")
    sign_in(phone, "vic")
    sign_in(anna)
    mine = vic.get("/api/v1/me/sessions").json()
    assert [(each["user"], each["here"]) for each in mine].count(("vic", True)) == 1
    assert len(mine) == 2
    (annas,) = anna.get("/api/v1/me/sessions").json()
    assert vic.delete(f"/api/v1/me/sessions/{annas['id']}").status_code == 404
    (other,) = [each["id"] for each in mine if not each["here"]]
    assert len(vic.delete(f"/api/v1/me/sessions/{other}").json()) == 1
    assert phone.get("/api/v1/me").status_code == 401
    assert anna.get("/api/v1/me").status_code == 200


def test_the_account_page_shows_no_secret(site: Site, clock: ManualClock) -> None:
    here = client_of(site.app())
    sign_in(here)
    secret, codes = set_up(here, clock)
    page = here.get("/account", headers={"Accept": "text/html"}).text
    assert "recovery codes are left" in page
    assert secret not in page
    assert not any(each in page for each in codes)
    assert not re.search(r"argon2", page)
