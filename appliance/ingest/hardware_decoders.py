"""Hardware that decodes cameras: sessions are counted over all cameras, and failures are reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from appliance.base.errors import MissingDependency, SourceError
from appliance.config import CameraConfig, DecodeConfig
from appliance.media.hardware_codec import DecodeWay, HardwareCodec, HardwareFailed
from appliance.media.hardware_probe import ProbedHardware, open_codec, probe_hardware
from appliance.media.source import StreamInfo
from appliance.types import HARDWARE_KINDS, DecodeHardware, HardwareKind

RETRY_S = 300.0  # of camera time until hardware that failed is asked for again, at a key frame
SOFTWARE = "software"

Probe = Callable[[Sequence[HardwareKind], str | None, str], Mapping[HardwareKind, ProbedHardware]]
OpenCodec = Callable[[DecodeWay, StreamInfo], HardwareCodec]


class HardwareDecoders:
    """The decoders in this appliance's hardware, for all cameras; any thread may call.

    State: what was probed, the sessions in use. Invariant: there are never more than `sessions_max` sessions at once.
    Each kind is probed once, when it is first asked for: at the start, or by the first camera that is added with it.
    """

    def __init__(
        self, settings: DecodeConfig, probe: Probe = probe_hardware, open_codec: OpenCodec = open_codec
    ) -> None:
        self.settings = settings
        self._probe = probe
        self._open_codec = open_codec
        self._lock = threading.Lock()
        self._probed: dict[HardwareKind, ProbedHardware] = {}
        self._sessions = 0

    @property
    def sessions(self) -> int:
        """In use now."""
        return self._sessions

    @property
    def text(self) -> str:
        """Say in one line which hardware was found and is in use; '' if no hardware was asked for."""
        with self._lock:
            probed = list(self._probed.values())
        if not probed:
            return ""
        found = [f"{each.kind} ({', '.join(each.ways)})" if each.works else f"no {each.kind}" for each in probed]
        return f"{self._sessions} of {self.settings.sessions_max} sessions; {', '.join(found)}"

    def must_have(self, cameras: Mapping[str, CameraConfig]) -> None:
        """Probe the hardware that these cameras ask for.

        Raise MissingDependency if it is not there, and may not be done without.
        """
        for name, camera in cameras.items():
            wanted = self.settings.hardware_of(camera.decode) if camera.enabled else "off"
            if wanted == "auto":
                self.probed()
            elif wanted != "off":
                probed = self.probed([wanted])[0]
                if not probed.works and not self.settings.falls_back(camera.decode):
                    raise MissingDependency(missing_text(name, camera, probed))

    def probed(self, kinds: Sequence[HardwareKind] = HARDWARE_KINDS) -> list[ProbedHardware]:
        """Return what was found out about these kinds; probe the ones that are not known yet."""
        with self._lock:
            unknown = [kind for kind in kinds if kind not in self._probed]
            if unknown:
                program = str(self.settings.ffmpeg)
                self._probed |= self._probe(unknown, self.settings.device, program)
            return [self._probed[kind] for kind in kinds]

    def of(self, camera: str, settings: CameraConfig) -> CameraHardware | None:
        """Return the hardware of a camera; None if software decodes it."""
        wanted = self.settings.hardware_of(settings.decode)
        if wanted == "off":
            return None
        return CameraHardware(self, wanted, may_fall_back=self.settings.falls_back(settings.decode))

    def open(self, wanted: DecodeHardware, info: StreamInfo) -> tuple[HardwareKind, HardwareCodec] | None:
        """Open a session for this stream.

        Return None for `auto` if nothing here decodes the stream for less than software does. Raise HardwareFailed.
        """
        way = self._way(wanted, info.codec)
        if way is None:
            return None
        with self._lock:
            if self._sessions >= self.settings.sessions_max:
                raise HardwareFailed(f"all {self._sessions} sessions of decode.sessions_max are taken by other cameras")
            self._sessions += 1
        try:
            return way.kind, self._open_codec(way, info)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give a session back: it has ended."""
        with self._lock:
            self._sessions -= 1

    def _way(self, wanted: DecodeHardware, codec: str) -> DecodeWay | None:
        if wanted == "auto":
            saving = [each for each in self.probed() if codec in each.ways and each.cpu_ms < each.software_ms]
            return min(saving, key=lambda each: each.cpu_ms).ways[codec] if saving else None
        assert wanted != "off"
        found = self.probed([wanted])[0]
        if not found.works:
            raise HardwareFailed(found.text)
        if codec not in found.ways:
            known = " and ".join(each.upper() for each in found.ways)
            raise HardwareFailed(f"{wanted} decodes {known} here, and the camera sends {codec.upper()}")
        return found.ways[codec]


class CameraHardware:
    """One camera's `HardwareSource`. Owner: the thread that decodes it; the others read.

    State: what decodes now, why the hardware does not, how often it has failed, from which camera time on it is asked
    for again.
    """

    def __init__(self, decoders: HardwareDecoders, wanted: DecodeHardware, *, may_fall_back: bool) -> None:
        self.may_fall_back = may_fall_back
        self.device = SOFTWARE if may_fall_back else ""
        self.fault = ""
        self.failures = 0
        self.decoders = decoders
        self._wanted = wanted
        self._retry_t: float | None = None

    def open(self, info: StreamInfo, t: float | None = None) -> HardwareCodec | None:
        if t is not None:
            if self._retry_t is None:
                self._retry_t = t + RETRY_S
            if not self.fault or t < self._retry_t:
                return None
        self._retry_t = None
        try:
            found = self.decoders.open(self._wanted, info)
        except HardwareFailed as failure:
            self._note(failure)
            return None
        self.fault = ""
        if found is None:
            self.device = SOFTWARE
            return None
        self.device, codec = found
        return codec

    def release(self, failure: HardwareFailed | None = None) -> None:
        self.decoders.release()
        if failure is not None:
            self._note(failure)

    def _note(self, failure: HardwareFailed) -> None:
        self.failures += 1
        self.device = SOFTWARE if self.may_fall_back else ""
        then = (
            "decoded in software meanwhile"
            if self.may_fall_back
            else "nothing of this camera is decoded: mend it, or set decode.fallback to true"
        )
        self.fault = f"{failure}; {then}"


class HardwareOnly(CameraHardware):
    """Hardware for recorded footage: a failure ends it with a SourceError, since nothing may take its place."""

    def __init__(self, decoders: HardwareDecoders, kind: HardwareKind) -> None:
        super().__init__(decoders, kind, may_fall_back=False)

    def _note(self, failure: HardwareFailed) -> None:
        raise SourceError(f"{failure} (--hardware; without it software decodes)")


def missing_text(camera: str, settings: CameraConfig, probed: ProbedHardware) -> str:
    """Return why a camera cannot have what it asks for, with the remedy."""
    key = f"cameras.{camera}.decode.hardware" if settings.decode.hardware is not None else "decode.hardware"
    return (
        f"{key} {probed.kind} does not work here: {probed.text}. Or set it to auto or off, or decode.fallback to true"
    )
