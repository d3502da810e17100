"""A camera that speaks ONVIF: SOAP over HTTP with real digests, WS-Discovery by multicast, and ways to misbehave.

`python -m tests.servers.onvif_camera --rtsp-port 8554 --host 10.91.0.1` runs one in a process, and one more for each
further `--host`; its first line is JSON.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import http.server
import json
import re
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.request import parse_http_list, parse_keqv_list

from appliance.onvif.soap_client import XmlElement, bracketed, parse_xml

GROUP, GROUP_V6, PORT = "239.255.255.250", "ff02::c", 3702
Auth = Literal["none", "wsse", "digest"]
# Of a whole camera: redirect, slow (an answer a byte at a time), bomb (endless), entities, gzip, garbage, empty.
Fault = Literal["", "redirect", "slow", "bomb", "entities", "gzip", "gzip-401", "garbage", "empty", "deep"]


@dataclass(frozen=True)
class Stream:
    """One profile: `path` is of the RTSP server."""

    token: str
    path: str
    size: tuple[int, int]
    codec: str = "H264"
    fps: int = 10
    kbit_s: int = 2048
    source: str = "lens-1"


STREAMS = (
    Stream("p-main", "main", (1920, 1080), kbit_s=4096),
    Stream("p-sub", "sub", (640, 360), kbit_s=512),
    Stream("p-tiny", "tiny", (320, 180), kbit_s=128),
)


@dataclass
class OnvifCamera:
    """State: the calls it got, where it points, and whether it turns. It listens on `host` and `port`."""

    rtsp_port: int = 554
    host: str = "127.0.0.1"
    name: str = "Front door"
    auth: Auth = "wsse"
    user: str = "viewer"
    password: str = "p@ss<&>"
    ahead_s: float = 0.0
    media2: bool = True
    ptz: bool = True
    bare_encoders: bool = False  # profiles only name their encoder
    streams: tuple[Stream, ...] = STREAMS
    says_host: str = ""  # the host in its addresses; '': its own
    says_stream_host: str = ""
    fault: Fault = ""
    fault_at: str = ""  # the request that it misbehaves at; '': each
    calls: list[str] = field(default_factory=list)
    moves: list[tuple[float, float, float]] = field(default_factory=list)
    turning: bool = False
    at_preset: str = ""
    last_asked: dict[str, str] = field(default_factory=dict)  # by request, the whole body

    def __post_init__(self) -> None:
        camera = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                camera.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            address_family = self._family

        self._http = Server(self._own_end, Handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self._nonce = secrets.token_hex(8)
        self._over = threading.Event()

    @property
    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def _own_end(self) -> Any:
        """With the number of its zone, which `bind` wants."""
        return socket.getaddrinfo(self.host, 0, self._family)[0][4]

    @property
    def address(self) -> str:
        return f"http://{bracketed(self.host)}:{self.port}/onvif/device_service"

    # -- HTTP

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        request = (parse_xml(body).at("Body") or XmlElement("")).children[0]
        name = request.name
        if self.fault and self.fault_at in ("", name):
            self._misbehave(handler)
            return
        open_to_all = name == "GetSystemDateAndTime"
        if self.auth == "digest" and not open_to_all and not self._digest_ok(handler):
            if self.fault == "":
                handler.send_response(401)
                challenge = f'Digest realm="cam", nonce="{self._nonce}", qop="auth", algorithm=MD5'
                handler.send_header("WWW-Authenticate", challenge)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
            return
        self.calls.append(name)
        self.last_asked[name] = body.decode()
        if self.auth == "wsse" and not open_to_all and not self._wsse_ok(parse_xml(body)):
            self._send(handler, 400, _fault("ter:NotAuthorized", "Sender not authorized"))
            return
        found = getattr(self, f"_on_{name.lower()}", None)
        text = found(request) if found else None
        if text is None:
            self._send(handler, 500, _fault("ter:ActionNotSupported", "Optional action not implemented"))
        else:
            self._send(handler, 200, f"<t:{name}Response>{text}</t:{name}Response>")

    def _misbehave(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            if self.fault == "redirect":
                handler.send_response(302)
                handler.send_header("Location", "http://169.254.169.254/latest/meta-data")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(401 if self.fault == "gzip-401" else 200)
            if self.fault == "gzip-401":
                handler.send_header("WWW-Authenticate", 'Digest realm="cam", nonce="n", qop="auth"')
            if self.fault.startswith("gzip"):
                handler.send_header("Content-Encoding", "gzip")
            handler.send_header("Content-Type", "application/soap+xml")
            handler.end_headers()
            if self.fault == "slow":
                while not self._over.wait(0.1):
                    handler.wfile.write(b" ")
            elif self.fault == "bomb":
                while not self._over.is_set():
                    handler.wfile.write(b"<a>" * 20_000)
            elif self.fault == "deep":
                handler.wfile.write(b"<a>" * 100_000)
            elif self.fault == "entities":
                declared = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
                handler.wfile.write(f'<!DOCTYPE x [<!ENTITY e0 "ha">{declared}]><x>&e9;</x>'.encode())
            elif self.fault.startswith("gzip"):
                handler.wfile.write(_zip_bomb())
            elif self.fault == "garbage":
                handler.wfile.write(b"\x00\xffno xml \x1b[31m")

    def _send(self, handler: http.server.BaseHTTPRequestHandler, status: int, body: str) -> None:
        data = (
            '<?xml version="1.0"?><s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:t="urn:any" '
            'xmlns:tt="http://www.onvif.org/ver10/schema" xmlns:ter="http://www.onvif.org/ver10/error">'
            f"<s:Body>{body}</s:Body></s:Envelope>"
        ).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("Content-Type", "application/soap+xml")
        handler.end_headers()
        handler.wfile.write(data)

    def _wsse_ok(self, root: XmlElement) -> bool:
        token = root.at("Header", "Security", "UsernameToken")
        if token is None or token.text_at("Username") != self.user:
            return False
        created = token.text_at("Created")
        age = time.time() + self.ahead_s - datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
        mixed = base64.b64decode(token.text_at("Nonce")) + created.encode() + self.password.encode()
        right = base64.b64encode(hashlib.sha1(mixed).digest()).decode()  # noqa: S324 - as the profile has it
        return abs(age) < 5 and token.text_at("Password") == right

    def _digest_ok(self, handler: http.server.BaseHTTPRequestHandler) -> bool:
        given = handler.headers.get("Authorization", "")
        if not given.startswith("Digest "):
            return False
        parts = parse_keqv_list(parse_http_list(given[7:]))

        def md5(text: str) -> str:
            return hashlib.md5(text.encode()).hexdigest()  # noqa: S324

        ha1, ha2 = md5(f"{self.user}:cam:{self.password}"), md5(f"POST:{handler.path}")
        mixed = ":".join((ha1, self._nonce, parts.get("nc", ""), parts.get("cnonce", ""), "auth", ha2))
        return parts.get("username") == self.user and parts.get("response") == md5(mixed)

    # -- device service

    def _url(self, path: str) -> str:
        return f"http://{bracketed(self.says_host or self.host.partition('%')[0])}:{self.port}{path}"

    def _on_getsystemdateandtime(self, _: XmlElement) -> str:
        at = datetime.fromtimestamp(time.time() + self.ahead_s, timezone.utc)
        return (
            "<t:SystemDateAndTime><tt:UTCDateTime>"
            f"<tt:Time><tt:Hour>{at.hour}</tt:Hour><tt:Minute>{at.minute}</tt:Minute><tt:Second>{at.second}</tt:Second></tt:Time>"
            f"<tt:Date><tt:Year>{at.year}</tt:Year><tt:Month>{at.month}</tt:Month><tt:Day>{at.day}</tt:Day></tt:Date>"
            "</tt:UTCDateTime></t:SystemDateAndTime>"
        )

    def _on_getdeviceinformation(self, _: XmlElement) -> str:
        return (
            "<t:Manufacturer>Example &lt;b&gt;</t:Manufacturer><t:Model>C-100</t:Model>"
            "<t:FirmwareVersion>1.2.3</t:FirmwareVersion><t:SerialNumber>42</t:SerialNumber>"
        )

    def _on_getservices(self, _: XmlElement) -> str | None:
        if not self.media2:
            return None
        names = {"ver20/media": "/onvif/media2", "ver10/media": "/onvif/media"}
        if self.ptz:
            names["ver20/ptz"] = "/onvif/ptz"
        return "".join(
            f"<t:Service><t:Namespace>http://www.onvif.org/{name}/wsdl</t:Namespace>"
            f"<t:XAddr>{self._url(path)}</t:XAddr></t:Service>"
            for name, path in names.items()
        )

    def _on_getcapabilities(self, _: XmlElement) -> str:
        turn = f"<tt:PTZ><tt:XAddr>{self._url('/onvif/ptz')}</tt:XAddr></tt:PTZ>" if self.ptz else ""
        media = f"<tt:Media><tt:XAddr>{self._url('/onvif/media')}</tt:XAddr></tt:Media>"
        return f"<t:Capabilities>{media}{turn}</t:Capabilities>"

    # -- media services

    def _encoder(self, stream: Stream) -> str:
        width, height = stream.size
        return (
            f"<tt:Encoding>{stream.codec}</tt:Encoding>"
            f"<tt:Resolution><tt:Width>{width}</tt:Width><tt:Height>{height}</tt:Height></tt:Resolution>"
            f"<tt:RateControl><tt:FrameRateLimit>{stream.fps}</tt:FrameRateLimit>"
            f"<tt:BitrateLimit>{stream.kbit_s}</tt:BitrateLimit></tt:RateControl>"
        )

    def _on_getprofiles(self, request: XmlElement) -> str:
        text = ""
        for stream in self.streams:
            source = f"<tt:SourceToken>{stream.source}</tt:SourceToken>"
            encoder = "" if self.bare_encoders else self._encoder(stream)
            token = f'token="e-{stream.token}" GovLength="20"'
            if request.at("Type") is not None:
                turn = "<t:PTZ/>" if self.ptz else ""
                parts = (
                    f"<t:VideoSource>{source}</t:VideoSource><t:VideoEncoder {token}>{encoder}</t:VideoEncoder>{turn}"
                )
                parts = f"<t:Configurations>{parts}</t:Configurations>"
            else:
                turn = "<tt:PTZConfiguration/>" if self.ptz else ""
                parts = (
                    f"<tt:VideoSourceConfiguration>{source}</tt:VideoSourceConfiguration>"
                    f"<tt:VideoEncoderConfiguration {token}>{encoder}</tt:VideoEncoderConfiguration>{turn}"
                )
            text += f'<t:Profiles token="{stream.token}"><tt:Name>{stream.path}</tt:Name>{parts}</t:Profiles>'
        return text

    def _on_getvideoencoderconfigurations(self, _: XmlElement) -> str:
        return "".join(
            f'<t:Configurations token="e-{each.token}" GovLength="20">{self._encoder(each)}</t:Configurations>'
            for each in self.streams
        )

    def _on_getstreamuri(self, request: XmlElement) -> str:
        stream = next(each for each in self.streams if each.token == request.text_at("ProfileToken"))
        host = self.says_stream_host or self.host.partition("%")[0]
        uri = f"<tt:Uri>rtsp://{bracketed(host)}:{self.rtsp_port}/{stream.path}</tt:Uri>"
        return uri if request.at("Protocol") is not None else f"<t:MediaUri>{uri}</t:MediaUri>"

    # -- PTZ service

    def _on_continuousmove(self, request: XmlElement) -> str:
        velocity = request.at("Velocity") or XmlElement("")
        turn, zoom = (velocity.at(name) or XmlElement("") for name in ("PanTilt", "Zoom"))
        numbers = [float(part.attributes.get(axis, 0)) for part, axis in ((turn, "x"), (turn, "y"), (zoom, "x"))]
        self.moves.append((numbers[0], numbers[1], numbers[2]))
        self.turning = True  # it does not heed the time-out, as many cameras do not
        return ""

    def _on_stop(self, _: XmlElement) -> str:
        self.turning = False
        return ""

    def _on_getpresets(self, _: XmlElement) -> str:
        return "".join(
            f'<t:Preset token="{n}"><tt:Name>{name}</tt:Name></t:Preset>'
            for n, name in ((1, "Door"), (2, "Yard &amp; gate"))
        )

    def _on_gotopreset(self, request: XmlElement) -> str:
        self.at_preset = request.text_at("PresetToken")
        return ""

    def _on_gotohomeposition(self, _: XmlElement) -> str:
        self.at_preset = "home"
        return ""

    # -- WS-Discovery

    def match(self, message_id: str) -> bytes:
        """The answer to a probe."""
        scopes = f"onvif://www.onvif.org/name/{self.name.replace(' ', '%20')} onvif://www.onvif.org/hardware/C-100"
        return (
            '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" '
            'xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing" '
            'xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery">'
            f"<s:Header><a:RelatesTo>{message_id}</a:RelatesTo></s:Header><s:Body><d:ProbeMatches><d:ProbeMatch>"
            f"<a:EndpointReference><a:Address>urn:uuid:{self.port}</a:Address></a:EndpointReference>"
            f"<d:Scopes>{scopes}</d:Scopes><d:XAddrs>{self._url('/onvif/device_service')}</d:XAddrs>"
            "</d:ProbeMatch></d:ProbeMatches></s:Body></s:Envelope>"
        ).encode()

    def _listen(self, interface: str) -> None:
        with socket.socket(self._family, socket.SOCK_DGRAM) as udp:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            index = socket.if_nametoindex(interface)
            if self._family == socket.AF_INET6:
                udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                udp.bind((GROUP_V6, PORT, 0, index))
                group = socket.inet_pton(socket.AF_INET6, GROUP_V6) + struct.pack("@I", index)
                udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
            else:
                udp.bind((GROUP, PORT))
                member = struct.pack("4s4si", socket.inet_aton(GROUP), b"\0" * 4, index)
                udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            udp.settimeout(0.2)
            self._listening.set()
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    data, where = udp.recvfrom(65_535)
                    asked = re.search(rb"MessageID>([^<]+)<", data)
                    if asked and b"NetworkVideoTransmitter" in data:
                        with socket.socket(self._family, socket.SOCK_DGRAM) as own:
                            own.bind(self._own_end)
                            own.sendto(self.match(asked[1].decode()), where)

    @contextlib.contextmanager
    def running(self, interface: str = "") -> Iterator[OnvifCamera]:
        """Serve; interface: where it also answers probes ('': nowhere)."""
        self._listening = threading.Event()
        works = [threading.Thread(target=self._http.serve_forever, args=(0.05,), name="onvif http")]
        if interface:
            works.append(threading.Thread(target=self._listen, args=(interface,), name="onvif discovery"))
        for each in works:
            each.start()
        assert not interface or self._listening.wait(10)
        try:
            yield self
        finally:
            self._over.set()
            self._http.shutdown()
            self._http.server_close()
            for each in works:
                each.join(10)


def _zip_bomb() -> bytes:
    """63 MB that are little on the way; made in pieces, since a test measures memory meanwhile."""
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(b"<a>" * 350_000) for _ in range(60)) + packer.flush()


def _fault(subcode: str, reason: str) -> str:
    return (
        "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode>"
        f"<s:Value>{subcode}</s:Value></s:Subcode></s:Code><s:Reason><s:Text>{reason}</s:Text></s:Reason></s:Fault>"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True, action="append")
    parser.add_argument("--interface", default="wire")
    parser.add_argument("--rtsp-port", type=int, default=554)
    parser.add_argument("--says-host", default="")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        cameras = [OnvifCamera(options.rtsp_port, host, says_host=options.says_host) for host in options.host]
        for camera in cameras:
            stack.enter_context(camera.running(options.interface))
        print(json.dumps({"addresses": [camera.address for camera in cameras]}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
