"""The benchmark of regions against whole frames: which detector is given regions, and the pixels that are counted."""

from __future__ import annotations

import numpy as np

from appliance.detect.detector import VariableInput
from appliance.detect.letterbox import Letterbox
from benchmarks.parts import PixelCounter, RegionDetector
from tests.support.block_footage import BrightBlock


def test_pixels_are_those_of_the_input_and_only_one_of_the_two_is_given_regions() -> None:
    letterbox = Letterbox(416, 416, "centre", 32)
    whole, parts = PixelCounter(BrightBlock(), letterbox), RegionDetector(BrightBlock(), letterbox)
    assert (isinstance(whole, VariableInput), isinstance(parts, VariableInput)) == (False, True)
    for network, size in ((whole, (234, 416)), (parts, (96, 64))):
        network.detect([np.zeros((*size, 3), np.uint8)])
    assert (whole.pixels, parts.pixels) == (416 * 288, 96 * 64)
