// Plays the recording piece by piece: two videos take turns, so that the next piece is there when one ends.
const AHEAD = 0.5; // of a piece: from here on the next one is fetched

export class Player {
  // prepare(t, first): the piece that holds t ({url, t_start, t_end, from, to}), or null where there is none.
  constructor(videos, { prepare, show, time, ended, failed }) {
    this.videos = videos;
    this.hooks = { prepare, show, time, ended, failed };
    this.run = 0;
    this.speed = 1;
    this.current = null;
    for (const video of videos) {
      video.addEventListener("ended", () => video === this.current?.video && this.turn());
      video.addEventListener("error", () => video === this.current?.video && video.src && this.fail(video.error));
      video.addEventListener("timeupdate", () => video === this.current?.video && this.tick());
    }
  }

  get playing() {
    return this.run % 2 === 1;
  }

  async play(t) {
    this.stop();
    const run = ++this.run;
    await this.begin(await this.load(t, 0, run), run);
  }

  stop() {
    if (this.playing) this.run++;
    for (const video of this.videos) {
      video.pause();
      if (video.hasAttribute("src")) {
        video.removeAttribute("src");
        video.load();
      }
    }
    this.current = this.next = null;
  }

  set rate(speed) {
    this.speed = speed;
    for (const video of this.videos) video.playbackRate = video.defaultPlaybackRate = speed;
  }

  // A piece in one of the videos, at its first moment; null: there is none.
  async load(t, which, run) {
    try {
      const piece = await this.hooks.prepare(t, !this.current);
      if (!piece || run !== this.run) return null;
      const video = this.videos[which];
      video.defaultPlaybackRate = this.speed;
      video.src = piece.url;
      await new Promise((done, wrong) => {
        video.addEventListener("loadeddata", done, { once: true });
        video.addEventListener("error", () => wrong(video.error), { once: true });
      });
      video.currentTime = Math.max(0, piece.from - piece.t_start);
      return { video, which, piece };
    } catch (error) {
      if (run === this.run) this.fail(error);
      return null;
    }
  }

  async begin(loaded, run) {
    if (run !== this.run) return;
    if (!loaded) return this.finish();
    this.current = loaded;
    this.next = null;
    loaded.video.playbackRate = this.speed;
    try {
      await loaded.video.play();
    } catch (error) {
      if (run === this.run) this.fail(error);
      return;
    }
    if (run === this.run) this.hooks.show(loaded.which);
  }

  tick() {
    const { video, which, piece } = this.current;
    if (!video.currentTime) return;
    const t = piece.t_start + video.currentTime;
    this.hooks.time(t);
    if (!this.next && t > piece.from + AHEAD * (piece.to - piece.from)) this.next = this.load(piece.to, 1 - which, this.run);
  }

  async turn() {
    const { which, piece } = this.current;
    const run = this.run;
    this.hooks.time(piece.to);
    await this.begin(await (this.next ?? this.load(piece.to, 1 - which, run)), run);
  }

  finish() {
    this.stop();
    this.hooks.ended();
  }

  fail(error) {
    this.stop();
    this.hooks.failed(error);
  }
}
