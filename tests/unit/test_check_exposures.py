"""What `vedette check` says of secrets that others can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import config
from appliance.cli.site_check import exposures

SITE = """
cameras: {gate: {url: "rtsp://viewer:%s@192.168.1.20/main"}}
dashboard: {token: "%s"}
uplink: {url: "%s", token: "%s"}
"""
SAFE = ("${CAMERA}", "${TOKEN}", "tls://hub.example:4222", "${NATS}")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAMERA", "sesame-1"), ("TOKEN", "sesame-2-long"), ("NATS", "sesame-3")):
        monkeypatch.setenv(name, value)


def said(tmp_path: Path, values: tuple[str, ...], mode: int = 0o644) -> list[str]:
    path = tmp_path / "site.yaml"
    path.write_text(SITE % values)
    path.chmod(mode)
    found = list(exposures(config.load(path), path))
    assert {each.level for each in found} <= {"warning"}
    assert "sesame" not in str(found)
    return [each.text for each in found]


@pytest.mark.parametrize(("place", "secret"), [(0, "sesame-1"), (1, "sesame-2-long"), (3, "sesame-3")])
def test_a_file_that_holds_a_secret_is_for_its_owner(tmp_path: Path, place: int, secret: str) -> None:
    values = (*SAFE[:place], secret, *SAFE[place + 1 :])
    assert "chmod 640" in said(tmp_path, values)[0]
    assert said(tmp_path, values, 0o640) == []
    assert said(tmp_path, SAFE) == []


def test_a_user_without_a_password_is_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text('cameras: {gate: {url: "rtsp://viewer@192.168.1.20/main"}}')
    path.chmod(0o644)
    assert list(exposures(config.load(path), path)) == []


def test_a_secret_in_the_clear_over_a_network_is_named(tmp_path: Path) -> None:
    (text,) = said(tmp_path, (*SAFE[:2], "nats://hub.example:4222", SAFE[3]))
    assert "crosses the network to hub.example:4222 in the clear: use tls://" in text
    assert said(tmp_path, (*SAFE[:2], "nats://127.0.0.1:4222", SAFE[3])) == []
