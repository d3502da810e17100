"""The OpenAPI that is served against what is answered: every route, made-up requests, and a client made from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from appliance.base.clock import SystemClock
from appliance.dashboard import arming_api, backup_api, notify_api, push_api, scenarios_api, setup_api, users_api
from appliance.dashboard.access_rights import RIGHTS
from appliance.dashboard.schemas import API
from benchmarks import api_fuzz
from tests.support.dashboard_site import PASSWORD, Site, config_of

FLAGS = {
    arming_api.ChooseProfile: ["turn"], backup_api.MakeBackup: ["evidence"], backup_api.StartRestore: ["other_site"],
    notify_api.SaveTarget: ["enabled", "local", "picture", "health", "urgent"], notify_api.Snooze: ["rule_only"],
    push_api.SavePreferences: ["urgent"], scenarios_api.KeepRequest: ["complete"],
    setup_api.ChangeCamera: ["audio", "enabled"], users_api.ChangeUser: ["enabled"],
}  # fmt: skip
BEARER = {"Authorization": f"Bearer {api_fuzz.TOKEN}"}
FILES = ("image/", "video/", "text/", "application/zip", "application/vnd.", "multipart/")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A site for tests whose requests change nothing of it, and for the made-up ones, which come last."""
    with api_fuzz.served(tmp_path_factory.mktemp("served")) as url:
        yield url


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = Site(tmp_path_factory.mktemp("described"), SystemClock(), config=config_of(token=api_fuzz.TOKEN))
    with site.client() as client:
        found: dict[str, Any] = client.get("/api/openapi.json", headers=BEARER).json()
    site.close()
    return found


