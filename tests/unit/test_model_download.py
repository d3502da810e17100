"""`vedette models`: a network is here whole and as promised, or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from appliance.__main__ import main
from appliance.base.clock import ManualClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.manifest import ModelEntry, sha256_of
from appliance.detect.model_download import ModelDownload, part_file
from appliance.detect.model_files import find_model, model_bundles
from tests.servers.file_server import FileServer, file_server

CONTENT = bytes(range(256)) * 4000  # a megabyte
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "yard.onnx"
MANIFEST = f"""
[yard]
file = "{NAME}"
url = "https://example.org/{NAME}"
sha256 = "{SHA256}"
bytes = {len(CONTENT)}
licence = "Apache-2.0"
labels = ["person"]
head = "yolox"
input = [416, 416]
note = "finds people in yards"
"""


def bundle(**other: object) -> ModelEntry:
    known = {"file": NAME, "url": "", "sha256": SHA256, "licence": "MIT", "labels": ("person",), "input": (416, 416)}
    return ModelEntry.model_validate({"bytes": len(CONTENT), **known, **other})


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server({NAME: CONTENT}) as state:
        yield state


def download(folder: Path, progress: list[tuple[int, int]] | None = None) -> ModelDownload:
    seen = [] if progress is None else progress
    return ModelDownload(folder, lambda done, whole: seen.append((done, whole)), ManualClock())


def test_a_file_is_downloaded_with_progress_and_only_once(server: FileServer, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    path = download(tmp_path / "models", progress).pull(bundle(), f"{server.url}/{NAME}")
    assert path.read_bytes() == CONTENT
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert [each.name for each in path.parent.iterdir()] == [NAME]
    download(path.parent).pull(bundle(), f"{server.url}/{NAME}")
    assert len(server.requests) == 1


def test_a_broken_connection_goes_on_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [300_000, 300_000]
    path = download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert path.read_bytes() == CONTENT
    starts = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for _, asked in server.requests]
    assert starts == [0, 300_000, 600_000]


def test_a_server_that_cannot_be_reached_is_named_soon_with_another_way(tmp_path: Path) -> None:
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(ModelError, match=r"127\.0\.0\.1 cannot be reached .*--mirror https://"):
        ModelDownload(tmp_path, clock=clock).pull(bundle(), f"http://127.0.0.1:1/{NAME}")
    assert clock.monotonic() - began < 3
    assert not list(tmp_path.iterdir()), "nothing to go on from is left"


def test_a_later_command_goes_on_too(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = [400_000, 0, 0, 0, 0, 0]
    with pytest.raises(ModelError, match="400000 bytes are kept, the same command goes on from there"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert not (tmp_path / NAME).exists()
    server.cut_after = []
    download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert server.requests[-1] == (f"/{NAME}", "bytes=400000-")
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_it_all_again(server: FileServer, tmp_path: Path) -> None:
    server.ranges, server.cut_after = False, [300_000]
    assert download(tmp_path).pull(bundle(), f"{server.url}/{NAME}").read_bytes() == CONTENT


def test_a_file_that_is_not_the_promised_one_is_not_installed(server: FileServer, tmp_path: Path) -> None:
    server.files[NAME] = CONTENT[:-1] + b"x"
    with pytest.raises(ModelError, match="nothing was installed"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_version_is_never_continued(server: FileServer, tmp_path: Path) -> None:
    part_file(tmp_path, bundle(sha256="0" * 64)).write_bytes(b"older")
    assert download(tmp_path).pull(bundle(), f"{server.url}/{NAME}").read_bytes() == CONTENT
    assert server.requests == [(f"/{NAME}", "")]


def test_a_part_that_was_spoilt_is_thrown_away(server: FileServer, tmp_path: Path) -> None:
    part_file(tmp_path, bundle()).write_bytes(b"x" * 1000)
    with pytest.raises(ModelError, match="nothing was installed"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert download(tmp_path).pull(bundle(), f"{server.url}/{NAME}").read_bytes() == CONTENT


def test_more_bytes_than_promised_are_refused(server: FileServer, tmp_path: Path) -> None:
    server.files[NAME] = CONTENT * 2
    with pytest.raises(ModelError, match=f"more than the {len(CONTENT)} bytes of {NAME}"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_refuses_is_named_with_its_answer(server: FileServer, tmp_path: Path, status: int) -> None:
    server.status = status
    with pytest.raises(ModelError, match=f"{server.url}/{NAME}: the server answered {status}"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")


def test_a_folder_that_cannot_be_written_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match=r"cannot be written.*--to or \$VEDETTE_MODELS"):
        download(tmp_path / "file").pull(bundle(), f"{server.url}/{NAME}")


def test_a_full_disk_is_told_before_the_download(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10 << 20})())
    with pytest.raises(PreconditionError, match="has 10 MiB left"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert not part_file(tmp_path, bundle()).exists()


def test_two_at_a_time_are_refused(server: FileServer, tmp_path: Path) -> None:
    first = download(tmp_path)
    with first._part(bundle()), pytest.raises(PreconditionError, match="being pulled by another process"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")


def test_one_that_is_installed_between_the_opening_and_the_lock_of_another_is_not_that_one_s(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, part = fcntl.flock, part_file(tmp_path, bundle())
    part.write_bytes(CONTENT)

    def late(file: BinaryIO, how: int) -> None:
        part.replace(tmp_path / NAME)
        lock(file, how)

    monkeypatch.setattr("fcntl.flock", late)
    with pytest.raises(PreconditionError, match="being pulled by another process"):
        download(tmp_path).pull(bundle(), f"{server.url}/{NAME}")
    assert (tmp_path / NAME).read_bytes() == CONTENT


KILLED = """
import os, signal, sys
from pathlib import Path
from appliance.detect.model_download import ModelDownload
from appliance.detect.model_files import ModelEntry
bundle = ModelEntry.model_validate_json(sys.argv[1])
def die(done, whole):
    if done > 500_000:
        os.kill(os.getpid(), signal.SIGKILL)
ModelDownload(Path(sys.argv[2]), die).pull(bundle, sys.argv[3])
"""


def test_a_kill_leaves_no_half_installed_file(server: FileServer, tmp_path: Path) -> None:
    url = f"{server.url}/{NAME}"
    done = subprocess.run([sys.executable, "-c", KILLED, bundle().model_dump_json(), str(tmp_path), url], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / NAME).exists()
    assert download(tmp_path).pull(bundle(), url).read_bytes() == CONTENT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that knows one network more, and has it not."""
    (tmp_path / "models.toml").write_text(MANIFEST)
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path))
    monkeypatch.chdir(os.sep)
    return tmp_path


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    assert main(["models", "list", "--json"]) == 0
    return {each["name"]: each["state"] for each in json.loads(capsys.readouterr().out)}


def test_from_the_list_to_a_network_that_loads(
    server: FileServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (states(capsys)["yard"], states(capsys)["vedette-nano"]) == ("absent", "bundled")
    assert main(["models", "pull", "yard", "--mirror", f"{server.url}/"]) == 0
    assert f"yard: {folder / NAME} (Apache-2.0" in capsys.readouterr().out
    assert states(capsys)["yard"] == "ready"
    assert main(["models", "verify", "yard"]) == 0
    assert find_model("yard").path == folder / NAME


def test_a_damaged_file_is_told_with_the_cure(
    server: FileServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / NAME).write_bytes(b"damaged")
    assert states(capsys)["yard"] == "damaged"
    assert main(["models", "verify"]) == 1
    assert "delete the file, then: vedette models pull yard" in capsys.readouterr().out


def test_the_list_says_what_a_person_wants_to_know(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    listed = capsys.readouterr().out
    for text in ("yard", "not here", "1.0 MB", "finds people in yards"):
        assert text in listed
    assert "vedette models pull NAME" in listed


def test_an_unknown_name_is_answered_with_the_known_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "yrad"]) == 2
    assert re.search("no model `yrad`.*yard", capsys.readouterr().err)
    assert main(["models", "verify", "yrad"]) == 2


def test_what_comes_with_vedette_needs_no_download(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "vedette-nano", "--json"]) == 0
    (pulled,) = json.loads(capsys.readouterr().out)
    assert Path(pulled["path"]).is_file()


def test_every_network_of_the_repository_names_its_licence_size_and_pinned_source() -> None:
    from appliance.detect.model_files import model_bundles

    for name, each in model_bundles().items():
        assert (bool(each.licence), each.bytes > 0) == (True, True), name
        if each.url:
            assert any(len(part) == 40 and set(part) <= set("0123456789abcdef") for part in each.url.split("/")), name


@pytest.mark.shared
def test_the_catalogue_s_hashes_are_those_of_the_reference_networks(shared_data: Path) -> None:
    from appliance.detect.model_files import model_bundles

    compared = 0
    for name, each in model_bundles().items():
        file = shared_data / "models" / each.file
        if each.url and file.is_file():
            assert (sha256_of(file), file.stat().st_size) == (each.sha256, each.bytes), name
            compared += 1
    assert compared >= 3


def test_the_size_of_every_network_that_is_downloaded_is_known() -> None:
    assert [name for name, each in model_bundles().items() if each.url and not each.bytes] == []
