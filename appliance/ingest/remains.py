"""What can be read of a segment that a kill or a power cut left behind: its packets are counted, nothing is decoded."""

from __future__ import annotations

from pathlib import Path

import av

from appliance.store.reconcile import Measured


def measure(path: Path) -> Measured | None:
    """Seconds, frames, codec and size of a segment file, up to where it was cut off; None: there is no frame in it."""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            # Of the fragment that was cut off, the last packet lacks its end.
            starts = sorted(
                float(packet.pts * packet.time_base)
                for packet in container.demux(stream)
                if packet.size and packet.pts is not None and packet.time_base and not packet.is_corrupt
            )
            codec = stream.codec_context
            size, name = (codec.width, codec.height), codec.name
    except (OSError, av.error.FFmpegError, IndexError):
        return None
    if not starts:
        return None
    # The length of the last frame is not in the file (muxers guess it): it is as long as the others.
    frame_s = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else 0.0
    return Measured(max(0.0, starts[-1] + frame_s), len(starts), name, size)
