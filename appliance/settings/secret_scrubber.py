"""Takes a site's secrets out of any text: those that it is known to have, and what looks like one in the site file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import yaml
from pydantic import BaseModel, SecretStr

from appliance.base.errors import ConfigError, printable, redact
from appliance.config.site_file import SiteConfig, read_secrets, secrets_path

HIDDEN = "***"
SECRET_KEYS = ("token", "password", "passwd", "secret", "credentials", "authorization", "passphrase", "topic")
NODES_MAX, DEPTH_MAX = 200_000, 60  # of a text: aliases make many of few
LENGTH_MIN = 3  # shorter ones are in half of all words
_ALONE_BELOW = 6  # these are taken out only where they stand alone
_ADDRESSES = {"http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "nats", "tls", "ws", "wss", "mqtt", "mqtts", "file"}
_KEYS_IN_PATH = {"", *SECRET_KEYS, "user", "username", "pwd", "channel", "stream"}
_LONG_PART = 20  # of a path, such as that of a webhook: nobody knows whether it is one
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|API_?KEY|PRIVATE", re.IGNORECASE)
_SECRET_LINE = re.compile(
    rf"^([\s#+-]*(?:- )?[\"']?\w*(?:{'|'.join(SECRET_KEYS)})[\"']?\s*:\s*)(?!null\b)(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
# Where the text is no YAML, or a comment: from the first secret on, nothing of a line is shown.
_SECRET_IN_LINE = re.compile(
    rf"((?:^|[\s#{{,+-])[\"']?[\w-]*(?:url|{'|'.join(SECRET_KEYS)})[\"']?\s*:\s*)(?!null\b)\S.*$",
    re.IGNORECASE | re.MULTILINE,
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_ONLY_VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*\}")
_IN_PATH = re.compile(r"passw|pwd|user=|token|=", re.IGNORECASE)


class SecretScrubber:
    """Replaces known secrets by ***, as they are, quoted for a URL and escaped for JSON. Any thread."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found: set[str] = set()
        for secret in secrets:
            for line in secret.splitlines():
                value = line.strip()
                found |= {value, quote(value, safe=""), unquote(value), json.dumps(value)[1:-1]}
        known = sorted((each for each in found if len(each) >= LENGTH_MIN), key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(map(_pattern, known))) if known else None

    @classmethod
    def of_site(
        cls,
        site_file: Path,
        texts: Iterable[str],
        config: SiteConfig | None,
    ) -> SecretScrubber:
        """Return a scrubber that knows the secrets of a site.

        They are those of the site file, of these texts of it (older versions), of its secrets file, of the settings in
        force and of the environment.
        """
        secrets = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
        try:
            secrets |= set(read_secrets(site_file).values())
        except ConfigError:
            secrets |= set(_raw_values(site_file))
        for text in texts:
            for name, default in _VARIABLE.findall(text):
                secrets |= {os.environ.get(name, ""), default}
            secrets |= set(secrets_of_text(text))
            secrets |= {value.strip(" \"'") for _, value in _SECRET_LINE.findall(text)}  # what was commented out, too
        if config is not None:
            secrets |= set(_secrets_of_model(config))
        return cls(secrets)

    def scrub(self, text: str) -> str:
        """`text` without secrets, and without users and queries of URLs."""
        text = self._known.sub(HIDDEN, text) if self._known else text
        text = redact(text)
        return self._known.sub(HIDDEN, text) if self._known else text

    def scrub_site(self, text: str) -> str:
        """Return the text of a site file without secrets, and without what stands at a secret's key or in comments."""
        return self.scrub(site_text_without_secrets(text))

    def scrub_data(self, data: Any) -> Any:
        """Return JSON data without secrets, text by text."""
        if isinstance(data, Mapping):
            return {self.scrub(str(key)): self.scrub_data(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.scrub_data(each) for each in data]
        return self.scrub(data) if isinstance(data, str) else data


def is_secret(path: Sequence[str | int], value: str) -> bool:
    """Return True if a text of the site file is a secret or contains one; a text that only names a variable is none."""
    return bool(_hidden_as(path, value))


def without_secret(path: Sequence[str | int], value: str) -> str:
    """Return a text of the site file as pages may show it.

    A secret address keeps its scheme and host; nothing is shown of another secret.
    """
    return _hidden_as(path, value) or redact(value)


def _hidden_as(path: Sequence[str | int], value: str) -> str:
    """Return what is shown in place of a secret; '': it is none."""
    bare = _ONLY_VARIABLE.sub("", value)
    if not bare:
        return ""
    key = next(part for part in reversed(path) if isinstance(part, str))  # of a list's item, that of the list
    if key.lower().endswith(SECRET_KEYS):
        return HIDDEN
    of_target = _is_target_url(path) and (bare == value or "${" in bare)
    if not any(True for _ in _secrets_of_url(bare)) and not (of_target and _path_and_query(bare)):
        return ""
    scheme, _, rest = value.partition("://")
    if scheme.lower() not in _ADDRESSES or scheme.lower() == "file":
        return HIDDEN
    return printable(f"{scheme}://{re.split('[/?#]', rest.rpartition('@')[2])[0]}/{HIDDEN}")


def _is_target_url(path: Sequence[str | int]) -> bool:
    """Return True for the address of a target: all after the host of a webhook may be a secret."""
    return "notify" in path[1:2] and path[-1] == "url"


def _path_and_query(url: str) -> str:
    """Return all of an address after the `/` of its host; '': nothing."""
    after = re.split("[/?#]", url.partition("://")[2], maxsplit=1)
    return after[1] if len(after) > 1 else ""


def site_text_without_secrets(text: str) -> str:
    """Return the text of a site file with as many lines, *** where its secrets stand, comments included."""
    scalars = _scalars(text)
    if scalars is None:
        return _SECRET_IN_LINE.sub(rf"\1{HIDDEN}", text)
    pieces, at = [], 0
    for path, node in sorted(scalars, key=lambda each: int(each[1].start_mark.index)):
        start, end = node.start_mark.index, node.end_mark.index
        shown = _hidden_as(path, node.value)
        if not shown or start < at:  # an alias stands for what is hidden already
            continue
        written = text[start:end].rstrip()
        lines = zip(written.splitlines(keepends=True), written.splitlines(), strict=True)
        more = [f"{whole[len(line) :]}{HIDDEN}" for whole, line in lines][:-1]
        pieces += [text[at:start], shown, *more]
        at = start + len(written)
    hidden = "".join([*pieces, text[at:]])
    return re.sub("#.*", lambda comment: _SECRET_IN_LINE.sub(rf"\1{HIDDEN}", comment[0]), hidden)


def secrets_of_text(text: str) -> Iterator[str]:
    """Yield the secrets in the text of a site file, as far as it is YAML."""
    for path, node in _scalars(text) or ():
        if is_secret(path, node.value):
            yield from _secrets_of_url(node.value) if "://" in node.value else (node.value,)
            if _is_target_url(path):
                yield f"/{_path_and_query(node.value)}"


def _scalars(text: str) -> list[tuple[tuple[str | int, ...], yaml.ScalarNode]] | None:
    """Every value but null of a text, with its path as `texts_in` has it; None: it is no YAML, or has no bounds."""
    try:
        waiting: list[tuple[yaml.Node | None, tuple[str | int, ...]]] = [(yaml.compose(text, yaml.SafeLoader), ("",))]
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    found: list[tuple[tuple[str | int, ...], yaml.ScalarNode]] = []
    for _ in range(NODES_MAX):
        if not waiting:
            return found
        node, path = waiting.pop()
        if len(path) > DEPTH_MAX:
            return None
        if isinstance(node, yaml.MappingNode):
            waiting += [(value, (*path, str(key.value))) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(value, (*path, number)) for number, value in enumerate(node.value)]
        elif isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
            found.append((path, node))
    return None


def texts_in(data: Any, path: tuple[str | int, ...] = ("",)) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text of what YAML holds with its path, whose first part is ''. A list's items count under its key too."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from texts_in(value, (*path, key))
    elif isinstance(data, list):
        for n, value in enumerate(data):
            yield from texts_in(value, (*path, n))
    elif isinstance(data, str):
        yield path, data
    elif isinstance(data, int | float) and not isinstance(data, bool) and str(path[-1]).lower().endswith(SECRET_KEYS):
        yield path, str(data)


def _secrets_of_url(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    scheme, _, rest = value.partition("://")
    try:
        split = urlsplit(value)
        values = [each for _, each in parse_qsl(split.query, keep_blank_values=False)]
    except ValueError:
        yield rest
        return
    authority, at, _ = rest.rpartition("@")
    _, colon, password = authority.partition(":")
    if at and (password or not colon):
        yield authority
        yield password or authority
    yield from values
    if scheme.lower() not in _ADDRESSES:  # a service of apprise: all of it may be one
        yield rest
        yield from (part for part in re.split(r"[/?&=@:]", rest) if len(part) >= _ALONE_BELOW)
    yield from (part for part in split.path.split("/") if len(part) >= _LONG_PART)
    if scheme.lower().startswith("rtsp") and _IN_PATH.search(split.path):
        yield split.path.lstrip("/")
        yield from (part for part in re.split(r"[/=&_]", split.path) if part.lower() not in _KEYS_IN_PATH)


def _secrets_of_model(model: BaseModel) -> Iterator[str]:
    for name in type(model).model_fields:
        yield from _secrets_of_value(getattr(model, name))


def _secrets_of_value(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        yield text
        yield from _secrets_of_url(text)
    elif isinstance(value, str):
        yield from _secrets_of_url(value)
    elif isinstance(value, BaseModel):
        yield from _secrets_of_model(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _secrets_of_value(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _secrets_of_value(each)


def _raw_values(site_file: Path) -> Iterator[str]:
    try:
        text = secrets_path(site_file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    yield from (line.partition("=")[2] or line for line in text.splitlines())


def _pattern(secret: str) -> str:
    return re.escape(secret) if len(secret) >= _ALONE_BELOW else rf"(?<!\w){re.escape(secret)}(?!\w)"
