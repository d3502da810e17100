"""Reads bundles from a folder, a web server, an S3 bucket or an OCI registry, from any offset.

    metadata/…                            what TUF signs (trust.py)
    targets/NAME/VERSION/manifest.json    the signed manifest of a bundle
    blobs/sha256/HEX                      the bytes, named by their hash: the same for all versions that have them

A registry keeps the same in its own way (OCI distribution specification 1.1): a blob is a blob; `metadata/…` are the
layers of the artifact tagged `metadata`, and a manifest is one of the layers of the artifact `NAME-VERSION`, each under
its name in the annotation `org.opencontainers.image.title`. So `oras pull HOST/REPOSITORY:NAME-VERSION` works as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from appliance.base.errors import MissingDependency, ModelError, UsageError

if TYPE_CHECKING:
    import httpx

BLOCK_BYTES = 1 << 16  # read and written at once: 64 KiB, as much as a pipe holds
TIMEOUT_S = 20.0  # without a byte
INDEX_BYTES_MAX = 4 << 20  # of an artifact's manifest; registries refuse more than 4 MiB
TITLE = "org.opencontainers.image.title"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
METADATA_TAG = "metadata"


class FileMissing(ModelError):
    """The repository has no such file."""


class LinkLost(ModelError):
    """The repository could not be reached, or stopped sending: another attempt may succeed."""


class Unreachable(LinkLost):
    """Not even a connection could be made."""


class Repository(Protocol):
    """Read access to the files of a repository."""

    address: str

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes of `path` from `offset` on. Raise FileMissing, LinkLost, ModelError: refused."""
        ...


def open_repository(address: str) -> Repository:
    """Return the repository at `oci://HOST/NAME`, `https://…`, `s3://BUCKET/PREFIX` or in a folder.

    `oci+http://` is a registry without TLS, as one of the same machine. Raise UsageError, MissingDependency.
    """
    parts = urlsplit(address)
    if parts.scheme in ("oci", "oci+http"):
        return OciRepository(address)
    if parts.scheme in ("http", "https"):
        return WebRepository(address)
    if parts.scheme == "s3":
        return S3Repository(address)
    if parts.scheme:
        raise UsageError(f"{address} is no address of models: oci://, https://, http://, s3:// or a folder")
    if not Path(address).is_dir():
        raise UsageError(f"there is no folder {address}")
    return FolderRepository(Path(address))


class FolderRepository:
    """A folder of this machine, or one that is mounted."""

    def __init__(self, root: Path) -> None:
        self.address = str(root)
        self._root = root

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """See Repository."""
        try:
            with (self._root / path).open("rb") as file:
                file.seek(offset)
                while block := file.read(BLOCK_BYTES):
                    yield block
        except FileNotFoundError:
            raise FileMissing(f"{self.address} has no {path}") from None
        except OSError as error:
            raise LinkLost(f"{self._root / path} cannot be read: {error.strerror}") from None


class WebRepository:
    """Any server of static files; resumes where it understands Range, else what is here already is read over."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._client = web_client()

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """See Repository."""
        return read_url(self._client, f"{self.address}/{quote(path)}", offset, {})


class OciRepository:
    """A repository of an OCI registry. A token without a password is asked for where the registry wants one."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.address = address
        self.name = parts.path.strip("/")
        if not parts.netloc or not re.fullmatch(r"[a-z0-9._/-]+", self.name):
            raise UsageError(f"{address}: write oci://HOST/REPOSITORY in small letters")
        self.base = f"{'http' if parts.scheme == 'oci+http' else 'https'}://{parts.netloc}/v2/{self.name}"
        self._client = web_client()
        self._layers: dict[str, dict[str, str]] = {}
        self._headers: dict[str, str] = {}

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """See Repository."""
        kind, _, rest = path.partition("/")
        if kind == "blobs":
            digest = rest.replace("/", ":", 1)
        else:
            tag, _, title = (METADATA_TAG, "", rest) if kind == "metadata" else rest.rpartition("/")
            digest = self._titles(tag.replace("/", "-"), fresh=title == "timestamp.json").get(title, "")
            if not digest:
                raise FileMissing(f"{self.address} has no {path}")
        return self._get(f"{self.base}/blobs/{digest}", offset, {})

    def _titles(self, tag: str, *, fresh: bool) -> dict[str, str]:
        """Return title to digest of the layers of the artifact `tag`."""
        if fresh or tag not in self._layers:
            import json

            data = b""
            for block in self._get(f"{self.base}/manifests/{tag}", 0, {"Accept": MANIFEST_TYPE}):
                data += block
                if len(data) > INDEX_BYTES_MAX:
                    raise ModelError(f"{self.address}:{tag} has a manifest of more than {INDEX_BYTES_MAX} bytes")
            try:
                self._layers[tag] = {each["annotations"][TITLE]: each["digest"] for each in json.loads(data)["layers"]}
            except (ValueError, KeyError, TypeError):
                raise ModelError(f"{self.address}:{tag} is no artifact with named layers") from None
        return self._layers[tag]

    def _get(self, url: str, offset: int, headers: dict[str, str]) -> Iterator[bytes]:
        try:
            yield from read_url(self._client, url, offset, headers | self._headers)
        except _Unauthorised as refused:
            self._headers = self._token(refused.challenge)
            yield from read_url(self._client, url, offset, headers | self._headers)

    def _token(self, challenge: str) -> dict[str, str]:
        """Ask for a token, as the distribution specification's token authentication has it."""
        given = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.lower().startswith("bearer ") or not given.get("realm", "").startswith("http"):
            raise ModelError(f"{self.address} wants a password; a repository that anyone may read is needed")
        asked = {key: given[key] for key in ("service", "scope") if key in given}
        try:
            answer = self._client.get(given["realm"], params=asked)
            answer.raise_for_status()
            found = answer.json()
            return {"Authorization": f"Bearer {found.get('token') or found['access_token']}"}
        except _http().TransportError as error:
            raise LinkLost(f"{given['realm']}: {error or type(error).__name__}") from None
        except (ValueError, KeyError, _http().HTTPError, _http().InvalidURL):
            raise ModelError(f"{self.address} gives no token to read it without a password") from None


