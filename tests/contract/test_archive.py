"""The archive against a real S3 server: what is kept, what is verified, and that nobody ever waits for it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

pytest.importorskip("moto.server", reason="moto[server] is a development dependency")

from appliance import wire
from appliance.base.clock import Clock, ManualClock, SystemClock
from appliance.base.errors import UsageError
from cloud_worker.__main__ import main as worker_main
from cloud_worker.archive import KNOWN_S, WAITING_BYTES_MAX, NotStored, S3Archive, keys_of_receipt
from cloud_worker.config import ArchiveConfig as ArchiveSettings
from cloud_worker.evidence import IN_PROCESS, EvidenceFile
from cloud_worker.judge import EVIDENCE_BYTES_MAX, JudgeCase
from tests.servers.s3 import BUCKET, KEY, SECRET, S3Server, s3_server
from tests.servers.site import evidence_image, ref_of
from tests.support.waiting import until

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as made:
        yield made


@pytest.fixture
def store(server: S3Server) -> S3Server:
    """Empty."""
    for key in list(server.keys()):
        server.client().delete_object(Bucket=BUCKET, Key=key)
    return server


def archive(url: str, counted: Counter[str], clock: Clock | None = None, **changes: Any) -> S3Archive:
    settings = {
        "bucket": BUCKET, "url": url, "access_key": SecretStr(KEY), "secret_key": SecretStr(SECRET), "timeout_s": 2.0,
        "keep_days": 14,
    }  # fmt: skip
    config = ArchiveSettings(**{**settings, **changes})
    return S3Archive(config, clock or SystemClock(), lambda result: counted.update([result]))


def case(*pictures: bytes) -> tuple[JudgeCase, wire.Verdict]:
    escalation = wire.Escalation(
        id="esc-1", site="depot-7", camera="gate", alert="a", rule="r", kind="enter", label="person", severity="alert",
        t=0, created_t=0,
    )  # fmt: skip
    verdict = wire.Verdict(
        escalation="esc-1", site="depot-7", alert="a", decision="confirmed", reason="A person.", kind="vlm", engine="e",
        model="m", seconds=0.1, judged_t=1_767_225_600.0, step=1,
    )  # fmt: skip
    shown = tuple(EvidenceFile(ref_of(data), data) for data in pictures)
    return JudgeCase(escalation=escalation, files=shown, decoder=IN_PROCESS), verdict


def test_evidence_and_verdict_are_kept_with_hash_and_tags(store: S3Server) -> None:
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted)
    question, verdict = case(evidence_image(1), evidence_image(2))
    links = kept.links(question, verdict)
    kept.put(question, verdict.model_copy(update={"archive": links}))
    until(lambda: counted["stored"] == 3)
    keys = [f"vedette/depot-7/media/{each.ref.sha256}.jpg" for each in question.files]
    assert store.keys() == sorted([*keys, "vedette/depot-7/2026/01/01/esc-1.1.json"])
    client = store.client()
    assert client.get_object(Bucket=BUCKET, Key=keys[0])["Body"].read() == evidence_image(1)
    tags = client.get_object_tagging(Bucket=BUCKET, Key=keys[0])["TagSet"]
    assert {each["Key"]: each["Value"] for each in tags} == {
        "vedette-keep-days": "14",
        "vedette-site": "depot-7",
        "vedette-kind": "frame",
    }
    body = json.loads(client.get_object(Bucket=BUCKET, Key=links[-1].key)["Body"].read())
    assert (body["decision"], body["archive"]) == ("confirmed", []), "links are not kept: they open the door"
    kept.close(5)


def test_a_link_in_the_verdict_opens_the_evidence_without_a_key(store: S3Server) -> None:
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted)
    question, verdict = case(evidence_image(1))
    before = time.time()
    first, last = kept.links(question, verdict)
    kept.put(question, verdict)
    until(lambda: counted["stored"] == 2)
    assert (first.kind, first.media, last.kind) == ("frame", question.files[0].ref.id, "verdict")
    assert before - 1 <= first.expires_t - 168 * 3600 <= time.time(), "`link_hours`, a week"
    assert parse_qs(urlsplit(first.url).query)["X-Amz-Expires"] == [str(168 * 3600)], "the store goes by what is signed"
    with urllib.request.urlopen(first.url, timeout=30) as answer:
        assert answer.read() == evidence_image(1)
    assert SECRET not in first.url
    kept.close(5)


def test_the_same_image_is_stored_once(store: S3Server) -> None:
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted)
    kept.put(*case(evidence_image(1)))
    until(lambda: counted["stored"] == 2)
    kept.put(*case(evidence_image(1)))
    until(lambda: counted.total() == 4)
    assert counted == {"stored": 3, "known": 1}, "a verdict is written again, its picture is not"
    kept.close(5)


def test_an_image_that_is_gone_from_the_store_is_stored_again(store: S3Server) -> None:
    """By its age, or by `vedette-worker erase`, of which a running worker hears nothing."""
    counted: Counter[str] = Counter()
    clock = ManualClock(1_767_225_600.0)
    kept = archive(store.url, counted, clock)
    question, verdict = case(evidence_image(1))
    kept.put(question, verdict)
    until(lambda: counted["stored"] == 2)
    key = f"vedette/depot-7/media/{question.files[0].ref.sha256}.jpg"
    store.client().delete_object(Bucket=BUCKET, Key=key)
    clock.advance(KNOWN_S)
    kept.put(question, verdict)
    until(lambda: counted.total() == 4)
    assert key in list(store.keys())
    kept.close(5)


def test_a_store_that_holds_other_bytes_is_noticed(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without checksums (head says none): the bytes are read back and compared with our own sha-256."""
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted, tries=2)
    client = kept._bucket._client
    put = client.put_object

    def damaged(**request: Any) -> Any:
        request.pop("ChecksumSHA256")
        return put(**{**request, "Body": request["Body"][:-1] + b"!"})

    monkeypatch.setattr(client, "put_object", damaged)
    kept.put(*case(evidence_image(1)))
    until(lambda: counted.total() == 2)
    assert counted == {"failed": 2}
    kept.close(5)


