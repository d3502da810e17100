"""A site as one file and its way back: whole, without secrets or with sealed ones, refused in words, proof to kills."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main
from appliance.backup import backup_file, restore
from appliance.backup.backup_file import (
    MANIFEST,
    BackupManifest,
    BackupReader,
    BackupSource,
    fill_secrets,
    hide_secrets,
    write_backup,
)
from appliance.backup.restore import RestoreTarget, apply_ready, ready_restore, stage
from appliance.base.clock import ManualClock
from appliance.base.credentials import seal, unseal
from appliance.base.errors import ConfigError, PreconditionError, UsageError, VedetteError
from appliance.config import SiteConfig, load
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.database import STEPS, Database, StoreInUse
from appliance.store.users import AccessLog, SessionStore
from appliance.types import Alert, AlertChange, BestView, Event
from tests.support.sample_rows import T0

PASSPHRASE = "correct horse battery"
SITE = """\
site: {name: depot-7}
storage: {dir: DATA}
dashboard: {token: 0123456789abcdef}
cameras:
  gate:  # the road
    url: rtsp://viewer:hunter2@192.168.1.20/main
    # password: hunter1
  dock: {url: "rtsp://viewer:${DOCK}@192.168.1.21/main"}
"""


class Box:
    """A site file and a storage folder with a database, some alerts and evidence."""

    def __init__(self, folder: Path, site: str = SITE, *, new: bool = True) -> None:
        self.path, self.root, self.clock = folder / "site.yaml", folder / "data", ManualClock(T0)
        self.db: Database | None = None
        if not new:
            return
        self.root.mkdir(parents=True)
        self.path.write_text(site.replace("DATA", str(self.root)))
        self.path.with_suffix(".secrets").write_text("DOCK=dockpass\n")
        (self.root / "keys").mkdir()
        (self.root / "keys/push.pem").write_text(f"the key of {folder.name}")

    def open(self) -> Database:
        self.db = Database(self.root / "vedette.db", self.clock)
        return self.db

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None

    def alert(self, name: str) -> None:
        """With a still, written as the core does."""
        assert self.db is not None
        event = Event(camera="gate", rule="r", kind="enter", track=1, label="person", t=T0, score=0.9,
                      box=(0, 0, 1, 1), zone="yard", severity="alert")  # fmt: skip
        best = BestView(track=1, label="person", t=T0, score=0.9, box=(0, 0, 1, 1))
        alert = Alert(camera="gate", id=name, rules=("r",), severity="alert", t_start=T0, t_end=T0 + 1, tracks=(1,),
                      labels=("person",), score=0.9, run="run", best=best)  # fmt: skip
        AlertStore(self.db).apply(AlertChange("opened", alert, event), escalation=None, priority="high")
        path = f"evidence/{name}/still.jpg"
        (self.root / path).parent.mkdir(parents=True)
        (self.root / path).write_bytes(f"still of {name}".encode())
        EvidenceStore(self.db).put(
            EvidenceRow(alert=name, kind="still", state="ready", path=path, bytes=9, sha256=name)
        )  # fmt: skip

    @property
    def alerts(self) -> set[str]:
        with sqlite3.connect(self.root / "vedette.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            return {row[0] for row in connection.execute("SELECT id FROM alert")}

    def source(self) -> BackupSource:
        return BackupSource(self.path, self.root, self.clock, {"DOCK": "dockpass"})

    def target(self) -> RestoreTarget:
        return RestoreTarget(self.path, self.root, self.clock, {})


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "box")
    made.open()
    made.alert("a1")
    yield made
    made.close()


def test_evidence_that_is_deleted_meanwhile_is_left_out_and_counted(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def check_room(folder: Path, wanted: int) -> None:
        asked.append(wanted)
        if len(asked) == 2:  # the files are listed
            (box.root / "evidence/a1/still.jpg").unlink()

    monkeypatch.setattr(backup_file, "check_room", check_room)
    path = made_by(box, tmp_path / "b.zip", evidence=True)
    with BackupReader(path) as reader:
        assert [each.path for each in reader.manifest.files] == ["site.yaml", "vedette.db"]
        assert reader.manifest.missing == 1


def made_by(box: Box, out: Path, *, evidence: bool = False, passphrase: str = "") -> Path:
    write_backup(box.source(), out, evidence=evidence, passphrase=passphrase)
    return out


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_backup_beside_a_writing_appliance_is_whole_and_without_secrets(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip", evidence=True)
    files = members(path)
    assert set(files) == {"site.yaml", "vedette.db", "evidence/a1/still.jpg", "manifest.json"}
    for name, data in files.items():
        for secret in (b"hunter2", b"hunter1", b"dockpass", b"0123456789abcdef"):
            assert secret not in data, name
    manifest = BackupManifest.model_validate_json(files["manifest.json"])
    assert manifest.hidden == ("dashboard.token", "cameras.gate.url")
    assert (manifest.alerts, manifest.secrets, manifest.evidence, manifest.missing) == (1, "hidden", True, 0)
    assert "gate:  # the road" in files["site.yaml"].decode()
    assert path.stat().st_mode & 0o077 == 0, "password hashes are in it"
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"


def test_it_comes_back_with_the_secrets_that_are_there_and_the_old_state_is_kept(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip", evidence=True)
    SessionStore(box.open() if box.db is None else box.db)
    box.alert("a2")
    before = box.db.rev() if box.db else 0
    box.path.write_text(box.path.read_text().replace("hunter2", "hunter3").replace("the road", "another road"))
    stage(box.target(), path, who="anna")
    assert box.alerts == {"a1", "a2"}, "what runs is not touched"
    with pytest.raises(StoreInUse):
        apply_ready(box.path, box.root)
    box.close()
    done = apply_ready(box.path, box.root)
    assert done is not None
    assert box.alerts == {"a1"}
    text = box.path.read_text()
    assert "# the road" in text
    assert "hunter3" in text, "the secret of now"
    assert load(box.path).dashboard.token is not None
    assert (box.root / "evidence/a1/still.jpg").read_bytes() == b"still of a1"
    assert not (box.root / "evidence/a2").exists()
    aside = box.root / done.aside
    assert (aside / "evidence/a2/still.jpg").is_file()
    assert "another road" in (aside / "site.yaml").read_text()
    with sqlite3.connect(aside / "vedette.db") as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM alert")} == {"a1", "a2"}
    database = box.open()
    assert database.rev() > before, "browsers that follow changes see those that come"
    row = AccessLog(database).newest(1)[0]
    assert (row.who, row.what, row.about.startswith("depot-7 as of 20")) == ("anna", "restored", True)
    assert apply_ready(box.path, box.root) is None, "once"
    assert not (box.root / "restore").exists()


def test_sealed_secrets_come_back_on_another_machine(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip", passphrase=PASSPHRASE)
    files = members(path)
    assert b"hunter2" not in files["sealed.json"]
    assert b"***" in files["site.yaml"]
    fresh = tmp_path / "fresh"
    (fresh / "data").mkdir(parents=True)
    target = RestoreTarget(fresh / "site.yaml", fresh / "data", box.clock, {})
    for wrong in ("", "another passphrase"):
        with pytest.raises(PreconditionError, match="passphrase"):
            stage(target, path, passphrase=wrong)
    assert ready_restore(fresh / "data") is None
    stage(target, path, passphrase=PASSPHRASE)
    apply_ready(fresh / "site.yaml", fresh / "data")
    site = load(fresh / "site.yaml")
    assert site.cameras["gate"].url == "rtsp://viewer:hunter2@192.168.1.20/main"
    assert site.cameras["dock"].url == "rtsp://viewer:dockpass@192.168.1.21/main"
    assert site.storage.dir == fresh / "data", "this machine's folder"
    key = fresh / "data/keys/push.pem"
    assert key.read_text() == "the key of box", "browsers that subscribed to it are told on"
    assert key.stat().st_mode & 0o077 == 0
    assert (fresh / "site.secrets").stat().st_mode & 0o077 == 0
    assert (fresh / "site.yaml").stat().st_mode & 0o077 == 0


def test_a_secret_that_no_secrets_file_holds_is_wanted_in_the_environment(box: Box, tmp_path: Path) -> None:
    """A PEM, or spaces at an end: written there, the appliance would not start, or sign in with another secret."""
    for value in ("line one\nline two", " dockpass"):
        source = BackupSource(box.path, box.root, box.clock, {"DOCK": value})
        write_backup(source, tmp_path / "b.zip", evidence=False, passphrase=PASSPHRASE)
        with pytest.raises(ConfigError, match="DOCK is not set"):
            stage(
                RestoreTarget(tmp_path / "new.yaml", tmp_path, box.clock, {}), tmp_path / "b.zip", passphrase=PASSPHRASE
            )
        stage(RestoreTarget(tmp_path / "new.yaml", tmp_path, box.clock, {"DOCK": value}), tmp_path / "b.zip",
              passphrase=PASSPHRASE)  # fmt: skip


def test_without_the_secrets_of_now_a_plain_backup_is_refused_with_the_keys(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip")
    (tmp_path / "data").mkdir()
    target = RestoreTarget(tmp_path / "site.yaml", tmp_path / "data", box.clock, {"DOCK": "x"})
    with pytest.raises(PreconditionError, match=r"dashboard\.token, cameras\.gate\.url"):
        stage(target, path)
    assert not (tmp_path / "site.yaml").exists()


def rebuilt(path: Path, out: Path, change: Callable[[dict[str, bytes]], object], *, listed: bool = True) -> Path:
    """The backup with its files changed; listed: with a manifest that says so."""
    files = members(path)
    change(files)
    manifest = json.loads(files.pop(MANIFEST))
    if listed:
        manifest["files"] = [
            {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        ]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(MANIFEST, json.dumps(manifest))
    return out


def newer_schema(files: dict[str, bytes]) -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.deserialize(files["vedette.db"])  # type: ignore[attr-defined]
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
        files["vedette.db"] = connection.serialize()  # type: ignore[attr-defined]


def trigger(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        with sqlite3.connect(":memory:") as connection:
            connection.deserialize(files["vedette.db"])  # type: ignore[attr-defined]
            connection.execute(f"CREATE TRIGGER {name} AFTER UPDATE ON counter BEGIN DELETE FROM user; END")
            connection.commit()
            files["vedette.db"] = connection.serialize()  # type: ignore[attr-defined]

    return change


def damaged(files: dict[str, bytes]) -> None:
    data = bytearray(files["vedette.db"])
    data[8192:] = b"\xff" * (len(data) - 8192)
    files["vedette.db"] = bytes(data)


def put(name: str, data: bytes = b"x") -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: data})


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "serialize"), reason="sqlite3 of Python 3.10 has no serialize")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (newer_schema, "newer Vedette"),
        (trigger("evil"), "not one that Vedette made"),
        (trigger("sqlite1"), "not one that Vedette made"),
        (damaged, "database"),
        (put("../../etc/passwd"), "no part of a backup"),
        (put("evidence/../../x.jpg"), "no part of a backup"),
        (put("/etc/cron.d/x"), "no part of a backup"),
        (put("evidence/a1/../../../x"), "no part of a backup"),
        (put("evidence/a1/.."), "no part of a backup"),
        (put("evidence/a1/."), "no part of a backup"),
        (put("site.secrets"), "no part of a backup"),
        (lambda files: files.pop("vedette.db"), "no site file or no database"),
        (put("site.yaml", b"cameras: {gate: {ulr: x}}"), "did you mean `url`"),
        (put("site.yaml", b"cameras: {"), "YAML"),
    ],
)  # fmt: skip
def test_what_is_no_backup_of_ours_is_refused_in_words(
    box: Box, tmp_path: Path, change: Callable[[dict[str, bytes]], object], words: str
) -> None:
    path = rebuilt(made_by(box, tmp_path / "b.zip"), tmp_path / "changed.zip", change)
    with pytest.raises(VedetteError, match=words) as refused:
        stage(box.target(), path)
    assert isinstance(refused.value, PreconditionError | ConfigError)
    assert ready_restore(box.root) is None
    assert not (box.root / "restore/staged").exists()
    assert box.alerts == {"a1"}


def test_a_changed_file_a_strange_one_and_a_bomb_are_refused(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip")

    def refuse(other: Path, words: str) -> None:
        with pytest.raises(PreconditionError, match=words):
            stage(box.target(), other)

    refuse(
        rebuilt(path, tmp_path / "1.zip", put("site.yaml", b"cameras: {}"), listed=False),
        "not what its manifest|longer",
    )
    refuse(rebuilt(path, tmp_path / "2.zip", put("evidence/a1/x.jpg"), listed=False), "not what its manifest lists")
    bomb = rebuilt(path, tmp_path / "3.zip", put("evidence/a1/x.jpg", b"\0" * 20_000_000), listed=True)
    manifest = json.loads(members(bomb)[MANIFEST])
    for item in manifest["files"]:
        if item["path"] == "evidence/a1/x.jpg":
            item["bytes"] = 100
    small = rebuilt(bomb, tmp_path / "4.zip", put(MANIFEST, json.dumps(manifest).encode()), listed=False)
    assert small.stat().st_size < 2_000_000
    refuse(small, "longer than its manifest says")
    huge = json.loads(members(path)[MANIFEST])
    huge["files"][0]["bytes"] = 1 << 39
    with pytest.raises(VedetteError, match="no room"):
        stage(box.target(), rebuilt(path, tmp_path / "5.zip", put(MANIFEST, json.dumps(huge).encode()), listed=False))


def test_a_list_of_files_that_is_too_long_is_refused_before_it_is_read(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made_by(box, tmp_path / "b.zip")
    monkeypatch.setattr(
        zipfile, "ZIP_FILECOUNT_LIMIT", 1
    )  # as with 65,536 files: the list's size is in a record of ZIP64
    long = rebuilt(path, tmp_path / "long.zip", put("evidence/a1/still.jpg"))
    whole = bytearray(long.read_bytes())
    whole[-10:-6] = bytes(4)  # the record before it counts
    long.write_bytes(whole)
    monkeypatch.setattr(backup_file, "DIRECTORY_BYTES_MAX", 100)
    with pytest.raises(PreconditionError, match="list of files is too long"):
        stage(box.target(), long)


def test_cut_short_anywhere_it_is_refused(box: Box, tmp_path: Path) -> None:
    whole = made_by(box, tmp_path / "b.zip", evidence=True).read_bytes()
    short = tmp_path / "short.zip"
    for share in (0.0, 0.01, 0.3, 0.9, 0.999):
        short.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(PreconditionError, match=r"cut short|no backup"):
            stage(box.target(), short)
    for at in range(100, len(whole), len(whole) // 12):
        short.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(PreconditionError, ConfigError):
            stage(box.target(), short)  # what does not matter, such as the time of a file, may be another
    link = tmp_path / "link.zip"
    with zipfile.ZipFile(link, "w") as archive:
        for name, data in members(tmp_path / "b.zip").items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if name == "evidence/a1/still.jpg" else 0o600) << 16
            archive.writestr(info, data)
    with pytest.raises(PreconditionError, match="no plain file"):
        stage(box.target(), link)


def test_another_site_is_refused_unless_it_is_meant(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip")
    box.path.write_text(box.path.read_text().replace("depot-7", "depot-8"))
    with pytest.raises(PreconditionError, match="site 'depot-7', and this one is 'depot-8'"):
        stage(box.target(), path)
    assert stage(box.target(), path, other_site=True).site == "depot-7"


def test_one_that_could_not_start_is_refused(box: Box, tmp_path: Path) -> None:
    open_to_all = SITE.replace("{token: 0123456789abcdef}", "{host: 0.0.0.0}")
    other = Box(tmp_path / "open", open_to_all)
    other.open()
    path = made_by(other, tmp_path / "b.zip")
    other.close()
    with pytest.raises(PreconditionError, match="Vedette would not start with it"):
        stage(box.target(), path)


def kill_at(n: int, box: Box) -> None:
    """In a child: end without a word before the n-th change of a name on the disk."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*values: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*values, **named)

        return call

    for name in ("rename", "replace", "unlink", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    apply_ready(box.path, box.root)


def test_a_kill_at_any_moment_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    model = Box(tmp_path / "model")
    model.open()
    model.alert("a1")
    path = made_by(model, tmp_path / "b.zip", evidence=True, passphrase=PASSPHRASE)
    model.alert("a2")
    # What is there now names no ${DOCK}: the restored file needs the restored secrets.
    model.path.write_text(model.path.read_text().replace("the road", "another road").replace("${DOCK}", "literal"))
    model.path.with_suffix(".secrets").write_text("OTHER=x\n")
    (model.root / "keys/push.pem").write_text("newer")
    stage(model.target(), path, passphrase=PASSPHRASE)
    # With the log beside the database, as the kill of an appliance leaves them.
    killed = shutil.copytree(tmp_path / "model", tmp_path / "killed")
    model.close()
    kills, fork = 0, multiprocessing.get_context("fork")
    while True:
        shutil.copytree(killed, tmp_path / f"box{kills}")
        box = Box(tmp_path / f"box{kills}", new=False)
        child = fork.Process(target=kill_at, args=(kills + 1, box))
        child.start()
        try:
            child.join(60)
            assert child.exitcode in (0, -signal.SIGKILL)
        finally:
            child.kill()  # one that hangs would be waited for at the end of this process, too
        assert load(box.path), "a start reads the site file before it goes on with the restore"
        apply_ready(box.path, box.root)
        assert box.alerts == {"a1"}
        assert {each.name for each in (box.root / "evidence").iterdir()} == {"a1"}
        [aside] = box.root.glob("before-restore-*")
        with sqlite3.connect(aside / "vedette.db") as connection:
            assert {row[0] for row in connection.execute("SELECT id FROM alert")} == {"a1", "a2"}
        assert load(box.path).cameras["gate"].url.endswith("/main")
        assert [(each / "keys/push.pem").read_text() for each in (box.root, aside)] == ["the key of model", "newer"]
        assert "# the road" in box.path.read_text()
        assert "# another road" in (aside / "site.yaml").read_text()
        assert ready_restore(box.root) is None
        if child.exitcode == 0:
            break
        kills += 1
    assert kills > 8


def test_what_a_kill_left_half_before_it_was_ready_is_nothing(box: Box, tmp_path: Path) -> None:
    stage(box.target(), made_by(box, tmp_path / "b.zip"))
    (box.root / "restore/ready.json").unlink()
    box.close()
    assert apply_ready(box.path, box.root) is None
    assert not (box.root / "restore").exists()
    assert box.alerts == {"a1"}
    assert not list(box.root.glob("before-restore-*"))


def test_two_states_before_are_kept(box: Box, tmp_path: Path) -> None:
    path = made_by(box, tmp_path / "b.zip", evidence=True)
    box.close()
    for pause_s in (60, 60, 0):  # twice in one second, too
        box.clock.advance(pause_s)
        stage(box.target(), path)
        apply_ready(box.path, box.root)
    assert len(list(box.root.glob("before-restore-*"))) == restore.ASIDE_KEPT


def test_nobody_is_signed_in_by_a_restore(box: Box, tmp_path: Path) -> None:
    assert box.db is not None
    with box.db.transaction() as connection:
        connection.execute("INSERT INTO session (id, created_t, expires_t) VALUES ('s', 0, 9e9)")
    path = made_by(box, tmp_path / "b.zip")
    stage(box.target(), path)
    box.close()
    apply_ready(box.path, box.root)
    with sqlite3.connect(box.root / "vedette.db") as connection:
        assert connection.execute("SELECT count(*) FROM session").fetchone()[0] == 0


def test_a_box_opens_by_its_passphrase_alone() -> None:
    box = seal(b"geheim", PASSPHRASE)
    assert unseal(box, PASSPHRASE) == b"geheim"
    values = json.loads(box)
    for change in ({"n": 2**30}, {"n": 1000}, {"n": float("inf")}, {"box": values["salt"]}, {"salt": 7}):
        with pytest.raises(PreconditionError):
            unseal(json.dumps(values | change).encode(), PASSPHRASE)
    with pytest.raises(UsageError, match="10 characters"):
        seal(b"", "short")


def test_secrets_are_hidden_key_by_key_and_filled_in_again() -> None:
    shown, hidden = hide_secrets(SITE)
    assert hidden == ("dashboard.token", "cameras.gate.url")
    assert "${DOCK}" in shown, "a name is no secret"
    assert "hunter" not in shown
    filled = fill_secrets(shown, SITE)
    assert yaml.safe_load(filled) == yaml.safe_load(SITE)
    assert "gate:  # the road" in filled


def test_a_secret_in_a_comment_behind_a_value_is_hidden_too_and_values_stay() -> None:
    text = "site: {name: 'a #1'}  # token: hunter4\nnote: 'x # password: kept'\nport: 1 # password: hunter3\n"
    shown, hidden = hide_secrets(text)
    assert (yaml.safe_load(shown), hidden) == (yaml.safe_load(text), ())
    assert "hunter" not in shown
    assert "x # password: kept" in shown


def test_the_commands_make_and_restore_one(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.zip"
    words = ["--config", str(box.path)]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSPHRASE}\n"))
    assert main(["backup", *words, "--out", str(out), "--secrets", "--evidence"]) == 0
    assert main(["backup", *words, "--out", str(out)]) == 2, "it writes over nothing"
    box.alert("a2")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSPHRASE}\n"))
    assert main(["restore", str(out), *words]) == 0
    assert "Vedette runs: restart it" in capsys.readouterr().out
    assert box.alerts == {"a1", "a2"}
    box.close()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSPHRASE}\n"))
    assert main(["restore", str(out), *words]) == 0
    assert box.alerts == {"a1"}
    with BackupReader(out) as reader:
        assert reader.manifest.alerts == 1
    box.path.write_text("cameras: {")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSPHRASE}\n" * 2))
    assert main(["restore", str(out), *words]) == 2
    assert main(["restore", str(out), *words, "--storage", str(box.root)]) == 0
    assert load(box.path).site.name == "depot-7", "a broken site file is a reason to restore"


def test_a_start_begins_with_what_lies_ready(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box.path.write_text(box.path.read_text() + "alerts: {merge_s: 3}\n")
    path = made_by(box, tmp_path / "b.zip")
    box.path.write_text(box.path.read_text().replace("merge_s: 3", "merge_s: 5"))
    box.alert("a2")
    stage(box.target(), path)
    box.close()
    begun: list[tuple[set[str], float]] = []

    def run(config: SiteConfig, site_file: Path) -> int:
        begun.append((box.alerts, config.alerts.merge_s))
        return 0

    monkeypatch.setattr("appliance.core.app.run", run)
    assert main(["run", "--config", str(box.path)]) == 0
    assert begun == [({"a1"}, 3)]
