"""Sends one SOAP request to one camera, and to no other host: WS-UsernameToken, HTTP digest, bounds.

It reads a stranger's XML into a small tree: no document type, no entities, bounded depth and number of elements.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import re
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit
from xml.parsers import expat

from appliance.base.clock import Clock, iso_utc
from appliance.base.errors import SourceLost, SourceRefused

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX = 1 << 20  # the longest answer, all profiles with all settings, has some 100 kB
CALL_S_MAX = 6.0  # two lost segments are sent once more within it
DEVICE_PATH = "/onvif/device_service"
_SOAP = "http://www.w3.org/2003/05/soap-envelope"
_WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
_WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
_DIGEST = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0#PasswordDigest"
_BASE64 = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary"
_PORTS = {"http": 80, "https": 443}
DEPTH_MAX = 40  # levels; ONVIF's deepest answer has some 15
ELEMENTS_MAX = 20_000  # of ANSWER_BYTES_MAX at 50 bytes an element
TEXT_MAX = 4096  # of one element; what is longer is no name, number or address


class XmlRefused(ValueError):
    """This is no XML that we read; the message says why, without any of it."""


@dataclass(slots=True)
class XmlElement:
    """One element. Names are without namespace: cameras mix them up, and no answer has two that differ in it alone."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""

    def all(self, name: str) -> Iterator[XmlElement]:
        """Yield the children of this name."""
        return (child for child in self.children if child.name == name)

    def at(self, *path: str) -> XmlElement | None:
        """Return the first element at the path."""
        found: XmlElement | None = self
        for name in path:
            found = next(found.all(name), None) if found else None
        return found

    def text_at(self, *path: str) -> str:
        """Return the text at the path without spaces around it, printable; '' if there is none."""
        found = self.at(*path)
        text = found.text.strip() if found else ""
        return "".join(each if each.isprintable() else " " for each in text)

    def number_at(self, *path: str) -> float | None:
        """Return the number at the path; None if there is none that is finite and not below 0."""
        return number(self.text_at(*path))

    def every(self, name: str) -> Iterator[XmlElement]:
        """Yield this element and all below it, if of this name, in the order of the document."""
        if self.name == name:
            yield self
        for child in self.children:
            yield from child.every(name)


def number(text: str) -> float | None:
    """Return a finite number that is 0 or more and below 1e9, written in at most 12 characters; else None."""
    try:
        found = float(text) if 0 < len(text) <= 12 else -1.0
    except ValueError:
        return None
    return found if 0 <= found < 1e9 else None


class _TreeBuilder:
    def __init__(self, parser: expat.XMLParserType) -> None:
        self.root: XmlElement | None = None
        self._open: list[XmlElement] = []
        self._count = 0
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = self._refuse_type
        parser.EntityDeclHandler = self._refuse_type

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENTS_MAX or len(self._open) >= DEPTH_MAX:
            raise XmlRefused("it has too many elements, or too many within each other")
        plain = {key.rpartition(" ")[2]: value[:TEXT_MAX] for key, value in attributes.items()}
        element = XmlElement(name.rpartition(" ")[2], plain)
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _data(self, data: str) -> None:
        element = self._open[-1]
        if len(element.text) < TEXT_MAX:
            element.text += data[: TEXT_MAX - len(element.text)]

    def _refuse_type(self, *_: object) -> None:
        raise XmlRefused("it declares a document type or entities")


def parse_xml(data: bytes) -> XmlElement:
    """Return the root of the document. The caller bounds the bytes. Raise XmlRefused."""
    parser = expat.ParserCreate(namespace_separator=" ")
    builder = _TreeBuilder(parser)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as error:  # ValueError: an encoding that is none
        raise XmlRefused(str(error) if isinstance(error, XmlRefused) else "it is not well-formed") from None
    except LookupError:
        raise XmlRefused("it names an encoding that there is not") from None
    if builder.root is None:
        raise XmlRefused("it is empty")
    return builder.root