def test_a_store_that_is_away_is_tried_a_few_times_and_nobody_waits() -> None:
    counted: Counter[str] = Counter()
    kept = archive(NOBODY, counted, tries=2, waiting_max=2, threads=1)
    question, verdict = case(evidence_image(1))
    for _ in range(10):
        assert len(kept.links(question, verdict)) == 2, "links are made here"
        kept.put(question, verdict)
    assert counted["left_out"] >= 10, "at once: two may wait, and nobody waits for those"
    until(lambda: counted["failed"] >= 2)
    kept.close(0.2)
    until(lambda: counted.total() >= 18, what="what was under way ends in a count, too")


def test_what_waits_is_bounded_in_bytes_too() -> None:
    counted: Counter[str] = Counter()
    kept = archive(NOBODY, counted, tries=20, threads=1)
    question, verdict = case(b"\xff" * EVIDENCE_BYTES_MAX)
    places = WAITING_BYTES_MAX // EVIDENCE_BYTES_MAX
    for _ in range(places + 3):
        kept.put(question, verdict)
    until(lambda: kept.waiting() == places)
    assert counted == {"left_out": 6}
    kept.close(0.0)
    until(lambda: kept.waiting() == 0)
    kept.put(question, verdict)
    assert kept.waiting() == 1, "what has left makes room"


def test_a_check_stores_something_small_and_says_what_is_wrong(store: S3Server) -> None:
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted)
    assert kept.check() == "the archive evidence takes objects and holds what it was sent"
    kept.close(1)
    other = archive(store.url, counted, bucket="nobodys-bucket")
    with pytest.raises(NotStored, match="NoSuchBucket"):
        other.check()
    other.close(1)


def test_what_a_receipt_names_is_deleted_and_nothing_else(store: S3Server, tmp_path: Path) -> None:
    for key in ("edge/depot-7/media/aa.webp", "edge/depot-7/2026/01/01/e.0.json", "edge/depot-7/media/bb.webp", "x/y"):
        store.client().put_object(Bucket=BUCKET, Key=key, Body=b"1")
    unreached = [
        {"kind": "archive", "what": key, "t": 0.0}
        for key in ("edge/depot-7/media/aa.webp", "edge/depot-7/2026/01/01/e.0.json")
    ]
    receipt = tmp_path / "erasures.json"
    receipt.write_text(json.dumps([{"id": 1, "unreached": [*unreached, {"kind": "backup", "what": "x/y", "t": 0.0}]}]))
    file = tmp_path / "worker.yaml"
    file.write_text(
        f"nats: {{url: 'nats://127.0.0.1:1'}}\nengine: {{kind: redetect}}\narchive: {{bucket: {BUCKET}, "
        f"url: '{store.url}', access_key: {KEY}, secret_key: {SECRET}, prefix: edge}}\n"
    )
    assert worker_main(["erase", str(receipt), "--config", str(file)]) == 0
    assert store.keys() == ["edge/depot-7/media/bb.webp", "x/y"]
    with pytest.raises(UsageError, match="does not lie under"):
        keys_of_receipt(receipt.read_text().replace('"backup"', '"archive"'), "edge")
    with pytest.raises(UsageError, match="no receipt"):
        keys_of_receipt('{"unreached": 3}', "")


def test_a_bucket_that_is_not_there_is_not_tried_again(store: S3Server) -> None:
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted, bucket="nobodys-bucket", tries=20)
    kept.put(*case(evidence_image(1)))
    until(lambda: counted["failed"] == 2)
    kept.close(5)


def test_without_credentials_there_are_no_links_and_the_verdict_goes_out(
    store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    counted: Counter[str] = Counter()
    kept = archive(store.url, counted, access_key=None, secret_key=None, tries=1)
    question, verdict = case(evidence_image(1))
    assert kept.links(question, verdict) == ()
    kept.put(question, verdict)
    until(lambda: counted["failed"] == 2)
    kept.close(5)


@pytest.mark.parametrize(("chars", "pictures"), [(4000, 0), (2500, 16)])
def test_a_verdict_goes_without_links_that_are_too_long_for_it(
    chars: int, pictures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links carry the session token of a role; the verdict was lost with them, and the model paid for each try."""
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("SESSION_TOKEN", "t" * chars)):
        monkeypatch.setenv(f"AWS_{name}", value)
    kept = archive(NOBODY, Counter(), access_key=None, secret_key=None)
    assert kept.links(*case(*(b"%d" % n for n in range(pictures)))) == ()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t" * 400)
    kept.close(0.0)
    kept = archive(NOBODY, Counter(), access_key=None, secret_key=None)
    assert len(kept.links(*case(*(b"%d" % n for n in range(pictures))))) == pictures + 1
    kept.close(0.0)
