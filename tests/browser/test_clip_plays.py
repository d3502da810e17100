"""A clip in a real browser: at `currentTime` it shows the frame of camera time `t_start + currentTime`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from appliance.media.clips import cut_clip
from appliance.media.recorded import RecordedSegment
from tests.support.numbered_footage import BITS, encoded_footage, record
from tests.support.sample_rows import T0

pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package (dev extra)")
from playwright.sync_api import Browser

SHOW = """async ([clip, times, expected, bits]) => {
  const data = Uint8Array.from(atob(clip), (c) => c.charCodeAt(0));
  const video = document.createElement("video");
  video.muted = true;
  const once = (name) => new Promise((done, fail) => {
    video.addEventListener(name, done, {once: true});
    video.addEventListener("error", () => fail(new Error(video.error.message)), {once: true});
  });
  const loaded = once("loadeddata");
  video.src = URL.createObjectURL(new Blob([data], {type: "video/mp4"}));
  await loaded;
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth; canvas.height = video.videoHeight;
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const numbers = [];
  const read = () => {
    context.drawImage(video, 0, 0);
    let n = 0;
    for (let bit = 0; bit < bits; bit++) {
      const x = Math.floor((bit + 0.5) * canvas.width / bits);
      n = n * 2 + (context.getImageData(x, canvas.height / 2, 1, 1).data[0] > 128 ? 1 : 0);
    }
    return n;
  };
  for (const [at, t] of times.entries()) {
    const sought = once("seeked");
    video.currentTime = t;
    await sought;
    let n = -1;
    for (let tries = 0; tries < 200 && n !== expected[at]; tries++) {  // a frame may reach the canvas a little late
      await new Promise(requestAnimationFrame);
      n = read();
    }
    numbers.push(n);
  }
  return {numbers, duration: video.duration, width: video.videoWidth};
}"""


@pytest.mark.browser
@pytest.mark.parametrize("b_frames", [0, 2])
def test_the_frame_on_screen_is_the_frame_of_that_time(browser: Browser, tmp_path: Path, b_frames: int) -> None:
    segments = []
    for n, t in ((0, 0.0), (40, 4.0), (120, 12.0)):  # nothing came from 8 s to 12 s
        row = record(tmp_path, encoded_footage(n, 40, b_frames=b_frames), T0 + t)
        segments.append(RecordedSegment(tmp_path / row.path, row.t_start, row.t_end))
    clip = cut_clip(segments, T0 + 2.3, T0 + 14, tmp_path / "clip.mp4")
    data = base64.b64encode((tmp_path / "clip.mp4").read_bytes()).decode()
    frames = [20, 23, 39, 40, 55, 77, 120, 125, 133]
    seconds = [T0 + n / 10 + 0.05 - clip.t_start for n in frames]  # in the middle of each frame
    page = browser.new_page()  # of the one browser of the session: Playwright runs once in a process
    expected = [*frames, 79]  # in the gap the last frame stands
    shown = page.evaluate(SHOW, [data, [*seconds, T0 + 10 - clip.t_start], expected, BITS])
    page.close()
    assert shown["numbers"] == expected
    assert shown["duration"] == pytest.approx(clip.t_end - clip.t_start, abs=0.15)