class S3Repository:
    """A prefix in a bucket of S3 (extra `s3`), or of anything that speaks it (AWS_ENDPOINT_URL)."""

    def __init__(self, address: str) -> None:
        try:
            import boto3
        except ImportError:
            raise MissingDependency(f"{address} needs boto3: pip install 'vedette[s3]'") from None
        parts = urlsplit(address)
        self.address = address.rstrip("/")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._client: Any = boto3.client("s3")

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """See Repository."""
        import botocore.exceptions

        key = f"{self._prefix}/{path}".lstrip("/")
        try:
            asked = {"Range": f"bytes={offset}-"} if offset else {}
            yield from self._client.get_object(Bucket=self._bucket, Key=key, **asked)["Body"].iter_chunks(BLOCK_BYTES)
        except botocore.exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in ("NoSuchKey", "404"):
                raise FileMissing(f"{self.address} has no {path}") from None
            if code != "InvalidRange":
                raise ModelError(f"{self.address}: S3 answered {code}") from None
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError, OSError) as error:
            raise LinkLost(f"{self.address}: {error}") from None


class _Unauthorised(ModelError):
    def __init__(self, url: str, challenge: str) -> None:
        super().__init__(f"{url}: the server wants a password")
        self.challenge = challenge


def _http() -> Any:
    import httpx  # with TLS it takes 0.2 s to import, which every command would pay

    return httpx


def web_client() -> httpx.Client:
    """Return a client for `read_url`."""
    client: httpx.Client = _http().Client(follow_redirects=True, timeout=TIMEOUT_S)
    return client


def read_url(client: httpx.Client, url: str, offset: int, headers: dict[str, str]) -> Iterator[bytes]:
    """Yield what a URL has from `offset` on. Raise FileMissing, LinkLost, ModelError: refused."""
    wanted = headers | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    try:
        with client.stream("GET", url, headers=wanted) as answer:
            if answer.status_code == 404:
                raise FileMissing(f"{url}: the server answered 404 {answer.reason_phrase}")
            if answer.status_code == 401:
                raise _Unauthorised(url, answer.headers.get("WWW-Authenticate", ""))
            if answer.status_code == 416:  # nothing is left, or the file has changed: the hash decides
                return
            if answer.status_code >= 500 or answer.status_code == 429:
                raise LinkLost(f"{url}: the server answered {answer.status_code}")
            if answer.status_code not in (200, 206):
                raise ModelError(f"{url}: the server answered {answer.status_code} {answer.reason_phrase}")
            skipped = max(0, offset - _begin(answer, offset))
            for block in answer.iter_raw():
                if skipped < len(block):
                    yield block[skipped:]
                skipped = max(0, skipped - len(block))
    except _http().ConnectError as error:
        raise Unreachable(f"{url}: {_http().URL(url).host} cannot be reached ({error})") from None
    except _http().TransportError as error:
        raise LinkLost(f"{url}: {error or type(error).__name__}") from None
    except _http().InvalidURL as error:
        raise UsageError(f"{url}: {error}") from None


def _begin(answer: httpx.Response, asked: int) -> int:
    """Return where in the file an answer begins: `bytes 100-199/200` at 100 (RFC 9110, 14.4)."""
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return 0 if answer.status_code == 200 else int(found[1]) if found else asked
