"""Two network namespaces with a cable between them, so that what crosses it can be counted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import until


def why_not() -> str:
    """Why there can be no namespaces here; '': there can."""
    if shutil.which("ip") is None:
        return "iproute2 (ip) is not there"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"vdt-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@dataclass(frozen=True)
class Cable:
    """`hub` is at 10.91.0.1, `site` at 10.91.0.2; each a namespace with the interface `wire`."""

    hub: str
    site: str
    address: str = "10.91.0.1"

    def inside(self, namespace: str, *command: str | Path) -> list[str | Path]:
        """`command` as it is run in a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def link_local(self, namespace: str) -> str:
        """The IPv6 address that `wire` has given itself there."""
        address: str = self._link_addresses(namespace)[0]["local"]
        return address

    def has_link_local(self, namespace: str) -> bool:
        """Whether that address may be used already."""
        return any(not each.get("tentative") for each in self._link_addresses(namespace))

    def _link_addresses(self, namespace: str) -> list[dict[str, Any]]:
        output = _ip("-n", namespace, "-6", "-j", "address", "show", "dev", "wire", "scope", "link")
        return [each for link in json.loads(output or "[]") for each in link.get("addr_info", ())]

    def sent_by_site(self) -> int:
        """Bytes that the kernel counted on the site's interface, outward, Ethernet headers included."""
        output = _ip("-n", self.site, "-s", "-j", "link", "show", "dev", "wire")
        count: int = json.loads(output)[0]["stats64"]["tx"]["bytes"]
        return count


@contextlib.contextmanager
def cable(*, ipv6: bool = False) -> Iterator[Cable]:
    """Made, and unmade at the end. ipv6: with the addresses that a link gives itself, at once."""
    made = Cable(f"vdt-hub-{os.getpid()}", f"vdt-site-{os.getpid()}")
    try:
        for name in (made.hub, made.site):
            _ip("netns", "add", name)
            for where in ("all", "default"):  # its own chatter would be counted with ours
                for setting in ("accept_dad=0",) if ipv6 else ("disable_ipv6=1",):
                    _run(made.inside(name, "sysctl", "-qw", f"net.ipv6.conf.{where}.{setting}"), check=False)
        _ip("-n", made.hub, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", made.site)
        for name, address in ((made.hub, "10.91.0.1/24"), (made.site, "10.91.0.2/24")):
            _ip("-n", name, "address", "add", address, "dev", "wire")
            # One packet a segment, as on a cable: what is cut into packets later would be counted as one.
            _ip("-n", name, "link", "set", "wire", "gso_max_segs", "1")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "wire", "up")
        if ipv6:
            until(
                lambda: made.has_link_local(made.hub) and made.has_link_local(made.site), 10, "the link has addresses"
            )
        yield made
    finally:
        for name in (made.hub, made.site):
            _run(["ip", "netns", "del", name], check=False)


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: Sequence[str | Path], *, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout
