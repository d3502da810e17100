"""What the command line refuses, and how: nothing is lost, nothing hangs, machines are told in JSON."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from importlib.machinery import ModuleSpec
from pathlib import Path

import av
import pytest

from appliance.__main__ import main
from appliance.base import command_exit
from appliance.base.command_exit import CommandParser
from appliance.base.errors import UsageError
from appliance.base.local_files import check_output
from appliance.replay.footage import ClipSource
from appliance.settings.site_editor import first_site_file
from cloud_worker.__main__ import main as worker

LOG = re.compile(rb'\{"type": ?"header"')


class _Ascii(io.TextIOWrapper):
    """Standard output of a machine that knows no other letters."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")


def _ends(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_a_name_that_is_empty_is_not_the_present_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ends(["replay", ""]) == 2
    assert "the name is empty" in capsys.readouterr().err
    assert _ends(["check", ""]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["replay", "--json"], 2, "say what to replay"),  # an error of the command
        (["replay", "gone.mp4", "--json", "--model", "builtin:hog"], 1, "gone.mp4 cannot be read"),  # of the footage
        (["bench", "--json", "--seconds", "nan"], 2, "`nan` is no length in seconds"),  # of the grammar
        (["check", "gone.yaml", "--json"], 2, "no such file"),  # of the file
    ],
)
def test_with_json_a_fault_is_one_object_on_standard_output(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(arguments) == code
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert not said["ok"]
    assert words in said["problems"][0]
    assert words in err


def test_both_programs_say_their_version(capsys: pytest.CaptureFixture[str]) -> None:
    for program, name in ((main, "vedette"), (worker, "vedette-worker")):
        with pytest.raises(SystemExit, match=r"^0$"):
            program(["--version"])
        assert re.fullmatch(rf"{name} \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_the_worker_says_its_faults_in_json_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker(["check", "--json", "--config", str(tmp_path / "gone.yaml")]) == 2
    assert json.loads(capsys.readouterr().out)["problems"] == ["no such file"]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1001", "9" * 30])
def test_the_worker_counts_dead_letters_in_whole_numbers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worker(["dead-letters", "list", "--config", "w.yaml", "--count", text])
    assert "write a whole number from 1 to 1000" in capsys.readouterr().err


def test_a_disk_that_refuses_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(**_: object) -> int:
        raise PermissionError(13, "Permission denied", "/var/lib/x")

    monkeypatch.setattr("appliance.cli.models_command.list_command", refuse)
    assert main(["models", "list"]) == 1
    assert capsys.readouterr().err == "vedette: /var/lib/x: Permission denied\n"


class _FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_an_output_that_takes_nothing_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", _FullDisk())
    assert main(["models", "list", "--json"]) == 1
    assert "the output cannot be written: No space left on device" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_ends_help_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        assert main(["models", "list", "--json"]) == command_exit.CLOSED_PIPE
        assert _ends(["--help"]) in (0, command_exit.CLOSED_PIPE)


def test_what_the_terminal_cannot_show_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    out = _Ascii()
    monkeypatch.setattr(sys, "stdout", out)

    def run() -> int:
        print("tür \udcff")
        return 0

    assert command_exit.run_to_end(run) == 0
    assert out.buffer.getvalue() == b"t\\xfcr \\udcff\n"  # type: ignore[attr-defined]


def test_ctrl_c_while_it_loads_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            if name == "appliance.cli.appliance_options":
                raise KeyboardInterrupt
            return None

    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "appliance.cli.appliance_options", raising=False)
    assert main() == command_exit.INTERRUPTED


def test_what_is_no_replay_log_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = tmp_path / "door.mp4"
    clip.write_bytes(b"the only copy")
    assert _ends(["replay", str(clip), "--log", str(clip), "--model", "builtin:hog"]) == 2
    assert "is there and is not a replay log" in capsys.readouterr().err
    assert clip.read_bytes() == b"the only copy"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clip.mp4", "is there and is not a replay log"),
        ("folder", "is a folder"),
        ("absent/log.jsonl", "there is no folder"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_refuses_an_output_before_the_work_is_done(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"footage")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match=words):
        check_output(tmp_path / name, "a replay log", LOG)


def test_writes_over_its_own_kind_and_into_devices(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_bytes(b'{"type":"header","schema":1}\n')
    (tmp_path / "empty.jsonl").touch()
    for path in (tmp_path / "old.jsonl", tmp_path / "empty.jsonl", tmp_path / "new.jsonl", Path("/dev/null")):
        check_output(path, "a replay log", LOG)


def test_a_pipe_is_no_site_file_and_no_clip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["check", str(tmp_path / "pipe")]) == 2
    assert "a pipe or a device" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "pipe"), "--model", "builtin:hog"]) == 1
    assert "is a pipe or a device, not a file" in capsys.readouterr().err


def test_a_log_without_end_is_refused_at_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "diff", "/dev/zero", "/dev/zero"]) == 2
    assert "line 1 is over" in capsys.readouterr().err


