"""Error texts: no secret of a URL in them, no control character, and no text that makes taking them out slow."""

from __future__ import annotations

import time

import pytest

from appliance.base.errors import ConfigError, SourceLost, camera_address, printable, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://viewer:hush@192.168.1.20/main", "rtsp://192.168.1.20/…"),
        ("rtsp://cam/user=admin_password=hush_channel=1: timed out", "rtsp://cam/…: timed out"),
        ("rtsp://cam:554/live?user=a&password=hush.", "rtsp://cam:554/…."),
        ("rtsp://hush@cam:554/1, then", "rtsp://cam:554/…, then"),
        ("rtsp://viewer:hu sh@cam/1 is lost", "rtsp://cam/… is lost"),
        ("rtsp://viewer:hu/sh@cam/1 is lost", "rtsp://cam/… is lost"),
        ("rtsp://viewer:hu@sh@cam/1", "rtsp://cam/…"),
        ('rtsp://viewer:hu"sh@cam/1 is lost', "rtsp://cam/… is lost"),
        ("rtsp://viewer:hu'>s<h@cam/1 is lost", "rtsp://cam/… is lost"),
        ('"http://cam:80" and "me@example.org"', '"http://cam:80" and "me@example.org"'),
        ("RTSPS://viewer:hush@[fe80::1]:322/1", "RTSPS://[fe80::1]:322/…"),
        ("nats://hush@broker:4222 refuses", "nats://broker:4222 refuses"),
        ("https://me:hush@push.example/hook?key=hush", "https://push.example/hook?…"),
        ("take https://example.org/yard.onnx from there", "take https://example.org/yard.onnx from there"),
        ("rtsp://cam:554 is lost; ask bob@example.org", "rtsp://cam:554 is lost; ask bob@example.org"),
        ("file:///clips/yard.mp4", "file:///clips/yard.mp4"),
    ],
)
def test_of_a_url_no_user_password_or_query_is_shown_and_of_a_camera_the_host_alone(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(redact(text)) == shown
    assert str(SourceLost(text)) == shown
    assert ConfigError("site.yaml", [text]).problems == [shown]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://viewer:hu sh@cam:554/user=hush", "rtsp://cam:554/…"),
        ("rtsp://viewer:hu/sh?@cam", "rtsp://cam"),
        ("rtsp://cam", "rtsp://cam"),
        ("file:clips/yard.mp4", "file:clips/yard.mp4"),
    ],
)
def test_a_camera_is_shown_by_its_host(url: str, shown: str) -> None:
    assert camera_address(url) == shown


@pytest.mark.parametrize("text", ["a" * 400_000, "a://" * 100_000, "://:" * 100_000, "://" + "a:" * 200_000])
def test_no_text_makes_taking_secrets_out_slow(text: str) -> None:
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 1.0


def test_what_would_steer_a_terminal_or_forge_a_line_is_written_out() -> None:
    assert printable("\x1b[31mred\r\nforged\u202e \ud800 Zürich") == r"\x1b[31mred\r\nforged\u202e \ud800 Zürich"
