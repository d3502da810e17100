"""What the options about verdicts and chance of `vedette replay` and scenarios mean. Loads no video library."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

SEED_MAX = 2**32 - 1


def parse_seed(text: str) -> int:
    """A whole number that numpy's generators take."""
    if not text.isascii() or not text.isdigit() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"`{text}` is no seed: write a whole number from 0 to {SEED_MAX}")
    return int(text)


VERDICT_WAIT_S = 120.0
ORACLE_ENGINE = "stand-in"


@dataclass(frozen=True, slots=True)
class OracleSettings:
    """error: share of answers turned round; seed: which; latency_s: how long each takes."""

    error: float = 0.0
    seed: int = 0
    latency_s: float = 0.0

    @property
    def text(self) -> str:
        """`stand-in (answers made from the truth, 5 % of them turned round, seed 1)`."""
        turned = f", {100 * self.error:.3g} % of them turned round, seed {self.seed}" if self.error else ""
        return f"{ORACLE_ENGINE} (answers made from the truth{turned})"


@dataclass(frozen=True, slots=True)
class OracleOptions:
    """`stand-in:error=0.05,seed=1`. truth: the scenario file that says what truly happened; None: it is known."""

    settings: OracleSettings = OracleSettings()
    truth: Path | None = None


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """Who is to answer. cloud: a broker's address instead of the site's uplink. wait_s: for one verdict."""

    source: Path | OracleOptions | None = None
    match: Literal["exact", "nearest"] = "exact"
    record: Path | None = None
    cloud: str | None = None
    wait_s: float = VERDICT_WAIT_S

    @property
    def any(self) -> bool:
        """Whether somebody is to answer at all."""
        return self.source is not None or self.record is not None


def parse_verdict_source(text: str) -> Path | OracleOptions:
    """A path, or `stand-in` with its settings; a file of that name is written ./stand-in."""
    name, colon, rest = text.partition(":")
    if name != ORACLE_ENGINE:
        return Path(text)
    wish = OracleOptions()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        try:
            wish = _with_oracle_setting(wish, key.strip(), value.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"`{part}`: a stand-in takes error=0..1, seed=NUMBER, latency=SECONDS and truth=SCENARIO"
            ) from None
    return wish


def _with_oracle_setting(wish: OracleOptions, key: str, value: str) -> OracleOptions:
    if key == "truth" and value:
        return replace(wish, truth=Path(value))
    if key == "seed":
        return replace(wish, settings=replace(wish.settings, seed=int(value)))
    number = float(value)
    if key == "error" and 0 <= number <= 1:
        return replace(wish, settings=replace(wish.settings, error=number))
    if key == "latency" and 0 <= number <= 86400:
        return replace(wish, settings=replace(wish.settings, latency_s=number))
    raise ValueError(key)
