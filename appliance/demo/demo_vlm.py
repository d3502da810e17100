"""Finds the vision-language model server that judges in the demo, and tries it with a picture."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from appliance.base.errors import UsageError, redact


@dataclass(frozen=True, slots=True)
class VlmServer:
    """A server that answered. url: with its path, as a worker file has it."""

    url: str
    model: str


RECIPE = "deploy/vlm/README.md says how to start one"
LOCAL_PORTS = (8000, 8080, 8081, 1234, 11434, 30000)  # vLLM, llama.cpp (twice), LM Studio, Ollama, SGLang
LOCAL_CONNECT_S = 0.5  # to a port of this machine
CONNECT_S = 5.0  # lost SYNs are repeated after 1 and 3 s
TRIAL_S = 180.0  # a small model on a slow CPU may take that long for its first picture
ANSWER_BYTES_MAX = 1024 * 1024  # a list of models has some kB
NAMES_MAX = 5  # in an error message
# A grey picture of 64x64 pixels: what a server that takes no pictures refuses.
_GREY_JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJBwYGCAsICQoKCgoKBggLDAsK"
    "DAkKCgr/wAALCABAAEABAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEG"
    "E1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJ"
    "ipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/ACiiiiiiiiii"
    "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiv/Z"
)
_TRIAL_SCHEMA = {
    "type": "object",
    "properties": {"picture": {"type": "string", "enum": ["grey", "other"]}},
    "required": ["picture"],
    "additionalProperties": False,
}
_TRIAL_FORMAT = {"type": "json_schema", "json_schema": {"name": "trial", "schema": _TRIAL_SCHEMA, "strict": True}}


def probe_vlm(url: str, model: str | None, key: str = "") -> VlmServer:
    """Find the server's model (the one of that name, or its only one) and show it a picture.

    key: for its `Authorization`, '' for none. Raises UsageError in one sentence with the remedy.
    """
    server = _Server(_with_path(url), key)
    name = _choose(server, model)
    trial = {
        "model": name,
        "max_tokens": 40,
        "temperature": 0,
        "response_format": _TRIAL_FORMAT,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{_GREY_JPEG}"}},
                    {"type": "text", "text": "A trial: answer as JSON."},
                ],
            }
        ],
    }
    status, body = server.ask("POST", "/chat/completions", TRIAL_S, trial)
    if status != http.client.OK:
        raise UsageError(
            f"--vlm {server}: {name} does not answer about a picture by a JSON schema (answer {status}{_words(body)}); "
            f"it must be a vision-language model, with llama.cpp one that was given its --mmproj; {RECIPE}"
        )
    return VlmServer(server.url, name)


def find_local_vlm(model: str | None, ports: Sequence[int] = LOCAL_PORTS) -> tuple[VlmServer | None, str]:
    """Look for a server on this machine's usual ports; return it, or None and what was found instead, in words.

    The first that answers about an image is taken. No key is sent: nobody knows yet who listens there.
    """
    found = []
    for port in ports:
        with socket.socket() as probe:
            probe.settimeout(LOCAL_CONNECT_S)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                continue
        try:
            return probe_vlm(f"http://127.0.0.1:{port}", model), ""
        except UsageError as error:
            text = str(error).removeprefix("--vlm ").removesuffix(f"; {RECIPE}")
            if "no OpenAI-compatible server" not in text:  # some other program's port
                found.append(text)
    return None, "; ".join(found)


def _with_path(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"--vlm {redact(url)}: must be an address such as http://127.0.0.1:8000")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("--vlm: takes no user, password or query; put a key into the environment as VLM_API_KEY")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


class _Server:
    """One server; a connection for each question, never through a proxy, never redirected."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._parts = urlsplit(url)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def __str__(self) -> str:
        return redact(self.url)

    def ask(self, method: str, path: str, seconds: float, body: object = None) -> tuple[int, Any]:
        """Return (status, the JSON that came, or None). Raises UsageError when there is no answer."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        link = kind(self._parts.hostname or "", self._parts.port, timeout=CONNECT_S)
        try:
            link.connect()
            link.sock.settimeout(seconds)
            content = None if body is None else json.dumps(body)
            link.request(method, f"{self._parts.path}{path}", body=content, headers=self._headers)
            answer = link.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
        except TimeoutError:
            raise UsageError(f"--vlm {self}: no answer within {seconds:g} s; {RECIPE}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise UsageError(f"--vlm {self}: nothing answers there ({str(why).lower()}); {RECIPE}") from None
        finally:
            link.close()
        if answer.status in (401, 403):
            raise UsageError(f"--vlm {self}: the server wants another key; put it into the environment as VLM_API_KEY")
        try:
            return answer.status, json.loads(data)
        except (ValueError, RecursionError):  # another program may say anything
            return answer.status, None


def _choose(server: _Server, model: str | None) -> str:
    status, body = server.ask("GET", "/models", CONNECT_S)
    try:
        names = [str(each["id"]) for each in body["data"]]
    except (TypeError, KeyError):
        names = []
    if status != http.client.OK or not names:
        raise UsageError(
            f"--vlm {server}: no OpenAI-compatible server (GET {server}/models gave {status} and no model); {RECIPE}"
        )
    if model is None and len(names) == 1:
        return names[0]
    if model in names:
        return str(model)
    shown = ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")
    wanted = "serves several models" if model is None else f"does not serve `{model}`"
    raise UsageError(f"--vlm {server}: it {wanted}; choose with --vlm-model (make: VLM_MODEL=) one of {shown}")


def _words(body: Any) -> str:
    """Return the server's complaint, after a colon; '' if there is none."""
    try:
        message = body["error"]["message"] if isinstance(body["error"], dict) else body["error"]
    except (TypeError, KeyError):
        return ""
    return f": {' '.join(str(message).split())[:160]}"
