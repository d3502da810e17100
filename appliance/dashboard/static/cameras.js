// @ts-check
// What cameras see now, boxes over it: video where the page has one and the browser plays it, else stills.
import { by, coalesced, follow, made, renew } from "./page.js";
import { problemOf } from "./problem.js";
import { store, stored } from "./stored.js";
import { t } from "./texts.js";
import { begin, box, paint, places } from "./draw.js";
import { codecNamed, LivePlayer, watch } from "./live.js";
import { clockOf } from "./time.js";
const checked = id => by(id)?.checked ?? true;

const OLD_S = 15; // a segment may take a few seconds to reach the disk
const STUCK_MS = 4000; // without a new frame: stills are shown
const EXAMINED_MAX = 100; // frames whose boxes are kept for the video to come

const LIVE = { converted: () => t("Live, converted"), second: () => t("Live, second stream") };

function whyInstead({ instead, codec, share, keys_only }) {
	if (!instead) return "";
	const why = t("This camera sends {codec}, which this browser cannot play.", { codec: codecNamed(codec) });
	if (instead === "second") return `${why} ${t("Its second, smaller stream is shown.")}`;
	const percent = Math.max(1, Math.round(100 * share));
	const cost = share === null ? t("The picture is converted here.") : t("The picture is converted here, which costs about {percent} % of a core.", { percent });
	return `${why} ${cost}${keys_only ? ` ${t("All of it would cost more than half a core, so it shows one picture every few seconds.")}` : ""}`;
}

class Live {
	constructor(stage) {
		this.stage = stage;
		this.canvas = stage.querySelector("canvas");
		this.note = stage.querySelector(".note");
		this.instead = stage.parentElement.querySelector(".instead");
		this.seen = false;
		/** @type {any} what is played instead of what the camera sends, and what that costs */
		this.told = {};
		this.shownAt = 0; // ms: when the last frame of the video came
		this.image = null;
		this.found = { objects: [] };
		this.places = { zones: {}, lines: {} };
		this.pull = coalesced(() => this.playing || this.next());
		if (stage.dataset.cameraUrl) this.learn(stage.dataset.cameraUrl);
		this.video = stage.querySelector("video");
		/** @type {any} a LivePlayer; null where the page has no video */
		this.video?.addEventListener("resize", () => this.draw());
		this.player = this.video && new LivePlayer(stage.dataset.name, this.video, at => this.shown(at), why => this.stills(why));
		setInterval(() => this.tick(), Number(stage.dataset.every));
	}
	tick() {
		if (document.hidden) return;
		if (this.playing && Date.now() - this.shownAt > STUCK_MS) this.stills(this.idle ? "" : t("no live video comes"));
		if (this.seen) this.pull();
	}
	// Messages by kind, see docs/dashboard.md.
	view = {
		c: type => this.player.begin(type),
		v: bytes => this.player.take(bytes),
		b: frames => (this.player.examined = [...this.player.examined, ...JSON.parse(frames)].slice(-EXAMINED_MAX)),
		n: text => {
			const { active, problem, ...told } = JSON.parse(text);
			this.idle = !active;
			this.told = told;
			if (this.playing) this.mode(LIVE[told.instead]?.() ?? t("Live"), true);
			if (problem || (this.idle && !this.playing)) this.stills(problem);
		},
		lost: why => this.stills(why)
	};
	shown(at) {
		if (!this.playing) this.mode(LIVE[this.told.instead]?.() ?? t("Live"), true);
		this.shownAt = Date.now();
		this.update(at, this.player.objectsAt(at));
		this.note.hidden = true;
		this.stage.classList.remove("old");
	}
	stills(why) {
		const was = this.playing;
		this.t = null;
		this.mode(why ? t("Stills: {why}", { why }) : t("Still"), false);
		if (was) this.pull();
	}
	mode(text, playing) {
		this.playing = playing;
		this.stage.classList.toggle("playing", playing);
		this.stage.querySelector(".mode").textContent = text;
		if (!this.instead) return;
		this.instead.textContent = playing ? whyInstead(this.told) : "";
		this.instead.hidden = !this.instead.textContent;
	}
	update(at, objects) {
		this.found = { objects };
		const shown = by("frame-time");
		if (shown) shown.textContent = t("Picture of {time}", { time: clockOf(at) });
		this.draw();
	}
	async learn(url) {
		const answer = await fetch(url);
		if (answer.ok) this.places = await answer.json();
		this.draw();
	}
	async next() {
		const answer = await fetch(this.stage.dataset.picture);
		if (this.playing) return;
		if (answer.status !== 200) {
			this.note.textContent = answer.ok ? t("Waiting for the first picture") : await problemOf(answer);
			this.note.hidden = false;
			return;
		}
		const at = answer.headers.get("X-Frame-Time");
		this.warnIfOld(Number(at), Date.parse(answer.headers.get("Date") ?? "") / 1000);
		if (at === this.t) return;
		const image = await createImageBitmap(await answer.blob());
		const boxes = await fetch(`${this.stage.dataset.boxes}?t=${at}`);
		const found = (boxes.ok && (await boxes.json())) || { objects: [] };
		if (this.playing) return;
		this.image?.close();
		Object.assign(this, { image, t: at });
		this.update(Number(at), found.objects);
	}
	// An old picture must never pass for a live one. `now` is the appliance's: the viewer's clock may be wrong.
	warnIfOld(at, now) {
		const old = now - at > OLD_S;
		this.note.textContent = t("Last picture {time}", { time: clockOf(at) });
		this.note.hidden = !old;
		this.stage.classList.toggle("old", old);
	}
	draw() {
		const { video, image } = this;
		const [w, h] = this.playing ? [video.videoWidth, video.videoHeight] : [image?.width, image?.height];
		if (!w) return; // nothing was loaded yet, or a video of another codec begins
		const area = begin(this.canvas, w, h);
		if (!this.playing) paint(area, image);
		if (checked("show-zones")) places(area, this.places.zones, this.places.lines);
		if (checked("show-boxes")) for (const object of this.found.objects) box(area, object);
		this.stage.dataset.objects = this.found.objects.length; // of what is on the canvas
	}
}

