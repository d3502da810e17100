"""Log lines: one message is one line, whatever stands in it, and no secret of a URL."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from appliance.base.telemetry import configure_logging

FORGED = "gave up\n12:00:00 WARNING uplink: all is well \x1b[2J"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_message_cannot_forge_a_line(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(as_json=as_json)
    logging.getLogger("appliance.uplink").warning("a verdict says %s", FORGED)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert not as_json or json.loads(lines[0])["message"].endswith(FORGED)


def test_a_traceback_keeps_its_lines_but_not_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    try:
        raise ValueError("rtsp://u:hush@cam/1 \x1b[2J")
    except ValueError:
        logging.getLogger("appliance.core.core_loop").exception("a bug")
    written = capsys.readouterr().err
    assert len(written.splitlines()) > 3
    assert "hush" not in written
    assert "\x1b" not in written
    assert "ValueError" in written