@dataclass(frozen=True, slots=True)
class OnvifAddress:
    """Where a camera's device service is. user, password: '' where it wants none."""

    scheme: str
    host: str
    port: int
    path: str = DEVICE_PATH
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> OnvifAddress:
        """Parse `http://user:password@host:port/path`, or a host with or without a port; raise SourceRefused."""
        bare = text.strip()
        if bare.count(":") > 1 and "/" not in bare and "[" not in bare:
            bare = f"[{bare}]"  # an IPv6 address, as people and discovery write it
        whole = bare if "://" in bare else f"http://{bare}"
        try:
            parts = urlsplit(whole)
            host = (parts.hostname or "").replace("%25", "%") if parts.scheme in _PORTS else ""
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            host, port = "", 0
        if not host or not port or any(each.isspace() or not each.isprintable() for each in host):
            raise SourceRefused("that is not the address of a camera, like 192.168.1.20 or http://192.168.1.20:8000")
        path = parts.path if parts.path not in ("", "/") else DEVICE_PATH
        return cls(parts.scheme, host, port, path, unquote(parts.username or ""), unquote(parts.password or ""))

    @property
    def url(self) -> str:
        """Without user and password."""
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.label}"

    @property
    def label(self) -> str:
        """Host and port for people; the usual port is left out."""
        shown = bracketed(self.host)
        return shown if _PORTS[self.scheme] == self.port else f"{shown}:{self.port}"

    def pinned(self, named: str) -> tuple[str, str]:
        """Move an address that the camera names to the camera's own host.

        Return it with the other host that the camera named, or ''. From an address elsewhere only the path is taken: an
        answer sends us only to the host that gave it.
        """
        try:
            parts = urlsplit(named.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return "", ""
        if parts.scheme not in _PORTS or not host:
            return "", ""
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (
            f"?{quote(parts.query, safe='=&%')}" if parts.query else ""
        )
        if not is_same_host(host, self.host):
            return f"{self.origin}{path}", host
        return f"{parts.scheme}://{bracketed(self.host)}:{port or _PORTS[parts.scheme]}{path}", ""


def bracketed(host: str) -> str:
    """As it stands in a URL. An IPv6 address keeps its zone (`%eth0`) as the system's resolver wants it."""
    return f"[{host}]" if ":" in host else host


def is_same_host(one: str, other: str) -> bool:
    """Return True if both name one host.

    Zones are ours: a camera does not know on which of our interfaces it is.
    """
    return _without_zone(one) == _without_zone(other)


def _without_zone(host: str) -> str:
    bare = host.partition("%")[0].lower()
    try:
        return ipaddress.ip_address(bare).compressed
    except ValueError:
        return bare


class LoginRefused(SourceRefused):
    """The camera wants a user and a password, or others."""


class SoapClient:
    """A camera's services. Owner: one task at a time. `async with` closes its connections.

    Redirects are not followed, proxies of the environment not used, no compression is asked for, and at most
    ANSWER_BYTES_MAX are read, within CALL_S_MAX. camera_ahead_s: what the camera's clock is ahead of ours; a
    WS-UsernameToken carries the camera's time.
    """

    def __init__(self, address: OnvifAddress, clock: Clock, *, call_s: float = CALL_S_MAX) -> None:
        self.address = address
        self.camera_ahead_s = 0.0
        self._clock = clock
        self._call_s = call_s
        import httpx  # 8 MB in the core: only where a camera is asked

        # Cameras sign their own certificates; the password itself is never sent, over neither.
        insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        self._http = httpx.AsyncClient(
            verify=insecure, timeout=call_s, follow_redirects=False, trust_env=False,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
            headers={"user-agent": "vedette", "accept-encoding": "identity"},
        )  # fmt: skip

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> SoapClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, url: str, namespace: str, request: str, *, signed: bool = True) -> XmlElement:
        """Send a request and return the body of the answer; request: `<t:Name>…</t:Name>`, `t` being `namespace`.

        Raise LoginRefused, SourceRefused (with the text of the camera's fault) and SourceLost.
        """
        import httpx

        where = self.address.label
        body = self._envelope(namespace, request, signed=signed).encode()
        try:
            status, data = await asyncio.wait_for(self._post(url, body), self._call_s)
        except (httpx.TimeoutException, asyncio.TimeoutError):
            raise SourceLost(
                f"{where} did not answer within {self._call_s:g} s; is it on, and is ONVIF there?"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            raise SourceLost(f"{where} cannot be reached, or speaks no HTTP there; check address and port") from None
        if 300 <= status < 400:
            raise SourceRefused(f"{where} sent us elsewhere, where we do not go; switch its redirect to HTTPS off")
        return self._checked(status, data)

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        import httpx

        headers = {"content-type": "application/soap+xml; charset=utf-8"}
        if "%" in self.address.host:  # a zone is nobody's business but this machine's (RFC 9844)
            headers["host"] = re.sub(r"%[^]]*", "", self.address.label)
        request = self._http.build_request("POST", url, content=body, headers=headers)
        status, data, challenge = await self._exchange(request)
        if challenge is None or not self.address.user:
            return status, data
        # httpx would read the whole first answer, however long, had it this login: so it is asked step by step.
        flow = httpx.DigestAuth(self.address.user, self.address.password).auth_flow(request)
        next(flow)
        try:
            signed = flow.send(challenge)
        except StopIteration:
            return status, data
        except (KeyError, ValueError, NotImplementedError, httpx.HTTPError):
            raise SourceRefused(
                f"{self.address.label} wants a way to sign in that is not ours; allow digest at the camera"
            ) from None
        status, data, _ = await self._exchange(signed)
        return status, data

    async def _exchange(self, request: httpx.Request) -> tuple[int, bytes, httpx.Response | None]:
        """Status, body and, where a login is asked for, the answer that says how."""
        answer = await self._http.send(request, stream=True, auth=None)
        try:
            if answer.status_code == 401:
                return 401, b"", answer
            data = b""
            async for part in answer.aiter_raw():
                data += part
                if len(data) > ANSWER_BYTES_MAX:
                    raise SourceRefused(f"{self.address.label} answers with more than a camera has to say")
            return answer.status_code, data, None
        finally:
            await answer.aclose()

    def _checked(self, status: int, data: bytes) -> XmlElement:
        where = self.address.label
        if status == 401:
            raise self._wrong_login()
        if status in (404, 405) or not data:
            raise SourceRefused(f"{where} has no ONVIF at that address ({status}); switch ONVIF on in its settings")
        try:
            root = parse_xml(data)
        except XmlRefused as error:
            raise SourceRefused(f"{where} does not answer as an ONVIF camera: {error}") from None
        body = root.at("Body")
        if root.name != "Envelope" or body is None:
            raise SourceRefused(f"{where} does not answer as an ONVIF camera: there is no SOAP in it")
        fault = body.at("Fault")
        if fault is None:
            return body
        codes = " ".join(each.text.strip() for each in fault.every("Value"))
        if "NotAuthorized" in codes or "FailedAuthentication" in codes or status == 403:
            raise self._wrong_login()
        reason = fault.text_at("Reason", "Text") or fault.text_at("faultstring") or codes or "without a reason"
        raise SourceRefused(f"{where} refused: {reason[:120]}")

    def _wrong_login(self) -> LoginRefused:
        if not self.address.user:
            return LoginRefused(f"{self.address.label} asks for a user and a password")
        return LoginRefused(
            f"{self.address.label} refused user or password; many cameras have ONVIF users of their own, "
            "and after some wrong tries wait minutes"
        )

    def _envelope(self, namespace: str, request: str, *, signed: bool) -> str:
        header = self._token() if signed and self.address.user else ""
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><s:Envelope xmlns:s="{_SOAP}">{header}'
            f'<s:Body xmlns:t="{namespace}" xmlns:tt="http://www.onvif.org/ver10/schema">{request}</s:Body></s:Envelope>'
        )

    def _token(self) -> str:
        """WS-UsernameToken with a password digest (OASIS WSS UsernameToken Profile 1.0, 3.1)."""
        nonce = secrets.token_bytes(16)
        created = iso_utc(self._clock.now() + self.camera_ahead_s)
        mixed = nonce + created.encode() + self.address.password.encode()
        digest = base64.b64encode(hashlib.sha1(mixed, usedforsecurity=False).digest()).decode()
        return (
            f'<s:Header><w:Security xmlns:w="{_WSSE}" xmlns:u="{_WSU}" s:mustUnderstand="1"><w:UsernameToken>'
            f"<w:Username>{escape(self.address.user)}</w:Username>"
            f'<w:Password Type="{_DIGEST}">{digest}</w:Password>'
            f'<w:Nonce EncodingType="{_BASE64}">{base64.b64encode(nonce).decode()}</w:Nonce>'
            f"<u:Created>{created}</u:Created></w:UsernameToken></w:Security></s:Header>"
        )
