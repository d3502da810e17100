"""Finds the files that pages are made of, and serves scripts, styles and pictures at addresses that change with them.

The addresses change with the content, so that browsers cache it. A program adds its own folder to this package's: each
has `static`, `templates` and `translations`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from markupsafe import Markup
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

BASE = "page.js"  # of every page
_YEAR_S = 365 * 86400  # the most that RFC 9111's readers are used to
# Lines that hold only a comment (`// …`, or `/* … */`, which has the types for tsc), and comments after code. One that
# holds a quotation mark stays there: it could be the end of a string.
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)
_COMMENT = re.compile(r"""^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$|(?<=[;,{}()]) // [^"'`\n]*$""", re.MULTILINE)
_IMPORT = re.compile(r'^import .*?"\./([\w.]+)";$', re.MULTILINE)


@cache
def version() -> str:
    """Return the digest of all of them, taken when this process began."""
    found = sha256()
    for file in files("static"):
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"v-{found.hexdigest()[:12]}"


@cache
def _imports() -> Mapping[str, tuple[str, ...]]:
    return {file.name: tuple(_IMPORT.findall(file.read_text(encoding="utf-8"))) for file in files("static", "*.js")}


@cache
def without_comments(name: str) -> bytes:
    """Return a script or style as browsers get it: without comments and indentation; lines keep their numbers."""
    text = file_of("static", name).read_text(encoding="utf-8")
    bare = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    return _INDENTATION.sub("", bare).encode()


@cache
def compressed(content: bytes) -> bytes:
    """Return content that is the same for everybody, compressed once: pages, which hold secrets, never are (BREACH)."""
    return gzip.compress(content, mtime=0)


def negotiated(content: bytes, accepted: str, headers: Mapping[str, str]) -> Response:
    """Return a script or style, compressed where the browser accepts it. headers: its own, with a type and ETag."""
    headers = {**headers, "vary": "Accept-Encoding"}
    if "gzip" not in accepted.lower():
        return Response(content, headers=headers)
    tag = "W/" + headers["etag"].removeprefix("W/")  # the same content in other bytes
    return Response(compressed(content), headers={**headers, "etag": tag, "content-encoding": "gzip"})


def asset(name: str) -> str:
    """Where a file of `static` is. Modules that it imports are beside it, in the same version."""
    return f"/static/{version()}/{name}"


def scripts(*names: str) -> Markup:
    """Elements that load these modules, and what they import in the same moment: not wave after wave."""
    known = () if BASE in names else (BASE, *imported(BASE))
    early = dict.fromkeys(each for name in names for each in imported(name) if each not in (*names, *known))
    preloads = (Markup('<link rel="modulepreload" href="{}">').format(asset(each)) for each in early)
    modules = (Markup('<script type="module" src="{}"></script>').format(asset(each)) for each in names)
    return Markup("").join((*preloads, *modules))


def imported(name: str) -> Iterator[str]:
    """All modules that a module needs, however far away. Raises KeyError for one that is not there."""
    found, waiting = {name}, [name]
    while waiting:
        new = [each for each in _imports()[waiting.pop()] if each not in found]
        found.update(new)
        waiting += new
        yield from new


class AssetFiles(StaticFiles):
    """The files, under the version that they have now for a year, under any other to be asked for again each time.

    A page that was open while the appliance was updated asks for an older version: it gets what there is.
    """

    def __init__(self) -> None:
        super().__init__(check_dir=False)
        self.all_directories = [*folders("static")]

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file. Raises HTTPException."""
        first, _, rest = path.partition("/")
        name = rest if first.startswith("v-") else path
        answer = await super().get_response(name, scope)
        if answer.status_code == 200 and name.endswith((".js", ".css")):
            kept = {key: answer.headers[key] for key in ("content-type", "etag", "last-modified")}
            answer = negotiated(without_comments(name), Headers(scope=scope).get("accept-encoding", ""), kept)
        if first == version():
            answer.headers["Cache-Control"] = f"max-age={_YEAR_S}, immutable"
        return answer


_FOLDERS = [Path(__file__).parent]


def add_folder(folder: Path) -> None:
    """Add the folder of a program, which has `static`, `templates` and `translations`. Call it before the first use."""
    _FOLDERS.append(folder)


def folders(kind: str) -> list[Path]:
    """Return the folders of a kind (`static`, `templates`, `translations`), this package's first."""
    return [folder / kind for folder in _FOLDERS]


def files(kind: str, pattern: str = "*") -> Iterator[Path]:
    """Yield the files of a kind that match the pattern, sorted within each folder."""
    for folder in folders(kind):
        yield from sorted(file for file in folder.rglob(pattern) if file.is_file())


def file_of(kind: str, name: str) -> Path:
    """Return the path of a file by its name. Raise KeyError if no folder has it."""
    for folder in folders(kind):
        if (folder / name).is_file():
            return folder / name
    raise KeyError(name)
