// Live pictures: fetched while they are on screen, with the boxes of that very frame drawn over.
import { again, coalesced, follow, swap } from "/static/page.js";
import { t } from "/static/texts.js";
import "/static/health.js";
import { begin, box, picture, places } from "/static/draw.js";
import { clockOf } from "/static/time.js";

const checked = (id) => document.getElementById(id)?.checked ?? true;

const OLD_S = 15; // a segment may take a few seconds to reach the disk

class Live {
  constructor(stage) {
    this.stage = stage;
    this.canvas = stage.querySelector("canvas");
    this.note = stage.querySelector(".note");
    this.seen = false;
    this.image = null;
    this.found = { objects: [] };
    this.places = { zones: {}, lines: {} };
    this.pull = coalesced(() => this.next());
    if (stage.dataset.cameraUrl) this.learn(stage.dataset.cameraUrl);
    setInterval(() => this.seen && !document.hidden && this.pull(), Number(stage.dataset.every));
  }

  async learn(url) {
    const answer = await fetch(url);
    if (answer.ok) this.places = await answer.json();
    this.draw();
  }

  async next() {
    const answer = await fetch(this.stage.dataset.picture);
    if (answer.status !== 200) {
      this.note.textContent = answer.ok ? t("Waiting for the first picture") : (await answer.json()).detail;
      this.note.hidden = false;
      return;
    }
    const moment = answer.headers.get("X-Frame-Time");
    this.tell(Number(moment), Date.parse(answer.headers.get("Date")) / 1000);
    if (moment === this.t) return;
    const image = await createImageBitmap(await answer.blob());
    const boxes = await fetch(`${this.stage.dataset.boxes}?t=${moment}`);
    this.found = (boxes.ok && (await boxes.json())) || { objects: [] };
    this.image?.close();
    this.image = image;
    this.t = moment;
    const shown = document.getElementById("frame-time");
    if (shown) shown.textContent = t("Picture of {time}", { time: clockOf(Number(moment)) });
    this.stage.dataset.objects = this.found.objects.length;
    this.draw();
  }

  // An old picture must never pass for a live one. `now` is the appliance's: the viewer's clock may be wrong.
  tell(moment, now) {
    const old = now - moment > OLD_S;
    this.note.textContent = t("Last picture {time}", { time: clockOf(moment) });
    this.note.hidden = !old;
    this.stage.classList.toggle("old", old);
  }

  draw() {
    if (!this.image) return;
    const area = begin(this.canvas, this.image.width, this.image.height);
    picture(area, this.image);
    if (checked("show-zones")) places(area, this.places.zones, this.places.lines);
    if (checked("show-boxes")) for (const object of this.found.objects) box(area, object);
  }
}

const lives = [...document.querySelectorAll(".stage.live")].map((stage) => new Live(stage));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const live = lives.find((each) => each.stage === entry.target);
    live.seen = entry.isIntersecting;
    if (live.seen) live.pull();
  }
});
for (const live of lives) watcher.observe(live.stage);
const redraw = () => lives.forEach((live) => live.draw());
addEventListener("resize", redraw);
document.addEventListener("change", redraw);

const refresh = coalesced(async () => swap(await again(), "[data-swap]"), 1000);
setInterval(() => document.hidden || refresh(), 15000);
follow({ camera: refresh, alert: refresh, health: refresh });
