"""Whatever a repository that lies offers: it is refused, the model in force stays, and the honest one works after it.

Each attack is drawn by its seed; the usual suite tries a few of each, `make test-slow` two hundred.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import ModelError, UsageError
from appliance.bundle import publisher as publishing
from appliance.bundle.bundle_store import InForce
from appliance.bundle.manifest import BundleRef
from appliance.bundle.publisher import Publisher
from appliance.bundle.repositories import FolderRepository
from appliance.bundle.trust import TrustedRepository
from tests.support.model_publisher import NAME, ModelPublisher, TrustingSite

OLD, NEW = BundleRef(NAME, "1"), BundleRef(NAME, "2")
DAY_S = 86_400.0
TRIES = [pytest.param(6, id="few"), pytest.param(200, id="all", marks=pytest.mark.slow)]
Attack = Callable[[random.Random, Path], None]


@pytest.fixture
def publisher(tmp_path: Path) -> ModelPublisher:
    made = ModelPublisher(tmp_path / "publisher")
    made.publish("1")
    return made


@pytest.fixture
def site(tmp_path: Path, publisher: ModelPublisher) -> TrustingSite:
    """An appliance with version 1 in force."""
    made = TrustingSite(tmp_path / "site")
    made.trust(publisher)
    made.store.put_in_force(made.install("1"))
    return made


def refused(tries: int, site: TrustingSite, publisher: ModelPublisher, attack: Attack, tmp_path: Path) -> None:
    """Let the site meet `attack` on a copy of the publisher's repository, again and again."""
    as_it_was = tmp_path / "as-it-was"
    shutil.copytree(site.folder, as_it_was, symlinks=True)
    for seed in range(tries):
        lying = tmp_path / "lying"
        shutil.rmtree(lying, ignore_errors=True)
        shutil.copytree(publisher.repository, lying)
        attack(random.Random(seed), lying)
        with pytest.raises(UsageError):
            site.install("2", FolderRepository(lying))
        assert set(site.store.installed()) == {OLD}, seed
        assert site.store.in_force().of("gate") == InForce(OLD)
        site.store.check(OLD)
        shutil.rmtree(site.folder)  # a genuine part that was accepted would not be asked for again
        shutil.copytree(as_it_was, site.folder, symlinks=True)
    site.store.put_in_force(site.install("2"))
    assert site.store.in_force().of("gate") == InForce(NEW, OLD)


def newest(lying: Path, role: str) -> Path:
    if role == "timestamp":
        return lying / "metadata" / "timestamp.json"
    return max((lying / "metadata").glob(f"*.{role}.json"), key=lambda path: int(path.name.partition(".")[0]))


@pytest.mark.parametrize("tries", TRIES)
def test_flipped_bits(tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path) -> None:
    before = set((publisher.repository / "blobs").rglob("*"))
    publisher.publish("2", head=1, backbone=1)
    blobs = sorted(str(path.relative_to(publisher.repository)) for path in set(
        (publisher.repository / "blobs").rglob("*")) - before)  # fmt: skip

    def attack(drawn: random.Random, lying: Path) -> None:
        places = [newest(lying, role) for role in ("timestamp", "snapshot", "targets")]
        places += [lying / "targets" / NAME / "2" / "manifest.json", *(lying / blob for blob in blobs)]
        path = drawn.choice(places)
        data = bytearray(path.read_bytes())
        while True:
            at, bit = drawn.randrange(len(data)), 1 << drawn.randrange(8)
            # A hexadecimal digit in capitals is the same signature, and a space of another kind the same JSON.
            if path.parent.name != "metadata" or chr(data[at]).lower() != chr(data[at] ^ bit).lower():
                break
        data[at] ^= bit
        path.write_bytes(data)

    refused(tries, site, publisher, attack, tmp_path)


@pytest.mark.parametrize("tries", TRIES)
def test_a_state_that_is_shown_for_too_long(
    tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path
) -> None:
    publisher.publish("2", head=1)

    def attack(drawn: random.Random, lying: Path) -> None:
        past = ManualClock(SystemClock().now() - drawn.uniform(publishing.EXPIRES_D["timestamp"], 3000) * DAY_S)
        Publisher(lying, publisher.folder / "keys", past).refresh()

    refused(tries, site, publisher, attack, tmp_path)


@pytest.mark.parametrize("tries", TRIES)
def test_an_older_state(tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path) -> None:
    """The attacker has kept every state that was ever signed, the faulty version 2 of the first among them."""
    states = []
    publisher.publish("2", head=1)
    for _ in range(5):
        states.append(tmp_path / f"state-{len(states)}")
        shutil.copytree(publisher.repository, states[-1])
        publisher.signer.refresh()
    site.install("1")  # sees the newest

    def attack(drawn: random.Random, lying: Path) -> None:
        shutil.rmtree(lying)
        shutil.copytree(drawn.choice(states), lying)

    refused(tries, site, publisher, attack, tmp_path)


