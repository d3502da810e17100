"""Says before a change of the settings what it deletes at once and how much space it takes, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.config import DashboardSections
from appliance.store.alerts import teaching_alerts
from appliance.store.database import Database
from appliance.store.quotas import StorageLimits, StorageUsage, WriteRates, read_usage, read_write_rates
from appliance.store.retention import evidence_beyond, recording_beyond
from appliance.web.templating import size
from appliance.web.texts import gettext as _

IMAGES_AN_ALERT = 6  # as `vedette export --per-alert` takes them where nothing else is asked for
SAME = 0.02  # of the room that recording takes: less is no change that a person would see


def cost_of(db: Database, before: DashboardSections, after: DashboardSections) -> list[str]:
    """Return what the change deletes at once and what room and looks it takes. Raise StoreError."""
    old, new = (StorageLimits.of(each.storage, each.decisions.cameras) for each in (before, after))
    found = [*_inferences(before, after), *_training(db, before, after)]
    if old == new:
        return found
    with db.read() as connection:
        usage, rates = read_usage(connection), read_write_rates(connection, db.clock.now())
    return [*_deleted(db, old, new, usage), *_room(old, new, rates), *found]


def _deleted(db: Database, old: StorageLimits, new: StorageLimits, usage: StorageUsage) -> Iterator[str]:
    shorter = [name for name in usage.cameras("continuous") if new.camera(name).keep_s < old.camera(name).keep_s]
    gone = sum(recording_beyond(db, name, new.camera(name).keep_s) for name in shorter)
    if gone:
        yield _("{size} of recording is then too old and is deleted at once.").format(size=size(gone))
    alerts, bytes_gone = evidence_beyond(db, new)
    alerts_before, _bytes = evidence_beyond(db, old)
    if alerts > alerts_before:
        text = _("Pictures and clips of {n} alerts ({size}) are then too old and are deleted at once.")
        yield text.format(n=alerts, size=size(bytes_gone))
    over = usage.bytes() - gone - bytes_gone - new.size_bytes
    if over > 0 and new.size_bytes < old.size_bytes:
        yield _("{size} of the oldest recording is deleted at once to make room.").format(size=size(over))


def _room(old: StorageLimits, new: StorageLimits, rates: WriteRates) -> Iterator[str]:
    needed, needed_before, unknown = 0.0, 0.0, False
    for name, limits in new.cameras.items():
        rate = rates.rate(name, "continuous")
        if limits.mode == "continuous":
            unknown |= rate is None
            needed += (rate or 0.0) * limits.keep_s
        if old.camera(name).mode == "continuous":
            needed_before += (rate or 0.0) * old.camera(name).keep_s
    if all(new.camera(name).keep_s == old.camera(name).keep_s for name in {*new.cameras, *old.cameras}):
        return
    if unknown:
        yield _("How much room the recording then takes is not yet known: that needs an hour of video.")
    elif abs(needed - needed_before) > SAME * needed_before:
        text = _("At today's rate the recording then takes {new} instead of {old}; all together may take {most}.")
        yield text.format(new=size(needed), old=size(needed_before), most=size(new.size_bytes))
        if needed > new.size_bytes:
            yield _("That is more than there may be: the oldest recording goes before its time.")


def _inferences(before: DashboardSections, after: DashboardSections) -> Iterator[str]:
    """Say how often the detector looks where that changes."""
    old, new = (
        sum(each.detect.fps for each in config.decisions.cameras.values() if each.enabled) for config in (before, after)
    )
    if old != new and old:
        text = _("While something moves everywhere, the detector looks {new} times a second instead of {old} times.")
        yield text.format(new=f"{new:g}", old=f"{old:g}")


def _training(db: Database, before: DashboardSections, after: DashboardSections) -> Iterator[str]:
    """Say how many pictures the consent of a camera is about, where it is given or taken back."""
    old, new = before.decisions.cameras, after.decisions.cameras
    for name in (each for each in new if each in old and old[each].training != new[each].training):
        alerts = teaching_alerts(db, name)
        text = (
            _("{n} answered alerts of {camera}, with up to {pictures} pictures, may then train a network.")
            if new[name].training
            else _("{n} answered alerts of {camera}, with up to {pictures} pictures, then train no network any more.")
        )
        yield text.format(n=alerts, camera=after.decisions.shown(name), pictures=alerts * IMAGES_AN_ALERT)
