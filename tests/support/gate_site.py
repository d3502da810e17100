"""The storage of a box before whose camera the bundled clip of a gate happened, for tests of what becomes of alerts."""

from __future__ import annotations

from pathlib import Path

import yaml

from appliance.config import SiteConfig
from tests.support.recorded_site import Life, site_of
from tests.support.render_family import Once

ROOT = Path(__file__).parents[2]
GATE = ROOT / "fixtures" / "clips" / "gate.mp4"
# Its alerts. Two come; one of them stays at the wall, and a van comes; two more come.
FIRST, SECOND, THIRD = 0, 1, 2


def config_of(root: Path) -> SiteConfig:
    """The site of the clip's scenario; alerts end after 15 s."""
    written = yaml.safe_load((ROOT / "fixtures" / "scenarios" / "gate.scenario.yaml").read_text())
    config = site_of(root, written["cameras"]["gate"])
    return config.model_copy(update={"alerts": config.alerts.model_copy(update={"length_max_s": 15.0})})


def live(root: Path, eye: Once, *showings: float) -> Path:
    """Let the box live through the clip, or its first so many seconds, once for each of `showings`; returns `root`."""
    life = Life(config_of(root), eye)
    for seconds in showings or (float("inf"),):
        life.live_through(GATE, seconds=seconds)
    life.make_evidence()
    life.db.close()
    return root