@pytest.mark.parametrize("tries", TRIES)
def test_parts_of_several_states(tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path) -> None:
    publisher.publish("2", head=1)
    for _ in range(4):
        publisher.signer.refresh()

    def attack(drawn: random.Random, lying: Path) -> None:
        role = drawn.choice(("snapshot", "targets"))
        now = newest(lying, role)
        other = drawn.choice([path for path in (lying / "metadata").glob(f"*.{role}.json") if path != now])
        shutil.copy(other, now)

    refused(tries, site, publisher, attack, tmp_path)


@pytest.mark.parametrize("tries", TRIES)
def test_what_expired_while_the_site_was_offline(
    tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish("2", head=1)

    def attack(drawn: random.Random, lying: Path) -> None:
        with monkeypatch.context() as patch:
            role = drawn.choice(("targets", "snapshot", "timestamp"))
            patch.setitem(publishing.EXPIRES_D, role, -drawn.randrange(1, 2000))
            Publisher(lying, publisher.folder / "keys").refresh()

    refused(tries, site, publisher, attack, tmp_path)


@pytest.mark.parametrize("tries", TRIES)
def test_a_wrong_clock(tries: int, site: TrustingSite, publisher: ModelPublisher) -> None:
    publisher.publish("2", head=1)
    drawn = random.Random(3)
    for _ in range(tries):
        behind = ManualClock(SystemClock().now() - drawn.uniform(1.1, 15_000) * DAY_S)
        with pytest.raises(UsageError, match="clock"):
            site.install("2", clock=behind)
        assert set(site.store.installed()) == {OLD}
    site.store.put_in_force(site.install("2"))


@pytest.mark.parametrize("tries", TRIES)
def test_keys_that_were_replaced_twice_while_the_site_was_off(
    tries: int, site: TrustingSite, publisher: ModelPublisher, tmp_path: Path
) -> None:
    stolen = tmp_path / "stolen"
    shutil.copytree(publisher.folder / "keys", stolen)
    for role in ("root", "targets", "snapshot", "timestamp") * 2:
        publisher.signer.rotate(role)
    publisher.publish("2", head=1)

    def attack(drawn: random.Random, lying: Path) -> None:
        role = drawn.choice(("targets", "snapshot", "timestamp"))
        path = newest(lying, role)
        key = next(each for file, each in Publisher(lying, stolen)._all_signers().items() if file.name.startswith(role))
        forged: Metadata = Metadata.from_file(str(path))
        forged.signed.version += drawn.randrange(1000)
        forged.sign(key)
        path.write_bytes(forged.to_bytes())

    refused(tries, site, publisher, attack, tmp_path)


def test_a_root_that_its_keys_did_not_sign_is_no_anchor(publisher: ModelPublisher, tmp_path: Path) -> None:
    root = (publisher.repository / "metadata" / "1.root.json").read_bytes()
    for damaged in (root.replace(b'"threshold":2', b'"threshold":1'), b"{}", b"[]", b"\xff"):
        with pytest.raises(ModelError, match="root"):
            TrustedRepository.trust(tmp_path / "trust", damaged, "https://example.org")


def test_a_blob_that_a_kill_left_half_written_is_published_whole_the_next_time(
    publisher: ModelPublisher, site: TrustingSite
) -> None:
    publisher.publish("2", head=1, backbone=1)
    for blob in (publisher.repository / "blobs" / "sha256").iterdir():
        blob.write_bytes(blob.read_bytes()[:100])
    publisher.publish("2", head=1, backbone=1)
    assert site.install("2") == NEW


def test_a_kill_before_new_keys_are_told_leaves_those_that_sign(publisher: ModelPublisher) -> None:
    class Killed(ManualClock):
        def now(self) -> float:
            raise KeyboardInterrupt

    keys = publisher.folder / "keys"
    for role in ("root", "targets"):
        with pytest.raises(KeyboardInterrupt):
            Publisher(publisher.repository, keys, Killed()).rotate(role)
    publisher.publish("2", head=1)
    publisher.signer.rotate("targets")
    publisher.publish("3", head=2)
    assert len([*keys.glob("targets-*.pem")]) == 1


@pytest.mark.parametrize("lost", ["root-0", "root-1", "targets-0", "snapshot-0"])
def test_a_lost_key_is_the_one_that_is_replaced(lost: str, publisher: ModelPublisher, site: TrustingSite) -> None:
    (publisher.folder / "keys" / f"{lost}.pem").unlink()
    publisher.signer.rotate(lost.partition("-")[0])
    assert not [*(publisher.folder / "keys").glob("*.old")], "the keys that are here stay"
    publisher.publish("2", head=1)
    assert site.install("2") == NEW
    publisher.signer.rotate("root")