def test_a_cameras_address_is_no_clip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "rtsp://viewer:hunter2@10.0.0.5/main"]) == 2
    said = capsys.readouterr().err
    assert "rtsp://10.0.0.5/… is an address" in said
    assert "hunter2" not in said


def _clip(path: Path, first_pts: int = 0) -> Path:
    """Six frames, ten a second; the first at `first_pts` tenths of a second."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(6):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts, frame.time_base = first_pts + n, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def _played(path: Path) -> ClipSource:
    source = ClipSource(path, "gate")
    assert sum(1 for _ in source.play()) >= 6
    return source


def test_a_clip_whose_time_begins_late_is_whole(tmp_path: Path) -> None:
    source = _played(_clip(tmp_path / "late.mkv", first_pts=10_000_000))
    assert source.error is None
    assert source.length_s is not None
    assert source.length_s < 1


def test_a_stream_whose_time_goes_back_is_not_called_short(tmp_path: Path) -> None:
    late, early = _clip(tmp_path / "late.ts", first_pts=100_000), _clip(tmp_path / "early.ts")
    (tmp_path / "both.ts").write_bytes(late.read_bytes() + early.read_bytes())
    source = _played(tmp_path / "both.ts")
    assert source.error is None
    assert source.counts.jumps == 1


def test_a_name_that_is_not_text_is_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = _clip(tmp_path / "door.mp4").rename(os.fsdecode(bytes(tmp_path) + b"/d\xff.mp4"))
    assert main(["replay", str(clip), "--model", "builtin:hog", "--json", "--log", str(tmp_path / "log.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["clip"] == "d\\udcff.mp4"


def test_check_says_what_is_no_address_without_asking_anybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("rtsp://", "rtsp://a:99999/x", "rtsp://a:b/x", "rtsp://[::1/x", "rtsp://u:p/q@h/x")
    cameras = "".join(f"  c{number}: {{url: '{url}'}}\n" for number, url in enumerate((*wrong, "rtsp://[::1]:554/x")))
    site = tmp_path / "site.yaml"
    site.write_text(f"storage: {{dir: {tmp_path}}}\ndetector: {{model: 'builtin:hog'}}\ncameras:\n{cameras}")
    assert main(["check", "--no-probe", "--json", str(site)]) == 2
    found = json.loads(capsys.readouterr().out)["findings"]
    said = [each["about"] for each in found if "is not an address like rtsp://host:554/path" in each["text"]]
    assert said == [f"cameras.c{number}.url" for number in range(len(wrong))]


def test_check_warns_of_a_password_that_ends_the_host_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        f"storage: {{dir: {tmp_path}}}\ndetector: {{model: 'builtin:hog'}}\n"
        "cameras: {a: {url: 'rtsp://u:p@s/w#rd@10.0.0.9/main'}, b: {url: 'rtsp://u:p@s@10.0.0.9/main'}}\n"
    )
    assert main(["check", "--no-probe", "--json", str(site)]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    said = [(each["about"], each["level"]) for each in found if "write / as %2F" in each["text"]]
    assert said == [("cameras.a.url", "warning")]


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        ("chek site.yaml", "usage: vedette [-h]", "invalid choice: 'chek'; did you mean `check`?"),
        ("export --format coko", "usage: vedette export", "invalid choice: 'coko'; did you mean `coco`?"),
        ("check --config site.yaml", "usage: vedette check", "unrecognized arguments: --config"),
    ],
)
def test_wrong_use_is_told_with_the_usage_and_the_nearest_word(
    words: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith(usage)
    assert said in told


def test_the_nearest_word_may_have_any_characters(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="vedette")
    parser.add_argument("--size", choices=("500 m", "2.2b", "7.1b"))
    assert parser.parse_args(["--size", "500 m"]).size == "500 m"
    for wrong, near in (("2.2", "2.2b"), ("500m", "500 m")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--size", wrong])
        assert f"argument --size: invalid choice: '{wrong}'; did you mean `{near}`?" in capsys.readouterr().err


def _site(folder: Path) -> str:
    path = folder / "site.yaml"
    path.write_text(f"storage: {{dir: {folder / 'store'}}}\ndetector: {{model: 'builtin:hog'}}\ncameras: {{}}\n")
    return str(path)


def test_check_says_that_the_database_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = _site(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "vedette.db").write_bytes(b"garbage" * 1000)
    assert main(["check", "--no-probe", "--json", site]) == 2
    found = {each["about"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert found["storage"]["level"] == "wrong"
    assert "not a Vedette database" in found["storage"]["text"]


@pytest.mark.parametrize("words", [["list"], ["remove", "anna"], ["passwd", "anna"]])
def test_who_asks_for_users_makes_no_database(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["users", *words, "--config", _site(tmp_path)]) == 2
    assert "storage.dir counts from another folder" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_restore_names_what_is_no_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    site = _site(tmp_path)
    for name in ("gone.zip", "pipe", ""):
        assert main(["restore", str(tmp_path / name), "--config", site]) == 2
        assert f"{tmp_path / name} is not there, or is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("listen", ["no-such-host.invalid", "203.0.113.9:8080", "127.0.0.1:99999"])
def test_a_first_run_at_a_wrong_address_leaves_no_site_file(listen: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was written"):
        first_site_file(tmp_path / "site.yaml", listen)
    assert not (tmp_path / "site.yaml").exists()


def test_a_model_that_is_not_there_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nope", "--json"]) == 2
    assert "there is no model `nope`" in json.loads(capsys.readouterr().out)["problems"][0]


def test_a_mirror_is_a_web_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "yolox-nano", "--mirror", "file:///etc"]) == 2
    assert "must begin with http:// or https://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("mot", "a,b,c,d,e,f", "line 1 is not a row of numbers"),
        ("cvat", "<annotations><track><box/></track></annotations>", "'xtl' is missing"),
        ("coco", "[" * 100_000, "not a file of coco truth"),
    ],
)
def test_a_truth_that_is_none_is_said_before_the_footage_is_played(
    kind: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"is not read")
    (tmp_path / "truth").write_text(text)
    scenario = tmp_path / "s.scenario.yaml"
    scenario.write_text(
        "clip: clip.mp4\ncameras: {g: {zones: {z: [[0,0],[1,0],[1,1]]}, rules: [{name: r, kind: enter, zone: z}]}}\n"
        f"others: never\ntruth: {{{kind}: truth, classes: {{1: person}}}}\n"
    )
    assert main(["scenario", "run", str(scenario), "--model", "builtin:hog"]) == 2
    said = capsys.readouterr().err
    assert "line 4: truth." in said
    assert words in said


@pytest.mark.parametrize("url", ["nats://", "nats://hub:99999", "nats://hub:x", "tls://[::1"])
def test_a_broker_without_host_or_port_is_refused_in_the_file(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(f"engine: {{kind: redetect}}\nnats: {{url: '{url}'}}\n")
    assert worker(["check", "--config", str(path)]) == 2
    assert "line 2: nats.url: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "."],
        ["run", "--config", "/"],
        ["egress", "--config", "."],
        ["evaluate", "builtin:hog", "--clip", "."],
    ],
)
def test_a_folder_without_a_name_is_no_file(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _ends(words) == 2
    assert re.search(r"a folder: name the file in it|no such clip", capsys.readouterr().err)


def test_diagnostics_of_a_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.zip"
    assert _ends(["diagnostics", "--config", ".", "--storage", str(tmp_path), "--out", str(out)]) == 2
    assert "a folder: name the file in it" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("closed", ["<&- >&-", ">&- 2>&-", "2>&-"])
def test_a_closed_standard_stream_ends_no_command(closed: str, tmp_path: Path) -> None:
    out = tmp_path / "d.zip"
    words = [sys.executable, "-m", "appliance", "diagnostics", "--config", _site(tmp_path), "--out", str(out)]
    done = subprocess.run(f"{shlex.join(words)} {closed}", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert out.stat().st_size > 0


def test_a_fault_stays_off_standard_output_where_standard_error_is_closed(tmp_path: Path) -> None:
    words = shlex.join([sys.executable, "-m", "appliance", "check", "--json", str(tmp_path / "gone.yaml")])
    done = subprocess.run(f"{words} 2>&-", shell=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["problems"] == ["no such file"]


@pytest.mark.parametrize("line", ["", "\n"])
def test_a_backup_with_secrets_is_not_made_without_a_passphrase(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(line))
    out = tmp_path / "b.zip"
    assert _ends(["backup", "--config", _site(tmp_path), "--out", str(out), "--secrets"]) == 2
    assert "no passphrase came" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("config", "storage", "words"),
    [("site.yaml", "new", "is no backup"), ("folder", "new", "is a folder"), ("site.yaml", "b.zip", "is a file")],
)
def test_a_restore_that_is_refused_makes_no_folder(
    config: str, storage: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.zip").write_bytes(b"garbage")
    place = ["--config", str(tmp_path / config), "--storage", str(tmp_path / storage)]
    assert _ends(["restore", str(tmp_path / "b.zip"), *place]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_address_to_listen_at_is_not_ignored_beside_a_site_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(["run", "--config", _site(tmp_path), "--listen", "0.0.0.0"]) == 2
    assert "set dashboard.host in" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "keys", [("credentials",), ("nkey",), ("tls_ca",), ("tls_cert",), ("tls_cert", "tls_key")], ids=" ".join
)
def test_check_names_the_files_of_the_uplink_that_cannot_be_read(
    keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Path(_site(tmp_path))
    files = "".join(f", {key}: {tmp_path / key}" for key in keys)
    site.write_text(f"{site.read_text()}uplink: {{url: 'tls://127.0.0.1:4222'{files}}}\n")
    assert main(["check", "--no-probe", "--json", str(site)]) == 2
    said = json.loads(capsys.readouterr().out)["problems"]
    assert said == [f"uplink.{key}: {tmp_path / key} is no file that this user can read" for key in keys]
