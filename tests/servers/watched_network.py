"""A command in a network and a list of processes of its own, where all that it looks up or contacts is written down.

`watch()` runs it as `unshare -rnmpf python -m tests.servers.watched_network REPORT COMMAND...`. Inside, this module is
process 1. Every address there is leads to the loopback interface, whose packets to anything but this machine are read
from a packet socket; the resolver is a thread that answers each name with an address of its own, behind which port 80
takes whatever it is sent and port 443 accepts. So what would leave a real machine gets as far here as a handshake, and
is known. Sockets of the machine's own services (/run) are not there: a name would be looked up behind our back.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import re
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
REMEDY = (
    "this test needs user, network, mount and process namespaces (`{command} true` must work): on Ubuntu run "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, on an older Debian `sysctl -w "
    "kernel.unprivileged_userns_clone=1`; a container needs `--privileged`, or `--security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined --cap-add SYS_ADMIN`. It said: {output}"
)
PROCESSES_EVERY_S = 0.05
OUTPUT_LENGTH_MAX = 6000
MARK = "203.0.113.1"
_ETH_P_ALL = 3
_PACKET_STATISTICS, _SOL_PACKET, _SO_ATTACH_FILTER = 6, 263, 26
_RTM_NEWROUTE, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, _RTA_OIF = 24, 255, 3, 254, 2, 4
_REQUEST_CREATE_ACK = 0x405
_SIOCSIFFLAGS, _UP, _LOOPBACK_INDEX = 0x8914, 1, 1
# Classic BPF on a packet that begins with its IP header: IPv4 to 127/8 and IPv6 to ::1 are left out, the rest is taken.
_FILTER = (
    (0x30, 0, 0, 0), (0x54, 0, 0, 0xF0), (0x15, 0, 2, 0x40),  # version 4?
    (0x30, 0, 0, 16), (0x15, 10, 9, 127),  # first byte of the destination
    (0x15, 0, 9, 0x60),  # version 6?
    (0x20, 0, 0, 24), (0x15, 0, 6, 0), (0x20, 0, 0, 28), (0x15, 0, 4, 0),
    (0x20, 0, 0, 32), (0x15, 0, 2, 0), (0x20, 0, 0, 36), (0x15, 1, 0, 1),
    (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0),
)  # fmt: skip


@dataclass(frozen=True)
class Watched:
    """What a command did.

    names: that it asked the resolver for. addresses: beyond this machine that it sent to, by their name where they were
    given for one. Each with the process it came from, as far as that was found. processes: the command line of each
    that was seen. at_home: the files that were left in the home folder. lost: packets that came too fast to be read.
    """

    code: int
    names: dict[str, str]
    addresses: dict[str, str]
    processes: list[str]
    at_home: list[str]
    lost: int
    cpu_s: float
    output: str

    @property
    def contacted(self) -> dict[str, str]:
        """Every name and address, with who it was."""
        return {**self.addresses, **self.names}


def why_not() -> str:
    """Why it cannot be done here, with the remedy; '': it can."""
    if shutil.which(UNSHARE[0]) is None:
        return "`unshare` is not here: apt-get install util-linux"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return REMEDY.format(command=" ".join(UNSHARE), output=done.stderr.strip()) if done.returncode else ""


def watch(
    folder: Path, command: Sequence[str | Path], seconds: float = 280.0, environment: Mapping[str, str] | None = None
) -> Watched:
    """Run `command` and say what it did. folder: for its home and the report.

    Its environment is made here: a library that is told of a CI or a test by a variable keeps quiet.
    """
    home, report = folder / "home", folder / "report.json"
    home.mkdir(parents=True)
    given = {
        "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder), **(environment or {}),
    }  # fmt: skip
    words = [sys.executable, "-m", __name__, str(report), *map(str, command)]
    try:
        done = subprocess.run(
            [*UNSHARE, *words], cwd=ROOT, env=given, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not done in {seconds:.0f} s: {report.with_suffix('.log').read_text()}") from None
    assert report.is_file(), f"the namespace ended with {done.returncode}: {done.stdout}\n{done.stderr}"
    return Watched(**json.loads(report.read_text()))


# Inside.


class Observer:
    """Reads packets, answers the resolver's questions and looks at the processes, each in a thread of its own."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, None] = {}
        self._given: dict[str, str] = {}
        self._marked = threading.Event()
        self._raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _FILTER))
        program = struct.pack("HL", len(_FILTER), ctypes.addressof(code))
        self._raw.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._raw.bind(("lo", 0))
        self._queries = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._queries.bind(("127.0.0.1", 53))
        self._streams = {port: socket.create_server(("", port)) for port in (53, 80, 443)}

    def start(self) -> None:
        for work in (self._packets, self._answers, self._accepts, self._watch_processes):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def catch_up(self) -> None:
        """Return when every packet that was sent until now has been read."""
        self._marked.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            any_socket.sendto(b"", (MARK, 9))
        assert self._marked.wait(60), "the packet of ours was not seen, so nothing was"

    @property
    def lost(self) -> int:
        """Packets that came too fast to be read."""
        return int(struct.unpack("II", self._raw.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1])

    def _packets(self) -> None:
        while True:
            packet = self._raw.recv(65536)
            if packet[0] >> 4 == 4:
                destination = str(ipaddress.ip_address(packet[16:20]))
                ports, protocol = packet[(packet[0] & 15) * 4 :], packet[9]
            else:
                destination, ports, protocol = str(ipaddress.ip_address(packet[24:40])), packet[40:], packet[6]
            if destination == MARK:
                self._marked.set()
                continue
            name = self._given.get(destination, destination)
            port = struct.unpack("!H", ports[:2])[0] if protocol in (6, 17) else 0
            if not self.addresses.get(name):
                self.addresses[name] = _owner(port)

    def _answers(self) -> None:
        while True:
            query, sender = self._queries.recvfrom(4096)
            self._queries.sendto(self._answer(query, sender[1]), sender)

    def _answer(self, query: bytes, port: int) -> bytes:
        """An address of TEST-NET-2 for A, nothing for all else (RFC 1035)."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode(errors="replace"))
            at += 1 + query[at]
        name, end = ".".join(labels), at + 5
        self.names.setdefault(name, _owner(port))
        address = next((each for each, of in self._given.items() if of == name), f"198.51.100.{len(self._given) + 1}")
        self._given[address] = name
        is_a = query[at + 1 : at + 3] == b"\0\1"
        head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(is_a), 0, 0) + query[12:end]
        return head + (b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(address) if is_a else b"")

    def _accepts(self) -> None:
        """Port 53: a question over TCP. Port 80: whatever it is, 200. Port 443: it is open, and nothing answers."""
        ready, kept = selectors.DefaultSelector(), []
        for port, server in self._streams.items():
            ready.register(server, selectors.EVENT_READ, port)
        while True:
            for key, _ in ready.select():
                taken, _ = self._streams[key.data].accept()
                kept.append(taken)
                if key.data != 443:
                    threading.Thread(target=self._serve, args=(taken, key.data), daemon=True).start()

    def _serve(self, taken: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError, IndexError), taken:
            data = taken.recv(65536)
            if port == 53:
                answer = self._answer(data[2:], taken.getpeername()[1])
                taken.sendall(struct.pack("!H", len(answer)) + answer)
            else:
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _watch_processes(self) -> None:
        while True:
            for line in filter(None, map(command_line, _process_ids())):
                self.processes.setdefault(line)
            time.sleep(PROCESSES_EVERY_S)


def _process_ids() -> Iterator[int]:
    yield from (int(each) for each in os.listdir("/proc") if each.isdigit() and each != "1")  # 1 is this one


def command_line(pid: int) -> str:
    """As it was typed; '': it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _owner(port: int) -> str:
    """The command line of the process that has a TCP or UDP socket at this local port; '': it is gone."""
    inodes = set()
    for kind in ("udp", "tcp", "udp6", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for pid in _process_ids():
        with contextlib.suppress(OSError):
            if any(os.readlink(f"/proc/{pid}/fd/{each}") in inodes for each in os.listdir(f"/proc/{pid}/fd")):
                return command_line(pid)
    return ""


def lead_everything_here() -> None:
    """Bring the loopback interface up, and lead every address of both families to it; by netlink, without a tool."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP))
    for family in (socket.AF_INET, socket.AF_INET6):
        message = struct.pack(
            "BBBBBBBBI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _TYPE_LOCAL, 0
        ) + struct.pack("HHi", 8, _RTA_OIF, _LOOPBACK_INDEX)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            link.send(struct.pack("IHHII", 16 + len(message), _RTM_NEWROUTE, _REQUEST_CREATE_ACK, 1, 0) + message)
            error = -struct.unpack("i", link.recv(4096)[16:20])[0]
        if error and family == socket.AF_INET:  # without IPv6 nothing leaves by it
            raise OSError(error, f"the route to lo was refused: {os.strerror(error)}")


def take_the_resolver(folder: Path) -> None:
    """The resolver is ours alone, and no service of the machine is in reach by a socket in the file system."""
    real = Path("/etc/resolv.conf").resolve()
    for each in {Path("/run"), Path("/var/run").resolve()}:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", each], check=True)
    for path, text in ((real, "nameserver 127.0.0.1\n"), (Path("/etc/nsswitch.conf"), "hosts: files dns\n")):
        if path.is_relative_to("/run"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif path.exists():
            ours = folder / path.name
            ours.write_text(text)
            subprocess.run(["mount", "--bind", ours, path], check=True)


def main(report: Path, command: Sequence[str]) -> None:
    lead_everything_here()
    take_the_resolver(report.parent)
    observer = Observer()
    observer.start()
    log = report.with_suffix(".log")
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False).returncode
    observer.catch_up()
    home = Path(os.environ["HOME"])
    times = os.times()
    found = Watched(
        code=code,
        names=dict(observer.names),
        addresses=dict(observer.addresses),
        processes=list(observer.processes),
        at_home=sorted(str(each.relative_to(home)) for each in home.rglob("*") if not each.is_dir()),
        lost=observer.lost,
        cpu_s=times.user + times.system + times.children_user + times.children_system,
        output=log.read_text(errors="replace")[-OUTPUT_LENGTH_MAX:],
    )
    report.write_text(json.dumps(asdict(found)))


def role(line: str) -> str:
    """Name a process: our module with its verb (`appliance run`, `appliance.ingest`), else the program."""
    words = line.split()
    if "-m" in words[:4]:
        words = words[words.index("-m") + 1 :]
        if words[0] == "appliance.sandbox.sandbox_child":
            asked = re.search(r'"module": "([\w.]+)"', line)
            return f"appliance.sandbox.sandbox_child {asked.group(1) if asked else ''}"
        verbs = [each for each in words[1:3] if re.fullmatch(r"[a-z-]+", each) and not each.startswith("-")]
        return " ".join([words[0], *verbs] if words[0] in ("appliance", "cloud_worker") else words[:1])
    script = next((each for each in words if each.endswith(".py")), words[0])
    return Path(script).name


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
