"""The section `arming`: profiles, under which rules report and targets are notified, and their hours."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from appliance.base.config_model import ConfigModel
from appliance.config.camera_config import CameraName
from appliance.config.notify_config import TargetName
from appliance.config.values import Schedule

ARMED, DISARMED = "armed", "disarmed"
"""Profiles that every site has: everything reports, nothing does."""
ProfileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class ProfileConfig(ConfigModel):
    """The rules and targets that report under a profile. None: all of them; empty: none.

    cameras, rules: only rules with one of these names on one of these cameras report. notify: only these targets are
    notified of alerts.
    """

    cameras: tuple[CameraName, ...] | None = None
    rules: tuple[str, ...] | None = None
    notify: tuple[TargetName, ...] | None = None


class ProfileHours(Schedule):
    """When a profile is in force by itself."""

    profile: ProfileName
    hours: Annotated[tuple[str, ...], Field(min_length=1)] = ("00:00-24:00",)


class ArmingConfig(ConfigModel):
    """The profiles by name, and the week.

    schedule: of hours that overlap the first counts. default: the profile outside of all of them.
    """

    profiles: Annotated[dict[ProfileName, ProfileConfig], Field(max_length=16)] = {}
    schedule: Annotated[tuple[ProfileHours, ...], Field(max_length=32)] = ()
    default: ProfileName = ARMED

    @field_validator("profiles")
    @classmethod
    def _not_built_in(cls, profiles: dict[str, ProfileConfig]) -> dict[str, ProfileConfig]:
        for name in (ARMED, DISARMED):
            if name in profiles:
                raise ValueError(f"`{name}` is there already and means what it says: give yours another name")
        return profiles

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all profiles; those that every site has come first and last."""
        return (ARMED, *self.profiles, DISARMED)

    def profile(self, name: str) -> ProfileConfig:
        """Return the profile. Raise KeyError if there is none of this name."""
        return _BUILT_IN[name] if name in _BUILT_IN else self.profiles[name]

    def unknown_profile(self) -> str:
        """Return a profile that the schedule or the default names and nobody defines; '': there is none."""
        named = (self.default, *(each.profile for each in self.schedule))
        return next((name for name in named if name not in self.names), "")


_BUILT_IN: dict[str, ProfileConfig] = {ARMED: ProfileConfig(), DISARMED: ProfileConfig(rules=())}
