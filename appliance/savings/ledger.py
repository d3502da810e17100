"""What the appliance saved: bytes received from the cameras against bytes put on the uplink. Pure arithmetic.

The counterfactual is named beside every number: all camera streams sent to the cloud as they are. A negative saving
is a result like any other and is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

COUNTERFACTUAL = "all camera streams sent to the cloud"
CAMERA_EXACT = "camera_bytes"
CAMERA_ESTIMATED = "camera_bytes_estimated"
UPLINK = "uplink_bytes"
"""Every byte sent is counted here, and those whose purpose is known once more under `uplink_bytes_<what>`."""
_COUNTED = {CAMERA_EXACT, CAMERA_ESTIMATED, UPLINK}


class Amount(Protocol):
    """What the ledger needs of a meter's total. `camera` "" is what belongs to no camera."""

    @property
    def camera(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def amount(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkKind:
    """Bytes sent up for one purpose."""

    what: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Bytes of one camera, or of the site. Rates in kbit/s over the time the account covers; None: no time passed."""

    camera_bytes: int
    exact: bool  # False: a part was counted as packet sizes, without the protocol around them, so it is a lower bound
    uplink_bytes: int
    uplink_kinds: tuple[UplinkKind, ...]
    camera_kbit_s: float | None
    uplink_kbit_s: float | None

    @property
    def saved_bytes(self) -> int:
        """Against the counterfactual; negative when more went up than came in."""
        return self.camera_bytes - self.uplink_bytes

    @property
    def share_sent(self) -> float | None:
        """Uplink bytes as a share of camera bytes; None when nothing came in."""
        return self.uplink_bytes / self.camera_bytes if self.camera_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraSavings:
    """The account of one camera."""

    camera: str
    account: Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """The site's account over `seconds`, and each camera's.

    `overhead_bytes`: uplink bytes that belong to no camera (keep-alive, acknowledgements); in the total, in no camera.
    """

    seconds: float
    total: Account
    cameras: tuple[CameraSavings, ...]
    overhead_bytes: int
    counterfactual: str = COUNTERFACTUAL


def savings(amounts: Iterable[Amount], seconds: float, cameras: Iterable[str] = ()) -> Savings:
    """Balance the meter's totals over `seconds`; `cameras` get an account even if nothing was counted for them."""
    rows = list(amounts)
    names = sorted({row.camera for row in rows if row.camera and row.kind in _COUNTED} | set(cameras))
    return Savings(
        seconds=seconds,
        total=_account(rows, seconds),
        cameras=tuple(
            CameraSavings(camera=name, account=_account([row for row in rows if row.camera == name], seconds))
            for name in names
        ),
        overhead_bytes=sum(row.amount for row in rows if not row.camera and row.kind == UPLINK),
    )


def _account(rows: list[Amount], seconds: float) -> Account:
    exact = sum(row.amount for row in rows if row.kind == CAMERA_EXACT)
    estimated = sum(row.amount for row in rows if row.kind == CAMERA_ESTIMATED)
    sent = sum(row.amount for row in rows if row.kind == UPLINK)
    kinds: dict[str, int] = {}
    for row in rows:
        if row.kind.startswith(f"{UPLINK}_"):
            what = row.kind.removeprefix(f"{UPLINK}_")
            kinds[what] = kinds.get(what, 0) + row.amount
    if sent > sum(kinds.values()):
        kinds["other"] = sent - sum(kinds.values())
    return Account(
        camera_bytes=exact + estimated,
        exact=estimated == 0,
        uplink_bytes=sent,
        uplink_kinds=tuple(UplinkKind(what=what, bytes=kinds[what]) for what in sorted(kinds)),
        camera_kbit_s=_kbit_s(exact + estimated, seconds),
        uplink_kbit_s=_kbit_s(sent, seconds),
    )


def _kbit_s(count: int, seconds: float) -> float | None:
    return count * 8 / 1000 / seconds if seconds > 0 else None
