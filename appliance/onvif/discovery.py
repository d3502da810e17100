"""Searches the local network for cameras by WS-Discovery (multicast), and distrusts what answers."""

from __future__ import annotations

import ipaddress
import json
import selectors
import socket
import struct
import uuid
from dataclasses import asdict, dataclass
from html import escape
from urllib.parse import unquote, urlsplit

from appliance.base.clock import Clock, SystemClock
from appliance.onvif.soap_client import OnvifAddress, XmlElement, XmlRefused, parse_xml

GROUP, GROUP_V6, PORT = "239.255.255.250", "ff02::c", 3702
LISTEN_S = 3.0  # WS-Discovery: answers come within APP_MAX_DELAY (0.5 s), repeated for lost ones
FOUND_MAX = 128  # devices; a bound for a network that answers without end
DATAGRAMS_MAX = 1024  # in all; and of one address, so that one talker cannot use them up
DATAGRAMS_OF_ONE_MAX = 12  # one for each probe and interface, with room for repeats
XADDRS_MAX = 8  # addresses of a device: IPv4 and IPv6 on a few interfaces
TEXT_CHARS_MAX = 64  # of a name or model in the list
_Target = tuple[str, int] | tuple[str, int, int, int]
_SELECT_S = 0.2  # the search ends so soon after LISTEN_S
_REPEAT_S = 0.7  # UDP is lost; the second probe has the same id, as SOAP-over-UDP wants it
_SCOPE = "onvif://www.onvif.org/"
# Some cameras answer to one of these types only.
_TYPES = (
    '<d:Types xmlns:n="http://www.onvif.org/ver10/network/wsdl">n:NetworkVideoTransmitter</d:Types>',
    '<d:Types xmlns:n="http://www.onvif.org/ver10/device/wsdl">n:Device</d:Types>',
)


@dataclass(frozen=True, slots=True)
class FoundCamera:
    """A camera that answered.

    address: of its device service, on the host of the answer. name, make, place: as it says. host: of IPv6 within the
    link with its zone, as in fe80::1%eth0. elsewhere: another host that it named and that is not used; ''. named: all
    hosts that it named.
    """

    address: str
    host: str
    name: str = ""
    make: str = ""
    place: str = ""
    elsewhere: str = ""
    named: tuple[str, ...] = ()


def discover_cameras(clock: Clock, listen_s: float = LISTEN_S) -> list[FoundCamera]:
    """Ask on every interface, by IPv4 and IPv6, and listen for `listen_s`. [] where nothing answers."""
    ids = [str(uuid.uuid4()) for _ in _TYPES]
    messages = [_probe(each, types) for each, types in zip(ids, _TYPES, strict=True)]
    collected = Answers(frozenset(ids))
    sockets = _sockets()
    try:
        with selectors.DefaultSelector() as selector:
            for each, _ in sockets:
                selector.register(each, selectors.EVENT_READ)
            began, sent, quiet_max = clock.monotonic(), 0, round(listen_s / _SELECT_S) + 2
            while (passed_s := clock.monotonic() - began) < listen_s and sockets and quiet_max:
                if passed_s >= sent * _REPEAT_S and sent < 2:
                    sent += 1
                    _send(sockets, messages)
                events = selector.select(min(_SELECT_S, listen_s - passed_s))
                quiet_max -= not events  # ends with a clock that stands still, too
                for key, _ in events:
                    assert isinstance(key.fileobj, socket.socket)
                    collected.receive(key.fileobj)
    finally:
        for each, _ in sockets:
            each.close()
    return collected.cameras()


class Answers:
    """The cameras that answered, by the address of the device service; the first answer of each counts."""

    def __init__(self, ids: frozenset[str]) -> None:
        self._ids = ids
        self._found: dict[str, FoundCamera] = {}
        self._of_host: dict[str, int] = {}
        self._count = 0

    def receive(self, from_socket: socket.socket) -> None:
        """Receive the next datagram of a socket."""
        try:
            data, (host, _port, *more) = from_socket.recvfrom(65_535)
            if more and more[1]:  # within a link, of which there may be several
                host = f"{host.partition('%')[0]}%{socket.if_indextoname(more[1])}"
        except OSError:
            return
        self.take(data, host)

    def take(self, data: bytes, host: str) -> None:
        """Read a datagram of `host`; ignore it if there were too many."""
        self._count += 1
        self._of_host[host] = self._of_host.get(host, 0) + 1
        if self._count > DATAGRAMS_MAX or self._of_host[host] > DATAGRAMS_OF_ONE_MAX or len(self._found) >= FOUND_MAX:
            return
        for camera in answered(data, host, self._ids):
            self._found.setdefault(camera.address, camera)

    def cameras(self) -> list[FoundCamera]:
        """Return the cameras, each once.

        A camera that answered by IPv6 and names an IPv4 address that answered, too, is listed by that alone.
        """
        hosts = {each.host for each in self._found.values()}
        once = [
            each
            for each in self._found.values()
            if ":" not in each.host or not any(":" not in other and other in hosts for other in each.named)
        ]
        return sorted(once, key=_order)


