// @ts-check
// One alert: the clip with its boxes in time, the tracks' life, the review.
import { by, coalesced, follow, get, keys, light, made, reload, review, swap } from "./page.js";
import { t } from "./texts.js";
import { begin, box } from "./draw.js";
import { converted } from "./converted.js";
import { offerExport } from "./export.js";
import { offerKeep } from "./keep.js";
import { offerRemove } from "./remove.js";
import { isWriting, offerNote } from "./note.js";
const HOLD_S = 0.3; // a box stands this long beyond its look when the next look lacks it
const BRIDGE_S = 2.5; // a box moves between two looks no further apart than this,
const BRIDGE_FRAMES = 2; // of which at most one look in between did not find it
const page = by("alert");
const clip = () => by("clip");
const showBoxes = () => by("show-boxes")?.checked ?? true;
let tracks = new Map();
let redraw = drawStill;
let poster = true; // the best picture stands for the clip until it is played or sought

// boxes.json: looks in time, each with the objects seen, become per track a path that can be interpolated.
function learn(looks) {
	tracks = new Map();
	looks.forEach((look, n) => {
		for (const object of look.objects) {
			if (!tracks.has(object.track)) tracks.set(object.track, []);
			tracks.get(object.track).push({ n, t: look.t, ...object });
		}
	});
}

function at(path, t) {
	let low = 0;
	let high = path.length - 1;
	while (low < high) {
		const middle = (low + high + 1) >> 1;
		if (path[middle].t <= t) low = middle;
		else high = middle - 1;
	}
	const here = path[low];
	const next = path[low + 1];
	if (t < here.t) return here.t - t < 0.05 ? here : null;
	if (!next || next.t - here.t > BRIDGE_S || next.n - here.n > BRIDGE_FRAMES) return t - here.t < HOLD_S ? here : null;
	const share = (t - here.t) / (next.t - here.t);
	return { ...here, score: share < 0.5 ? here.score : next.score, box: here.box.map((v, i) => v + (next.box[i] - v) * share) };
}

function draw(seconds) {
	const video = clip();
	const canvas = by("overlay");
	if (!video?.videoWidth || !canvas) return;
	const area = begin(canvas, video.videoWidth, video.videoHeight);
	const t = poster || stillShown() ? Number(video.dataset.still) : Number(video.dataset.start) + seconds;
	needle(t);
	if (!showBoxes()) return;
	for (const path of tracks.values()) {
		const object = at(path, t);
		if (object) box(area, object);
	}
}

function needle(t) {
	const life = by("life");
	const [start, end] = [Number(life.dataset.start), Number(life.dataset.end)];
	const x = `${Math.min(100, Math.max(0, (100 * (t - start)) / (end - start)))}%`;
	for (const line of document.querySelectorAll(".needle")) for (const end of ["x1", "x2"]) line.setAttribute(end, x);
}

// While the clip is not cut yet, the still shows whom the alert is about.
function drawStill() {
	const image = by("still");
	if (!image?.dataset.box || !image.naturalWidth) return;
	const { label, score, track } = image.dataset;
	const area = begin(by("overlay"), image.naturalWidth, image.naturalHeight);
	box(area, { label, score: Number(score), track: Number(track), box: image.dataset.box.split(" ").map(Number) });
}

async function play() {
	const video = clip();
	if (!video) {
		by("still")?.addEventListener("load", drawStill);
		drawStill();
		return;
	}
	for (const event of ["error", "loadedmetadata"]) video.addEventListener(event, () => (video.error || !video.videoWidth) && convert(video));
	if (video.error) convert(video);
	poster = Boolean(video.dataset.still) && video.paused && !video.currentTime;
	for (const event of ["play", "seeking"]) video.addEventListener(event, () => (poster = false));
	let shown = null; // the time of the frame on screen, which currentTime is ahead of
	const now = () => draw(shown ?? video.currentTime);
	if (video.requestVideoFrameCallback) {
		const each = (_, frame) => {
			shown = frame.mediaTime;
			draw(shown);
			video.requestVideoFrameCallback(each);
		};
		video.requestVideoFrameCallback(each);
	} else for (const event of ["seeked", "timeupdate", "pause", "play"]) video.addEventListener(event, now);
	video.addEventListener("loadeddata", now);
	by("show-boxes")?.addEventListener("change", now);
	redraw = now;
	offerFullScreen(video);
	now();
	if (!video.dataset.boxes) return;
	try {
		learn((await get(video.dataset.boxes)).frames);
		redraw();
	} catch (error) {
		tell(error.message); // the clip plays without its boxes, and says so
	}
}

