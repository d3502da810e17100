"""The first run: the small site file, the one-time code, and that nothing else is served before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from appliance import config
from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import UsageError
from appliance.config import SiteConfig
from appliance.core.app import is_in_setup
from appliance.dashboard.app import create_app
from appliance.dashboard.setup_api import new_setup_code
from appliance.settings.settings_service import PutInForce, SettingsService
from appliance.settings.site_editor import first_site_file
from appliance.store.users import UserStore
from appliance.web.sign_in_throttle import FREE_TRIES
from tests.support.dashboard_site import Site, config_of

HERE = "http://127.0.0.1:8080"
CODE = "ABCD-2345"
FIRST = {"code": "abcd2345", "site": "depot-7", "name": "anna", "password": "four words to remember"}
NO_FACTOR = {"state": "none", "wanted": False, "recovery": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    path = first_site_file(folder / "site.yaml", None)
    made = Site(folder / "vedette-data", ManualClock(1_700_000_000.0), config=config.load(path))
    yield made
    made.close()


def client_of(site: Site, folder: Path, put_in_force: PutInForce = lambda _: ()) -> TestClient:
    service = SettingsService(folder / "site.yaml", site.root, site.clock, put_in_force)
    app = create_app(site.stored, site.config.for_dashboard(), settings=service, setup_code=CODE)
    return TestClient(app, base_url=HERE, follow_redirects=False, client=("127.0.0.1", 4000))


def at(client: TestClient, address: str) -> TestClient:
    """The same box, from another address."""
    return TestClient(client.app, base_url=HERE, follow_redirects=False, client=(address, 4000))


def test_nothing_but_the_setup_page_is_served_before_the_first_user(site: Site, folder: Path) -> None:
    client = client_of(site, folder)
    for path in ("/api/v1/alerts", "/api/v1/me", "/api/v1/users", "/metrics", "/api/openapi.json", "/login"):
        assert client.get(path).status_code == 403, path
    page = client.get("/cameras", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/setup")
    assert client.get("/setup").status_code == 200
    assert client.get("/healthz").json()["reasons"] == []
    first = {"name": "eve", "password": "four words to remember", "role": "admin"}
    assert client.post("/api/v1/users", json=first).status_code == 403
    for kind in ("application/json", "text/html"):
        refused = client.post("/login", json={"token": ""}, headers={"Accept": kind})
        assert refused.status_code == 403, "a change is led nowhere else"
    assert UserStore(site.db).users() == {}


def test_of_two_at_once_one_is_the_first_user(site: Site, folder: Path) -> None:
    answers: list[int] = []
    second = threading.Thread(
        target=lambda: answers.append(client.post("/setup", json={**FIRST, "name": "eve"}).status_code)
    )

    def put_in_force(config: SiteConfig) -> tuple[str, ...]:
        second.start()
        second.join(0.3)  # it waits for the first
        return ()

    client = client_of(site, folder, put_in_force)
    assert client.post("/setup", json={**FIRST, "site": "another-name"}).status_code == 200
    second.join(60)
    assert (answers, list(UserStore(site.db).users())) == ([409], ["anna"])


def test_the_code_makes_one_admin_names_the_site_and_signs_in(site: Site, folder: Path) -> None:
    client = client_of(site, folder)
    assert client.post("/setup", json={**FIRST, "code": "WRONG"}).status_code == 401
    assert client.post("/setup", json={**FIRST, "password": "short"}).status_code == 422
    assert client.post("/setup", json={**FIRST, "name": "token x"}).status_code == 422
    assert yaml.safe_load((folder / "site.yaml").read_text())["site"] == {"name": "site"}  # a refusal changes nothing
    assert client.post("/setup", json=FIRST).status_code == 200
    assert client.get("/api/v1/me").json() == {
        "name": "anna",
        "role": "admin",
        "cameras": None,
        "second_factor": NO_FACTOR,
    }
    assert client.post("/setup", json={**FIRST, "name": "eve"}).status_code == 409
    assert client.get("/setup").headers["location"] == "/"
    assert set(UserStore(site.db).users()) == {"anna"}
    assert yaml.safe_load((folder / "site.yaml").read_text())["site"] == {"name": "depot-7"}
    assert [row["what"] for row in client.get("/api/v1/access-log").json()] == ["signed in", "set this appliance up"]


def test_names_are_what_people_call_themselves_and_their_site(site: Site, folder: Path) -> None:
    client = client_of(site, folder)
    first = {**FIRST, "site": "Café Straßenecke", "name": "Anna Mu\u0308ller "}  # as some keyboards compose it
    assert client.post("/setup", json=first).status_code == 200
    named = yaml.safe_load((folder / "site.yaml").read_text())["site"]
    assert named == {"name": "cafe-strassenecke", "title": "Café Straßenecke"}
    assert client.get("/api/v1/me").json()["name"] == "Anna Müller"
    client.cookies.clear()
    assert client.post("/login", json={"name": "Anna Müller", "password": first["password"]}).status_code == 200


def test_guessing_the_code_gets_slow(site: Site, folder: Path) -> None:
    client = client_of(site, folder)
    guesses = [client.post("/setup", json={**FIRST, "code": f"GUESS{n}"}).status_code for n in range(FREE_TRIES + 1)]
    assert guesses == [401] * FREE_TRIES + [429]
    assert client.post("/setup", json=FIRST).status_code == 429
    strangers = [at(client, f"198.51.100.{n}") for n in range(8)]
    assert {strangers[n % 8].post("/setup", json={**FIRST, "code": f"N{n}"}).status_code for n in range(30)} == {401}
    assert at(client, "192.0.2.1").post("/setup", json=FIRST).status_code == 200, "and keeps the owner out from nowhere"
    assert len({new_setup_code() for _ in range(100)}) == 100


def test_the_first_run_is_where_nobody_and_no_camera_is_known() -> None:
    empty = SiteConfig.model_validate({"cameras": {}})
    assert is_in_setup(empty, ())
    assert not is_in_setup(empty, ("anna",))
    assert not is_in_setup(config_of(), ())
    assert not is_in_setup(SiteConfig.model_validate({"cameras": {}, "dashboard": {"token": "long enough token"}}), ())


@pytest.mark.parametrize(
    ("listen", "dashboard"),
    [
        ("0.0.0.0", {"host": "0.0.0.0"}), ("0.0.0.0:80", {"host": "0.0.0.0", "port": 80}),
        ("[::]:8081", {"host": "::", "port": 8081}), (None, None),
    ],
)  # fmt: skip
def test_the_first_site_file_is_small_right_and_its_owners(
    folder: Path, listen: str | None, dashboard: dict[str, object] | None
) -> None:
    path = first_site_file(folder / "site.yaml", listen)
    assert yaml.safe_load(path.read_text()).get("dashboard") == dashboard
    assert config.load(path).storage.dir == folder / "vedette-data"
    assert path.stat().st_mode & 0o077 == 0
    before = path.read_text()
    assert first_site_file(path, None) == path
    assert path.read_text() == before, "what is there is never written over"
    with pytest.raises(UsageError, match=r"set dashboard\.host there"):
        first_site_file(path, "0.0.0.0")


@pytest.mark.parametrize("listen", ["", "a b", "host:port", "1:2:3"])
def test_what_is_no_address_is_refused_and_nothing_is_written(folder: Path, listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        first_site_file(folder / "site.yaml", listen)
    assert not (folder / "site.yaml").exists()


def test_a_site_file_that_is_named_must_be_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(folder / "typo.yaml")]) == 2
    assert "typo.yaml" in capsys.readouterr().err
    assert not (folder / "typo.yaml").exists()


def test_check_says_that_there_is_no_camera_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = first_site_file(folder / "site.yaml", None)
    assert main(["check", str(path), "--no-probe"]) == 0
    assert "no camera yet" in capsys.readouterr().out
