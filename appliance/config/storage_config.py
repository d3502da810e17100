"""The section `storage`: where recording and evidence are stored, for how long, and how much room they get."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from appliance.base.config_model import ConfigModel
from appliance.config.camera_config import Gigabytes, PrerollMb


class QuotaConfig(ConfigModel):
    """The space of each class of recording, all cameras together; None: as much as the other limits leave."""

    continuous_gb: Gigabytes | None = None
    evidence_gb: Gigabytes | None = None
    preroll_mb: PrerollMb = 64.0  # of each camera


class StorageConfig(ConfigModel):
    """Where recording and evidence are stored, for how long, and how much of the disk they may take.

    segment_s: length of a segment. keep_hours: of the continuous recording. evidence_days: of clips and pictures of
    alerts. undo_delete_hours: how long a deletion can be undone. access_log_days: how long it is kept who looked at
    what. size_max_gb: all of it. disk_free_min_mb: left free for others. preroll_dir: for the ring of the last seconds
    before alerts; None: in `dir`. A camera's `continuous_hours` replaces `keep_hours`. Of hours, quotas and
    `size_max_gb`, the limit that is reached first counts; for room, the oldest recording goes before the oldest
    reviewed evidence.
    """

    dir: Path = Path("vedette-data")
    segment_s: Annotated[float, Field(ge=1, le=60)] = 4.0
    keep_hours: Annotated[float, Field(gt=0, le=24 * 3650)] = 24.0
    undo_delete_hours: Annotated[float, Field(ge=0, le=24 * 90)] = 24.0
    evidence_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    size_max_gb: Annotated[float, Field(gt=0)] = 50.0
    disk_free_min_mb: Annotated[float, Field(ge=0)] = 500.0
    access_log_days: Annotated[float, Field(gt=0, le=3650)] = 180.0
    quota: QuotaConfig = QuotaConfig()
    preroll_dir: Path | None = None