const lives = [...document.querySelectorAll(".stage.live")].map(stage => new Live(stage));
const redraw = () => {
	for (const live of lives) live.draw();
};
const watcher = new IntersectionObserver(entries => {
	for (const entry of entries) {
		const live = lives.find(each => each.stage === entry.target);
		if (!live) continue;
		live.seen = entry.isIntersecting;
		if (live.seen) live.pull();
	}
});
for (const live of lives) watcher.observe(live.stage);

// A wall is live where something moves, and all the time where it was chosen.
const wall = by("wall");
let large = null;
let leave = [];

function connect() {
	for (const each of leave) each();
	leave = [false, true].map(all => {
		const some = lives.filter(live => live.video && (live === large) === all);
		const views = Object.fromEntries(some.map(live => [live.stage.dataset.name, live.view]));
		return watch(views, wall && !all ? "active" : "always");
	});
}

function enlarge(live) {
	large = large === live ? null : live;
	for (const each of lives) {
		each.stage.closest("li").classList.toggle("large", each === large);
		each.stage.setAttribute("aria-expanded", each === large);
	}
	redraw();
	connect();
}

const COLUMNS = "columns";
function layOut() {
	const columns = by("columns");
	const full = by("wall-full");
	if (!columns) return;
	const apply = () => {
		wall.style.gridTemplateColumns = columns.value && `repeat(${columns.value}, minmax(0, 1fr))`;
		redraw();
	};
	columns.value = stored(COLUMNS, "");
	columns.addEventListener("change", () => {
		store(COLUMNS, columns.value);
		apply();
	});
	apply();
	putInOrder();
	by("wall-order").addEventListener("click", event => letOrder(event.currentTarget));
	full.hidden = !document.fullscreenEnabled;
	full.addEventListener("click", () => wall.requestFullscreen());
}

// The order that a person gives the wall, in this browser; cameras that came later stand at the end.
const ORDER = "order";
const nameOf = tile => tile.querySelector(".stage").dataset.name;

function putInOrder() {
	const names = stored(ORDER, []);
	const rank = tile => (names.indexOf(nameOf(tile)) + names.length + 1) % (names.length + 1);
	wall.append(...[...wall.children].sort((one, other) => rank(one) - rank(other)));
}

function letOrder(button) {
	const on = button.getAttribute("aria-pressed") !== "true";
	button.setAttribute("aria-pressed", on);
	for (const tile of wall.children) {
		tile.querySelector(".order")?.remove();
		if (!on) continue;
		const bar = made("span", { className: "order" });
		const name = tile.querySelector(".line a").textContent;
		for (const [sign, text, beside] of [["←", t("{name}: one place forward", { name }), "previousElementSibling"], ["→", t("{name}: one place back", { name }), "nextElementSibling"]]) {
			const move = made("button", { type: "button", textContent: sign, ariaLabel: text });
			move.onclick = () => {
				const other = tile[beside];
				if (!other) return;
				if (sign === "←") other.before(tile);
				else other.after(tile);
				store(ORDER, [...wall.children].map(nameOf));
				move.focus();
			};
			bar.append(move);
		}
		tile.append(bar);
	}
}

if (wall) {
	layOut();
	for (const live of lives) live.stage.addEventListener("click", () => enlarge(live));
	document.addEventListener("keydown", event => event.key === "Escape" && large && enlarge(large));
}
connect();

addEventListener("asklive", connect);
addEventListener("resize", redraw);
document.addEventListener("change", redraw);

const refresh = coalesced(renew, 1000);
setInterval(() => document.hidden || refresh(), 15000);
follow({ camera: refresh, alert: refresh, health: refresh });
