"""What the site file allows each class of recording, in bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from appliance.config import Camera, CameraQuota, Storage

GB = 1_000_000_000
MB = 1_000_000
Mode = Literal["continuous", "pre_roll", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraLimits:
    """Of one camera. keep_s: a continuous recording's age; None in bytes: no limit of its own."""

    mode: Mode
    keep_s: float
    continuous_bytes: float | None
    evidence_bytes: float | None
    preroll_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of the site, and of each camera of the file; a camera that was taken out of the file has the site's."""

    cameras: Mapping[str, CameraLimits]
    other: CameraLimits
    size_bytes: float
    continuous_bytes: float | None
    evidence_bytes: float | None
    evidence_s: float
    free_bytes_min: float

    @classmethod
    def of(cls, storage: Storage, cameras: Mapping[str, Camera]) -> Limits:
        return cls(
            cameras={
                name: _camera(storage, camera.quota, (camera.record or "off") if camera.enabled else "off")
                for name, camera in cameras.items()
            },
            other=_camera(storage, CameraQuota(), "off"),
            size_bytes=storage.size_max_gb * GB,
            continuous_bytes=_bytes(storage.quota.continuous_gb),
            evidence_bytes=_bytes(storage.quota.evidence_gb),
            evidence_s=storage.evidence_days * 86400,
            free_bytes_min=storage.disk_free_min_mb * MB,
        )

    def camera(self, name: str) -> CameraLimits:
        return self.cameras.get(name, self.other)

    @property
    def rings(self) -> dict[str, int]:
        """The cameras that keep a pre-roll only, and the bytes of each ring."""
        return {name: each.preroll_bytes for name, each in self.cameras.items() if each.mode == "pre_roll"}


def _camera(storage: Storage, quota: CameraQuota, mode: Mode) -> CameraLimits:
    return CameraLimits(
        mode=mode,
        keep_s=(quota.continuous_hours or storage.keep_hours) * 3600,
        continuous_bytes=_bytes(quota.continuous_gb),
        evidence_bytes=_bytes(quota.evidence_gb),
        preroll_bytes=round((quota.preroll_mb or storage.quota.preroll_mb) * MB),
    )


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * GB