@pytest.mark.parametrize(("message", "field"), [(each, name) for each, names in FLAGS.items() for name in names])
def test_true_and_false_are_nothing_else(message: type[BaseModel], field: str) -> None:
    """What the OpenAPI calls a boolean: pydantic alone takes 0 and "off", too."""
    for given in (0, "off", "true"):
        with pytest.raises(ValidationError) as refused:
            message.model_validate({field: given})
        assert [error["type"] for error in refused.value.errors() if error["loc"] == (field,)] == ["bool_type"]


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_of_the_api_is_in_it_and_says_who_may(described: dict[str, Any]) -> None:
    found = operations(described)
    assert described["openapi"].startswith("3.1")
    api = {key for key in RIGHTS if key[1].startswith(API) and key[0] != "HEAD"}
    also = {("POST", "/login"), ("POST", "/logout"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}
    assert api | also <= found.keys()
    for key, operation in found.items():
        role = RIGHTS[key].role
        assert operation["security"] == ([{}] if role is None else [{"bearer": []}, {"session": []}]), key
        assert operation["x-role"] == (role or "nobody")
        assert key[0] != "POST" or operation["requestBody"]["required"], f"{key}: the guard takes JSON only"
    names = [each["operationId"] for each in found.values()]
    assert sorted(set(names)) == sorted(names), "clients call their functions so"


def test_every_answer_says_what_it_is(described: dict[str, Any]) -> None:
    for key, operation in operations(described).items():
        for status, answer in operation["responses"].items():
            content = answer.get("content", {})
            if status >= "400" and (key, status) != (("GET", "/readyz"), "503"):
                schema = content["application/problem+json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Problem"}, (key, status)
            elif status in {"200", "201", "206"}:
                assert content, f"{key} does not say what it answers"
                for kind, how in content.items():
                    named = "$ref" in json.dumps(how.get("schema", {})) or kind.startswith(FILES)
                    assert named or key[1].endswith("/evidence/{name}"), f"{key}: {kind} without a schema"


@pytest.mark.parametrize("path", ["evidence/{name}", "recording.mp4", "clip.mp4"])
def test_media_have_ranges_and_an_etag(described: dict[str, Any], path: str) -> None:
    (operation,) = [each for key, each in operations(described).items() if key[1].endswith(path)]
    assert {"200", "206", "304", "416"} <= operation["responses"].keys()
    assert "ETag" in operation["responses"]["200"]["headers"]
    assert "Content-Range" in operation["responses"]["206"]["headers"]


def test_a_wrong_method_is_told_all_that_are_right(served: str) -> None:
    with httpx.Client(base_url=served, headers=BEARER, timeout=60) as client:
        paths = {"users": "GET, POST", "users/anna": "DELETE, POST", "alerts/review": "POST"}
        for path, allowed in ((f"{API}/{each}", allowed) for each, allowed in paths.items()):
            for method in ("TRACE", "PUT", "OPTIONS"):
                answer = client.request(method, path)
                assert (answer.status_code, answer.headers["Allow"]) == (405, allowed), (method, path)
                assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_delete_needs_no_body_and_is_still_refused_to_other_sites(served: str) -> None:
    with httpx.Client(base_url=served, headers=BEARER, timeout=60) as client:
        assert client.delete(f"{API}/sessions/none", headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.delete(f"{API}/sessions/none", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert client.delete(f"{API}/sessions/none").status_code == 200
        assert client.request("DELETE", f"{API}/sessions/none", content=b"x").status_code == 415


def test_a_second_stream_without_a_host_is_refused(served: str) -> None:
    """Found by schemathesis: it was taken, and then met as a bug."""
    with httpx.Client(base_url=served, headers=BEARER, timeout=60) as client:
        camera = {"base": "x", "name": "yard", "url": "rtsp://192.168.1.20/main", "detect_url": "rtsp://"}
        answer = client.post(f"{API}/setup/cameras", json=camera)
        assert (answer.status_code, "detect_url" in answer.json()["detail"]) == (422, True), answer.text


@pytest.mark.slow
def test_made_up_requests_find_nothing_that_it_does_not_say(served: str, tmp_path: Path) -> None:
    """A sample; `python -m benchmarks.api_fuzz` asks more than 20,000."""
    pytest.importorskip("schemathesis")
    done = api_fuzz.fuzz(served, tmp_path, 2, "--phases", "fuzzing", "--max-time", "60", "--generation-deterministic")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert api_fuzz.cases_of(done.stdout) >= 5, "it asked"


@pytest.mark.parametrize(
    ("failures", "errors", "kind", "itself"),
    [(0, 2, "Runtime Error", 2), (0, 1, "Network Error", 0), (1, 2, "Runtime Error", 0), (0, 0, "", 0)],
)
def test_an_error_of_the_tool_is_told_from_a_finding(
    capsys: pytest.CaptureFixture[str], failures: int, errors: int, kind: str, itself: int
) -> None:
    output = pytest.importorskip("schemathesis.cli.output")
    output.display_final_line(failures=failures, errors=errors, running_time=700.5, total_cases=16340)
    assert api_fuzz.failed_by_itself(f"= ERRORS =\n{kind}\n" + capsys.readouterr().out) == itself


CLIENT_SETTINGS = """
package_name_override: vedette_client
post_hooks: []
content_type_overrides: {image/jpeg: application/octet-stream, video/mp4: application/octet-stream}
"""
CLIENT = """
import sys
from vedette_client import AuthenticatedClient, Client
from vedette_client.api.alerts import evidence_file, list_alerts, review_alert
from vedette_client.api.session import sign_in
from vedette_client.models import ReviewChange, SignIn

url, password = sys.argv[1:]
client = Client(url, raise_on_unexpected_status=True, timeout=60)
answer = sign_in.sync_detailed(client=client, body=SignIn(name="rita", password=password))
assert answer.parsed.signed_in, answer
cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")
client = client.with_cookies({cookie[0]: cookie[2]})
page = list_alerts.sync(client=client, limit=2)
assert len(page.alerts) == 2 and page.next_, page
first = page.alerts[0]
changed = review_alert.sync(first.id, client=client, body=ReviewChange(review="reviewed"))
assert changed.review == "reviewed", changed
clip = evidence_file.sync_detailed(first.id, "clip.mp4", client=client)
assert clip.status_code == 200 and clip.parsed.payload.read()[4:8] == b"ftyp", clip
wrong = evidence_file.sync_detailed("nobody", "clip.mp4", client=client)
assert wrong.status_code == 404 and "no such alert" in wrong.parsed.detail.lower(), wrong
print("ok")
"""


def test_a_client_that_is_made_from_it_signs_in_lists_reviews_and_fetches(tmp_path: Path) -> None:
    pytest.importorskip("openapi_python_client")
    with api_fuzz.served(tmp_path / "site", people=True) as url:
        token = httpx.post(f"{url}/login", json={"name": "anna", "password": PASSWORD}, timeout=60).cookies
        (tmp_path / "openapi.json").write_bytes(httpx.get(f"{url}/api/openapi.json", cookies=token, timeout=60).content)
        (tmp_path / "made.yaml").write_text(CLIENT_SETTINGS)
        made = subprocess.run(
            [
                sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config",
                "made.yaml", "--meta", "none", "--output-path", "vedette_client",
            ],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, url, PASSWORD],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == "ok\n", done.stderr