// The browser's own full screen would show the clip without its boxes.
function offerFullScreen(video) {
	const button = by("full-screen");
	if (!document.fullscreenEnabled || !button) return;
	video.controlsList?.add("nofullscreen");
	button.hidden = false;
	button.addEventListener("click", () => by("stage").requestFullscreen());
}

// What this browser cannot play, the appliance makes an H.264 copy of; the picture stands meanwhile.
async function convert(video) {
	if (video.dataset.converted) return tell(t("This browser cannot play the clip's codec. Download it, or look at the best picture."));
	video.dataset.converted = "1";
	try {
		const copy = await converted(`/api/v1/alerts/${encodeURIComponent(page.dataset.id)}/rendition`, text => video.isConnected && tell(text), () => video.isConnected);
		if (!copy) return;
		video.src = copy.url;
		tell(t("Converted for this browser"));
		video.addEventListener("playing", () => tell(""), { once: true });
	} catch (error) {
		tell(error.message);
	}
}

function tell(text) {
	const stage = by("stage");
	let note = stage.querySelector(".note");
	if (!note) {
		note = made("p", { className: "note" });
		stage.append(note);
	}
	note.hidden = !text;
	note.textContent = text;
}

function seek(t) {
	const video = clip();
	if (!video) return;
	toggleStill(false);
	video.currentTime = Math.max(0, t - Number(video.dataset.start));
}

const stillShown = () => by("show-still")?.getAttribute("aria-pressed") === "true";

// The still lies over the clip, as a picture of its own.
function toggleStill(wanted) {
	const button = by("show-still");
	if (!button || stillShown() === wanted) return;
	button.setAttribute("aria-pressed", String(wanted));
	by("poster")?.remove();
	if (wanted) {
		clip().pause();
		const image = new Image();
		image.id = "poster";
		image.src = clip().poster;
		image.alt = document.querySelector("h1").textContent.trim();
		clip().after(image);
	}
	draw(clip().currentTime);
}

async function mark(value) {
	const buttons = document.querySelectorAll("#review button");
	if (!buttons.length) return; // who may only look
	for (const button of buttons) button.disabled = true;
	try {
		await review(page.dataset.id, value);
		await refresh();
		if (document.activeElement === document.body) document.querySelector("#review button").focus(); // not if a person went on meanwhile
	} catch (error) {
		light("lost", error.message);
	}
	for (const button of buttons) button.disabled = false;
}

// Take over what changed, without disturbing a clip that plays.
const refresh = coalesced(async () => {
	const fresh = await reload();
	swap(fresh, "#review, #verdict, #told, #about, #gone, #learnt, .head");
	const remove = by("remove"); // stays as it is while a person types
	if (fresh.querySelector("#remove").dataset.state !== remove.dataset.state) swap(fresh, "#remove");
	if (!isWriting()) swap(fresh, "#note");
	const keep = by("keep"); // stays as it is while a person types
	if (fresh.querySelector("#keep").dataset.state !== keep.dataset.state) swap(fresh, "#keep");
	const scene = by("scene");
	if (fresh.querySelector("#scene").dataset.state !== scene.dataset.state) {
		swap(fresh, "#scene");
		await play();
	}
}, 300);

function go(id) {
	const link = by(id);
	if (link?.href) location.href = link.href;
}

document.addEventListener("click", event => {
	const button = event.target.closest("button[data-review], button[data-t], #show-still");
	if (button?.id === "show-still") toggleStill(!stillShown());
	else if (button?.dataset.t) seek(Number(button.dataset.t));
	else if (button) mark(button.dataset.review || null);
	const bars = event.target.closest(".bars");
	if (bars) {
		const life = by("life");
		const share = (event.clientX - bars.getBoundingClientRect().left) / bars.clientWidth;
		seek(Number(life.dataset.start) + share * (Number(life.dataset.end) - Number(life.dataset.start)));
	}
});
keys({
	r: () => mark("reviewed"),
	f: () => mark("false_alarm"),
	u: () => mark(null),
	j: () => go("older"),
	k: () => go("newer")
});
for (const event of ["resize", "fullscreenchange"]) addEventListener(event, () => redraw(), true);
offerKeep(page.dataset.id, refresh);
offerNote(page.dataset.id, refresh);
offerExport(() => ({ url: `/api/v1/alerts/${encodeURIComponent(page.dataset.id)}/export` }));
offerRemove(page.dataset.id, refresh);
follow({ alert: alert => alert.id === page.dataset.id && refresh() });
play();
