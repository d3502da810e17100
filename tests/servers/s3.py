"""A real S3-compatible store for tests: moto's server on loopback, on a port that the system chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
from botocore.client import Config

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

BUCKET = "evidence"
KEY, SECRET = "key-of-the-test", "word-of-the-test"


class S3Server:
    """`url` stays the same over `stop()` and `start()`; what it holds stays, too."""

    def __init__(self) -> None:
        self._port = 0
        self._server: ThreadedMotoServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> S3Server:
        from moto.server import ThreadedMotoServer  # 0.6 s of CPU, and each process of a run collects all tests

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip

    def keys(self) -> list[str]:
        return sorted(each["Key"] for each in self.client().list_objects_v2(Bucket=BUCKET).get("Contents", []))


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A store with an empty bucket."""
    server = S3Server().start()
    try:
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        with contextlib.suppress(Exception):
            bucket = boto3.resource(
                "s3", endpoint_url=server.url, region_name="us-east-1", aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
            ).Bucket(BUCKET)  # fmt: skip
            bucket.objects.delete()
            bucket.delete()
        server.stop()
