"""Folder, web server, bucket and registry: the same bundle from each, resumed, and never twice."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.base.errors import ModelError, UsageError
from appliance.bundle.publisher import push
from appliance.bundle.repositories import LinkLost, OciRepository, Repository, open_repository
from tests.servers.file_server import FileServer, file_server
from tests.servers.oci_registry import Registry, oci_registry
from tests.servers.s3 import BUCKET, KEY, SECRET, s3_server
from tests.support.model_publisher import ModelPublisher, TrustingSite

Serve = Callable[[], tuple[str, Callable[[list[int]], None]]]


class CountedRepository:
    """Another repository, with the bytes counted that came from it."""

    def __init__(self, repository: Repository) -> None:
        self.address = repository.address
        self.received = 0
        self._repository = repository

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        for block in self._repository.read(path, offset):
            self.received += len(block)
            yield block


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["folder", "https", "oci", "s3"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Publish what the publisher's folder holds now; return the address, and how to have the next answers cut."""
    folder = tmp_path / "publisher" / "repository"
    with ExitStack() as stack:
        web: FileServer | None = None
        registry: Registry | None = None

        def serve() -> tuple[str, Callable[[list[int]], None]]:
            nonlocal web, registry
            if request.param == "https":
                web = web or stack.enter_context(file_server({}))
                web.files.update(files_of(folder))
                return web.url, web.cut_after.extend
            if request.param == "oci":
                registry = registry or stack.enter_context(oci_registry())
                registry.token = "open to anyone who asks"
                address = f"oci+http://{registry.host}/models"
                push_with_token(folder, OciRepository(address), registry)
                return address, registry.cut_after.extend
            if request.param == "s3":
                pytest.importorskip("moto.server", reason="moto[server] is a development dependency")
                server = stack.enter_context(s3_server())
                monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
                monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
                monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
                for name, content in files_of(folder).items():
                    server.client().put_object(Bucket=BUCKET, Key=f"models/{name}", Body=content)
                return f"s3://{BUCKET}/models", lambda _: None
            return str(folder), lambda _: None

        yield serve


def push_with_token(folder: Path, to: OciRepository, registry: Registry) -> None:
    token, registry.token = registry.token, ""  # this one asks it of readers alone
    push(folder, to)
    registry.token = token


def test_a_bundle_comes_whole_and_a_new_head_costs_its_own_bytes(served: Serve, tmp_path: Path) -> None:
    publisher, site = ModelPublisher(tmp_path / "publisher"), TrustingSite(tmp_path / "site")
    publisher.publish("1", backbone_bytes=100_000)
    address, _ = served()
    site.trust(publisher, address)
    first = CountedRepository(open_repository(address))
    site.install("1", first)
    site.store.put_in_force(site.store.check(next(iter(site.store.installed()))).ref)

    publisher.publish("2", head=1, backbone_bytes=100_000)
    address, _ = served()
    second = CountedRepository(open_repository(address))
    ref = site.install("2", second)
    assert site.store.check(ref).total_bytes == 100_200
    metadata = 12_000  # root, timestamp, snapshot, targets and the manifest of this small bundle
    assert second.received < 200 + metadata < 0.2 * first.received


def test_a_pull_that_is_cut_twenty_times_ends_whole(served: Serve, tmp_path: Path) -> None:
    publisher, site = ModelPublisher(tmp_path / "publisher"), TrustingSite(tmp_path / "site")
    publisher.publish("1", backbone_bytes=400_000)
    address, cut = served()
    site.trust(publisher, address)
    repository: Repository = open_repository(address)
    drawn = random.Random(20)

    class CutAfterTheManifest:
        def __init__(self) -> None:
            self.address = address

        def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
            if path.startswith("blobs/") and offset == 0 and "begun" not in self.__dict__:
                self.begun = True
                cut([drawn.randrange(1, 30_000) for _ in range(20)])
            yield from repository.read(path, offset)

    counted = CountedRepository(CutAfterTheManifest())
    assert site.store.check(site.install("1", counted)).total_bytes == 400_200
    assert counted.received < 400_200 + 20_000, "what was here was fetched again"


def test_what_is_no_address_or_is_not_there_is_said(served: Serve, tmp_path: Path) -> None:
    publisher, site = ModelPublisher(tmp_path / "publisher"), TrustingSite(tmp_path / "site")
    publisher.publish("1")
    address, _ = served()
    site.trust(publisher, address)
    with pytest.raises(ModelError, match="has no night"):
        site.install("9")
    with pytest.raises(UsageError, match="no address"):
        open_repository("ftp://example.org/models")


def test_a_registry_whose_token_server_is_away_is_a_link_that_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed, oci_registry() as registry:
        registry.token = "t"
        address = registry.host
        registry.host = f"127.0.0.1:{closed.getsockname()[1]}"  # of the token server
        closed.close()
        with pytest.raises(LinkLost, match=r"/token: .*refused"):
            next(OciRepository(f"oci+http://{address}/models").read("metadata/timestamp.json"))
