"""Cost of keeping the sound of a camera: `python -m benchmarks.sound [--seconds 300]`.

The benchmark feeds G.711 at 8 kHz to the track that encodes it to AAC, as fast as it goes, and prints the share of a
core that it would take in real time. AAC is copied, and costs what copying does.
"""

from __future__ import annotations

import argparse
import io
import time
from fractions import Fraction

import av
import numpy as np

from appliance.media.segment_writer import SoundTrack

RATE = 8000


def g711(seconds: int) -> bytes:
    """Return a container of noise that swells, in mu-law."""
    made = io.BytesIO()
    with av.open(made, "w", format="wav") as out:
        stream = out.add_stream("pcm_mulaw", rate=RATE, layout="mono")
        rng = np.random.default_rng(7)
        for n in range(seconds * RATE // 800):
            wave = (rng.standard_normal((1, 800)) * 4000 * (1 + np.sin(n / 20))).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(wave, format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, n * 800, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return made.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    seconds = parser.parse_args().seconds
    with av.open(io.BytesIO(g711(seconds)), "r") as opened:
        stream = opened.streams.audio[0]
        track = SoundTrack(stream)
        packets = [packet for packet in opened.demux(stream) if packet.size and packet.pts is not None]
        began = time.process_time()
        frames = [heard for each in packets for heard in track.frames(each, round((each.pts or 0) * 1e6 / RATE))]
        spent = time.process_time() - began
    size = sum(len(each.data) for each in frames)
    print(f"G.711 to AAC: {100 * spent / seconds:.2f} % of a core, {size * 8e-3 / seconds:.0f} kbit/s")


if __name__ == "__main__":
    main()
