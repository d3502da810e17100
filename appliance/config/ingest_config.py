"""The sections that ingest reads, beside cameras and detector: storage, decode, health and second_look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.config.camera_config import CameraConfig, CameraDecodeConfig, CameraName, Gigabytes, Hardware, PrerollMb
from appliance.config.values import Share
from appliance.types import DecodeHardware, HealthKind

OWN_NETWORKS_MAX = 1  # beside that of all cameras: each takes some 50 MB, and its part of the one detector's time


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


class DecodeConfig(ConfigModel):
    """The decoders of all cameras.

    hardware: what decodes. fallback: a camera whose hardware decoder fails is decoded in software meanwhile; with
    `auto` it always is. sessions_max: cameras decoded by hardware at once. device: which one of several, as FFmpeg
    calls it; None: its first. ffmpeg: the system's, for what the FFmpeg inside PyAV cannot do.
    """

    hardware: Hardware = "off"
    fallback: bool = False
    sessions_max: Annotated[int, Field(ge=1, le=256)] = 16
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9/_.:-]{1,64}$")] | None = None
    ffmpeg: Path = Path("ffmpeg")

    def hardware_of(self, camera: CameraDecodeConfig) -> DecodeHardware:
        """Return what decodes this camera."""
        return camera.hardware or self.hardware

    def falls_back(self, camera: CameraDecodeConfig) -> bool:
        """Return True if software may take over where the hardware fails."""
        allowed = self.fallback if camera.fallback is None else camera.fallback
        return allowed or self.hardware_of(camera) == "auto"


class HealthConfig(ConfigModel):
    """When a camera, or the appliance, is reported as faulty. See docs/health.md."""

    ignore: tuple[HealthKind, ...] = ()
    stalled_s: Annotated[float, Field(ge=3, le=3600)] = 6.0
    frozen_s: Annotated[float, Field(ge=2, le=3600)] = 7.0
    black_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    covered_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    moved_s: Annotated[float, Field(ge=1, le=3600)] = 4.0
    moved_share: Annotated[float, Field(ge=0.03, le=0.4)] = 0.05
    unexamined_s: Annotated[float, Field(ge=2, le=3600)] = 5.0
    detector_s: Annotated[float, Field(ge=2, le=3600)] = 8.0
    overloaded_s: Annotated[float, Field(ge=5, le=3600)] = 10.0
    offset_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0


class RecheckConfig(ConfigModel):
    """When and how the appliance re-checks an alert itself while the cloud does not answer. See docs/recheck.md.

    after_s: when a verdict is late; detector_load_max: the share of the time in which the detector may be at work;
    model: another network for it, None: the one of `detector`.
    """

    enabled: bool = True
    per_minute: Annotated[int, Field(ge=1, le=60)] = 6
    after_s: Annotated[float, Field(ge=1, le=3600)] = 20.0
    detector_load_max: Share = 0.7
    model: Annotated[str, Field(min_length=1)] | None = None


class IngestConfig(ConfigModel):
    """The sections that the ingest process reads. It never gets to see the broker, targets or the dashboard's token."""

    model_config = ConfigDict(extra="ignore")

    storage: StorageConfig = StorageConfig()
    detector: DetectorConfig = DetectorConfig()
    decode: DecodeConfig = DecodeConfig()
    cameras: dict[CameraName, CameraConfig]
    health: HealthConfig = HealthConfig()
    second_look: RecheckConfig = RecheckConfig()

    def own_networks(self) -> tuple[DetectorConfig, ...]:
        """Return the detectors that cameras have for themselves, each once; labels and precision are their own."""
        named = {camera.model for camera in self.cameras.values() if camera.enabled and camera.model}
        return tuple(self.detector.with_model(model) for model in sorted(named - {self.detector.model}))
