"""Strangers guess at an account, and its owner gets in all the same: at home, by their browser, from the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance.__main__ import main
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.credentials import STEP_S, code_at
from appliance.cli.users_command import UNLOCK_S
from appliance.store.users import UserStore
from appliance.types.accounts import UserRow
from appliance.web.acceptor import counted_address
from appliance.web.login_api import CODE_WANTED
from appliance.web.sign_in_throttle import (
    CODE_BLOCK_S_MAX,
    FREE_TRIES,
    FREE_TRIES_ACCOUNT,
    FREE_TRIES_ADDRESS,
    Guess,
    SignInThrottle,
    device_of,
    new_device,
)
from tests.support.dashboard_site import PASSWORD, Site, config_of, password_hash

T0 = 1_700_000_010.0
HOME, HOTEL = "192.168.1.7", "203.0.113.40"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def site(tmp_path: Path, clock: ManualClock) -> Iterator[Site]:
    made = Site(tmp_path, clock, config=config_of(token="correct horse battery staple"))
    for name, role in (("anna", "admin"), ("vic", "viewer")):
        UserStore(made.db).add(UserRow(name=name, role=role, cameras=None, password=password_hash(PASSWORD)))  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture
def app(site: Site) -> FastAPI:
    return site.app()


def at(app: FastAPI, address: str) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False, client=(address, 4000))


def sign_in(client: TestClient, name: str = "anna", password: str = PASSWORD, **more: str) -> int:
    return client.post("/login", json={"name": name, "password": password, **more}).status_code


def strangers_guess(app: FastAPI, name: str = "anna", tries: int = FREE_TRIES_ACCOUNT) -> None:
    """From as many addresses as it takes that none of them must wait."""
    clients = [at(app, f"198.51.100.{n}") for n in range(-(-tries // (FREE_TRIES - 1)))]
    assert {sign_in(clients[n % len(clients)], name, "wrong") for n in range(tries)} == {401}


def test_where_the_account_is_signed_in_strangers_keep_nobody_out(app: FastAPI, clock: ManualClock) -> None:
    assert sign_in(at(app, HOME)) == 200
    for _ in range(3):  # for as long as they like
        strangers_guess(app)
        assert sign_in(at(app, HOTEL)) == 429, "from anywhere else the account is guarded"
        assert sign_in(at(app, HOME)) == 200, "another browser at the same address"
        clock.advance(4000)


def test_this_machine_is_not_kept_out(app: FastAPI) -> None:
    strangers_guess(app)
    assert sign_in(at(app, HOTEL)) == 429
    assert [sign_in(at(app, each)) for each in ("127.0.0.1", "::1")] == [200, 200]


def test_a_browser_that_has_signed_in_is_counted_by_itself_wherever_it_is(app: FastAPI, site: Site) -> None:
    laptop = at(app, HOME)
    assert sign_in(laptop) == 200
    laptop.post("/logout", json={})
    strangers_guess(app)
    with at(app, HOTEL) as same:
        neighbours = [sign_in(same, "anna", "wrong") for _ in range(3)]
        assert neighbours == [429] * 3, "nobody is signed in there"
        same.cookies.update(laptop.cookies)
        assert sign_in(same) == 200
    other = at(app, HOTEL)
    other.cookies.set("vedette_device", laptop.cookies["vedette_device"][:-1] + "x")
    strangers_guess_from(app, HOTEL)
    assert sign_in(other) == 429, "it cannot be made up"
    thief = at(app, "192.0.2.66")
    thief.cookies.update(laptop.cookies)
    assert [sign_in(thief, "anna", f"guess {n}") for n in range(FREE_TRIES + 1)] == [401] * FREE_TRIES + [429]
    UserStore(site.db).change("anna", lambda row: UserRow(name="anna", role="admin", cameras=None, password="another"))
    assert device_of(laptop.cookies["vedette_device"], "anna", "another") == "", "another password ends it"


def strangers_guess_from(app: FastAPI, address: str) -> None:
    while sign_in(at(app, address), "anna", "wrong") == 401:
        pass


def test_the_cookie_of_one_account_says_nothing_of_another() -> None:
    cookie = new_device("anna", "hash")
    assert device_of(cookie, "anna", "hash").startswith("browser ")
    assert [device_of(cookie, "vic", "hash"), device_of(cookie, "anna", "other"), device_of("", "anna", "hash")] == [
        ""
    ] * 3
    assert device_of("…", "anna", "hash") == ""


def test_an_address_is_held_over_all_accounts_and_a_right_sign_in_forgives_none_of_them(app: FastAPI) -> None:
    """Who has an account of their own would else have free tries for ever."""
    held, sprayer = 0, "198.51.100.9"
    for n in range(FREE_TRIES_ADDRESS + 2):
        held += sign_in(at(app, sprayer), f"name-{n}", "wrong") == 429
        assert sign_in(at(app, sprayer), "vic") in {200, 429}
    assert held
    assert sign_in(at(app, "198.51.100.10"), "vic") == 200


def test_names_that_are_nobody_s_push_no_account_out(clock: ManualClock) -> None:
    throttle = SignInThrottle(clock)
    for n in range(FREE_TRIES_ACCOUNT):
        throttle.wrong(Guess("anna", f"198.51.100.{n}"))
    for n in range(5000):
        throttle.wrong(Guess(f"name-{n}", f"10.{n // 256}.{n % 256}.1", exists=False))
    assert throttle.wait_s(Guess("anna", "192.0.2.1")) > 0
    assert throttle.wait_s(Guess("anna", HOME, at_home=True)) == 0


def test_the_console_lets_the_owner_in_at_once_and_once(
    site: Site, app: FastAPI, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file = tmp_path / "site.yaml"
    site_file.write_text(f"storage: {{dir: {tmp_path}}}\ncameras: {{}}\n")
    unlock = ["users", "unlock", "anna", "--config", str(site_file)]
    strangers_guess(app)
    strangers_guess_from(app, HOTEL)
    assert main(unlock) == 0
    code = capsys.readouterr().out.split()[-1]
    with site.db.read() as connection:
        assert code not in str([tuple(row) for row in connection.execute("SELECT * FROM sign_in_code")])
    clock.advance(2)
    strangers_guess_from(app, HOTEL)
    assert sign_in(at(app, HOTEL)) == 429, "the password alone waits"
    assert sign_in(at(app, HOTEL), "vic", code) == 401, "it is anna's"
    assert sign_in(at(app, HOTEL), password=code.lower().replace("-", " ")) == 200
    assert sign_in(at(app, "192.0.2.9"), password=code) in {401, 429}, "it is used"
    assert main(unlock) == 0
    code = capsys.readouterr().out.split()[-1]
    clock.jump(SystemClock().now() + UNLOCK_S + 1 - clock.now())
    assert sign_in(at(app, HOTEL), password=code) in {401, 429}, "its time is up"
    assert main(["users", "unlock", "nobody", "--config", str(site_file)]) == 2


def test_codes_of_the_second_factor_are_few_for_all_strangers_together(app: FastAPI, clock: ManualClock) -> None:
    """Who knows the password has six digits to guess. The owner, at home, is not held by them."""
    owner = at(app, HOME)
    assert sign_in(owner) == 200
    secret = owner.post("/api/v1/me/second-factor", json={"password": PASSWORD}).json()["secret"]
    now = lambda: code_at(secret, int(clock.now()) // STEP_S)  # noqa: E731
    assert owner.post("/api/v1/me/second-factor/confirm", json={"code": now()}).status_code == 200
    clock.advance(STEP_S)
    guesses = [sign_in(at(app, f"10.0.{n}.1"), code="000000") for n in range(FREE_TRIES + 1)]
    assert guesses == [401] * FREE_TRIES + [429], "a fresh address for each does not help"
    assert sign_in(at(app, HOTEL), code=now()) == 429
    assert sign_in(at(app, HOME), code=now()) == 200
    assert owner.post("/api/v1/me/password", json={"old": "wrong", "new": PASSWORD}).status_code == 403, (
        "not held either"
    )


def test_strangers_have_a_hundred_codes_a_day(clock: ManualClock) -> None:
    codes, tried = SignInThrottle(clock).codes, 0
    for _ in range(2 * 24 * 60):
        if not codes.wait_s("anna "):
            codes.wrong("anna ")
            tried += 1
        clock.advance(60)
    assert tried < 2 * 24 * 3600 / CODE_BLOCK_S_MAX + 20


def test_a_wrong_password_is_never_asked_for_a_code(app: FastAPI) -> None:
    answer = at(app, HOME).post("/login", json={"name": "anna", "password": "wrong", "code": "000000"})
    assert (answer.status_code, answer.json()["type"] == CODE_WANTED) == (401, False)


def test_the_owner_is_told(app: FastAPI, site: Site) -> None:
    owner = at(app, HOME)
    sign_in(owner)
    assert "Wrong tries" not in owner.get("/account").text
    strangers_guess(app)
    page = owner.get("/account").text
    assert "Wrong tries to sign in as you" in page
    assert f"In the last seven days: {FREE_TRIES_ACCOUNT}, from this many addresses: 5." in page
    rows = [(each["who"], each["what"]) for each in owner.get("/api/v1/access-log").json()]
    assert rows.count(("anna", "is guessed at by strangers")) == 1
    assert "Wrong tries" not in signed_in_page(app, "vic")


def signed_in_page(app: FastAPI, name: str) -> str:
    client = at(app, HOME)
    assert sign_in(client, name) == 200
    return client.get("/account").text


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"), ("192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"), ("unknown", "unknown"),
    ],
)  # fmt: skip
def test_an_address_is_counted_as_one_visitor_has_it(host: str, counted: str) -> None:
    assert counted_address(host) == counted