def _order(found: FoundCamera) -> tuple[int, int, str]:
    host = ipaddress.ip_address(found.host)
    return host.version, int(host), found.address


def answered(data: bytes, host: str, ids: frozenset[str]) -> list[FoundCamera]:
    """Return the cameras in a ProbeMatches of `host` to one of our probes; [] for anything else."""
    try:
        root = parse_xml(data)
    except XmlRefused:
        return []
    related = root.text_at("Header", "RelatesTo").rpartition(":")[2]
    matches = root.at("Body", "ProbeMatches")
    if matches is None or related not in ids:
        return []
    return [found for match in list(matches.all("ProbeMatch"))[:4] if (found := _camera(match, host))]


def _camera(match: XmlElement, host: str) -> FoundCamera | None:
    named = match.text_at("XAddrs").split()[:XADDRS_MAX]
    own, elsewhere = OnvifAddress("http", host, 80), ""
    address, hosts = "", []
    for each in named:
        hosts.append(host_of(each))
        url, other = own.pinned(each)
        if url and not other:
            address = address or url
        elsewhere = elsewhere or other
    if not address and not elsewhere:
        return None
    scopes: dict[str, str] = {}
    for scope in match.text_at("Scopes").split()[:64]:
        kind, _, value = scope.removeprefix(_SCOPE).partition("/") if scope.startswith(_SCOPE) else ("", "", "")
        scopes.setdefault(kind.lower(), _plain(value))
    return FoundCamera(
        address=address or own.url, host=host, name=scopes.get("name", ""), make=scopes.get("hardware", ""),
        place=scopes.get("location", ""), elsewhere="" if address else elsewhere[:TEXT_CHARS_MAX],
        named=tuple(each[:TEXT_CHARS_MAX] for each in hosts if each),
    )  # fmt: skip


def host_of(url: str) -> str:
    """Return the host in an address; '': there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _plain(text: str) -> str:
    shown = unquote(text)
    return "".join(each if each.isprintable() else " " for each in shown)[:TEXT_CHARS_MAX].strip()


def _probe(message_id: str, types: str) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?><s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" '
        'xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing" xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery">'
        f"<s:Header><a:MessageID>urn:uuid:{escape(message_id)}</a:MessageID>"
        "<a:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</a:To>"
        "<a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</a:Action></s:Header>"
        f"<s:Body><d:Probe>{types}</d:Probe></s:Body></s:Envelope>"
    ).encode()


def _sockets() -> list[tuple[socket.socket, _Target]]:
    """One for each interface and family, so that every network of the machine is asked; also the machine itself."""
    made = []
    for index, name in socket.if_nameindex():
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                each = socket.socket(family, socket.SOCK_DGRAM)
            except OSError:  # a kernel without IPv6
                continue
            try:
                target = _aimed(each, family, index, name)
                each.setblocking(False)
            except OSError:
                each.close()
                continue
            made.append((each, target))
    return made


def _aimed(each: socket.socket, family: int, index: int, name: str) -> _Target:
    """Multicasts leave by this interface, for its network and no further. Returns where to. Raises OSError."""
    if family == socket.AF_INET6:
        each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        return GROUP_V6, PORT, 0, index
    own = socket.inet_aton("127.0.0.1" if name == "lo" else "0.0.0.0")
    choice = struct.pack("4s4si", socket.inet_aton(GROUP), own, index)
    each.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, choice)
    each.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    return GROUP, PORT


def _send(sockets: list[tuple[socket.socket, _Target]], messages: list[bytes]) -> None:
    for each, target in sockets:
        for message in messages:
            try:
                each.sendto(message, target)
            except OSError:  # an interface that is down, or without this family
                break


def discover_command(*, as_json: bool) -> int:
    """Print the cameras. Returns the exit code."""
    found = discover_cameras(SystemClock())
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return 0
    if not found:
        print(f"No ONVIF camera answered within {LISTEN_S:g} s. Is ONVIF on in the camera, and is it in this network?")
    for each in found:
        about = ", ".join(part for part in (each.name, each.make, each.place) if part)
        print(f"{each.address}  {about}" + (f"  (it names {each.elsewhere}, not used)" if each.elsewhere else ""))
    return 0
