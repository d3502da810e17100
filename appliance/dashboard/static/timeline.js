// A day of the recording: strips to drag on, pictures while dragging, playing, cutting, links to a moment.
import { by, coalesced, follow, get, keys, made, say } from "./page.js";
import { clockOf } from "./time.js";
import { Pane } from "./pane.js";
import { AXIS, drawStrip } from "./strip.js";
const SPANS_S = [86400, 6 * 3600, 3600, 600, 120];
const CUT_S_MAX = 900;
const TOGETHER_MAX = 4;
const TICK_MS = 150;
const HOLD_MS = 300; // so long one may lack its next piece before the others wait for it
const LISTED_MAX = 200;
const page = by("timeline");
const words = by("words").dataset;
const strips = [...document.querySelectorAll(".strip")].map(row => ({ camera: row.dataset.camera, row, canvas: row.querySelector("canvas") }));
const reports = new Map();
const blank = by("panes").firstElementChild;
const query = new URLSearchParams(location.search);

let chosen = page.dataset.chosen;
let skew = 0; // the appliance's clock less the viewer's
let now = () => Date.now() / 1000 + skew;
let t = Number(query.get("t")) || null;
let day = dayOf(t ?? Date.now() / 1000);
let view = [...day];
let cut = null;
let together = (query.get("with") ?? "").split(",").filter(name => strips.some(each => each.camera === name)).slice(0, TOGETHER_MAX);
let panes = [];
let playing = false;
let begun = false; // since it plays, the clock has moved
let silent = true;

const several = () => together.length > 1;
const report = () => reports.get(chosen);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Midnight to midnight of the viewer: 23 to 25 hours.
function dayOf(moment, days = 0) {
	const date = new Date(moment * 1000);
	const at = n => new Date(date.getFullYear(), date.getMonth(), date.getDate() + n).getTime() / 1000;
	return [at(days), at(days + 1)];
}

async function load(camera) {
	const [from, to] = day;
	const found = await get(`/api/v1/cameras/${encodeURIComponent(camera)}/timeline?from=${from}&to=${to}`);
	if (from !== day[0]) return; // another day was chosen meanwhile
	skew = found.now - Date.now() / 1000;
	reports.set(camera, found);
}

const stale = new Set(); // cameras whose report is to be fetched
const reload = coalesced(async () => {
	while (stale.size) {
		const asked = day;
		const camera = stale.has(chosen) ? chosen : [...stale][0];
		stale.delete(camera);
		await load(camera);
		if (asked !== day) continue; // to another one, of which none is there yet
		if (camera === chosen) settle();
		draw();
	}
	page.dataset.loaded = day[0];
}, 3000);

function refresh(camera) {
	for (const each of strips) if (!camera || each.camera === camera) stale.add(each.camera);
	reload();
}

// Where a person lands who named no moment: at the newest recording of today, or where a day's recording begins.
function settle() {
	if (t === null && report()) {
		const spans = report().recorded;
		const today = day[1] > now();
		t = spans.length ? (today ? spans.at(-1).t_end - 5 : spans[0].t_start) : Math.min(day[0] + 43200, now());
		show();
	} else if (t !== null && !playing) show();
	list();
}

function seek(moment, { follow: goOn = true } = {}) {
	t = clamp(moment, day[0], Math.min(day[1], now()));
	if (t < view[0] || t > view[1]) centre(view[1] - view[0]);
	const played = playing;
	if (played) stop();
	show();
	if (played && goOn) play();
	draw();
}

function choose(camera) {
	if (camera === chosen) return;
	chosen = camera;
	cut = null;
	arrange();
	list();
	show();
	draw();
}

function centre(span) {
	const full = day[1] - day[0];
	const wide = Math.min(span, full);
	const from = clamp(t - wide / 2, day[0], day[1] - wide);
	view = [from, from + wide];
}

function zoom(way) {
	const at = SPANS_S.findIndex(span => span <= 1.1 * (view[1] - view[0]));
	centre(SPANS_S[clamp(at + way, 0, SPANS_S.length - 1)] ?? day[1] - day[0]);
	if (view[1] - view[0] >= 82800) view = [...day];
	draw();
}

function go(days) {
	if (playing) stop();
	day = dayOf(day[0] + 43200, days);
	open();
}

function open(moment = null) {
	view = [...day];
	reports.clear();
	cut = null;
	t = moment;
	delete page.dataset.loaded;
	draw();
	refresh();
}

function arrange() {
	const cameras = several() ? together : [chosen];
	for (const { camera, row } of strips) {
		const box = row.querySelector("input");
		if (box) Object.assign(box, { checked: together.includes(camera), disabled: together.length >= TOGETHER_MAX && !together.includes(camera) });
	}
	if (`${cameras}` !== `${panes.map(pane => pane.camera)}`) {
		if (playing) stop();
		by("panes").replaceChildren(...cameras.map(() => blank.cloneNode(true)));
		by("panes").dataset.count = cameras.length;
		panes = cameras.map((camera, n) => {
			const stage = by("panes").children[n];
			stage.querySelector(".name").textContent = camera;
			stage.onclick = () => choose(camera);
			return new Pane(stage, camera, { report: name => reports.get(name), clock: () => t, ready: tick, failed });
		});
	}
	for (const pane of panes) pane.stage.classList.toggle("chosen", several() && pane.camera === chosen);
}

function show() {
	if (t === null) return;
	address();
	for (const pane of panes)
		if (pane.report) pane.show(t, now(), dragging ? Math.max(1, (view[1] - view[0]) / 600) : 0.1, dragging);
}

function note(text) {
	panes.find(pane => pane.camera === chosen)?.note(text);
}

function play() {
	playing = true;
	begun = false;
	note(words.loading);
	tick();
	button();
}

function stop() {
	playing = false;
	for (const pane of panes) pane.stop();
	button();
	show();
	draw();
}

function failed(text) {
	stop();
	note(text);
}

// The first camera that plays is the clock, and the others keep to it.
function tick() {
	if (!playing) return;
	const lead = panes.find(pane => pane.current && !pane.loadingSince);
	const waits = panes.some(pane => pane.waitsMs > (begun ? HOLD_MS : 0));
	if (lead) {
		begun ||= lead.position > t + 0.1;
		t = lead.position;
	} else if (!waits && !panes.some(pane => pane.loadingSince || pane.playable(t))) {
		t = Math.min(...panes.flatMap(pane => pane.report?.recorded ?? []).map(span => span.t_start).filter(start => start > t));
		if (t === Infinity) return finish();
	}
	by("sound").hidden = !panes.some(pane => pane.current?.piece.sound);
	for (const pane of panes)
		pane.follow(t, now(), { rate: Number(by("speed").value), hold: waits, leads: pane === lead, muted: silent || pane.camera !== chosen });
	if (t > view[1]) centre(view[1] - view[0]);
	address();
	draw();
}

function finish() {
	t = Math.max(...panes.map(pane => pane.report?.recorded.at(-1)?.t_end ?? 0));
	stop();
	note(words.end);
}

function button() {
	const play = by("play");
	play.textContent = playing ? play.dataset.pause : play.dataset.play;
}

function alerts() {
	const found = [];
	for (const camera of several() ? together : strips.map(each => each.camera)) for (const alert of reports.get(camera)?.alerts ?? []) found.push({ ...alert, camera });
	return found.sort((a, b) => a.t_start - b.t_start);
}

function jump(way) {
	const all = alerts();
	const next = way > 0 ? all.find(each => each.t_start > t + 0.5) : all.findLast(each => each.t_start < t - 0.5);
	if (!next) return say(way > 0 ? words.noLater : words.noEarlier), note(way > 0 ? words.noLater : words.noEarlier);
	choose(next.camera);
	seek(next.t_start);
	say(`${next.title}, ${next.camera}, ${clockOf(next.t_start)}`);
}

let listed = "";
function list() {
	const found = report();
	if (!found) return;
	const until = each => (each.t_end === null ? words.lasts : `${words.until} ${clockOf(each.t_end)}`);
	const rows = [
		...found.alerts.map(each => ({ t: each.t_start, kind: `sev ${each.severity}`, text: each.title, href: each.page })),
		...found.missing.map(each => ({ t: each.t_start, kind: `l-${each.kind === "interrupted" ? "interrupted" : "deleted"}`, text: `${words.missing} ${until(each)}: ${each.reason}` })),
		...found.health.map(each => ({ t: each.t_start, kind: "l-health", text: `${each.title}${each.camera ? "" : ` (${words.appliance})`} ${until(each)}` }))
	].sort((a, b) => a.t - b.t);
	by("who").textContent = chosen;
	const state = JSON.stringify([chosen, rows, found.alerts_left_out]);
	if (state === listed) return; // what has the focus stays
	listed = state;
	by("nothing").hidden = rows.length > 0;
	by("happened").replaceChildren(...rows.slice(0, LISTED_MAX).map(line));
	const more = rows.length - LISTED_MAX + found.alerts_left_out;
	if (rows.length > LISTED_MAX || found.alerts_left_out) {
		by("happened").append(made("li", { className: "muted", textContent: `${Math.max(more, found.alerts_left_out)} ${words.more}` }));
	}
}

function line(each) {
	const to = made("button", { type: "button", onclick: () => seek(each.t) });
	to.append(made("i", { className: each.kind }), clockOf(each.t), made("span", { textContent: each.text }));
	const item = made("li");
	item.append(to);
	if (each.href) item.append(made("a", { href: each.href, textContent: "→", ariaLabel: `${each.text}, ${clockOf(each.t)}` }));
	return item;
}

function mark(end) {
	const [from, to] = cut ?? [t, null];
	cut = end ? [from < t ? from : t - 30, t] : [t, to !== null && to > t ? to : null];
	draw();
}

let stated;
function cutState() {
	if (stated === cut) return; // what was said of it stands
	stated = cut;
	const [from, to] = cut ?? [null, null];
	const ready = to !== null && to - from <= CUT_S_MAX;
	by("cut").disabled = !ready;
	const said = by("cut-words");
	if (from === null) said.textContent = said.dataset.none;
	else if (to !== null && !ready) said.textContent = said.dataset.long;
	else said.textContent = `${clockOf(from)} – ${to === null ? "…" : clockOf(to)}${to === null ? "" : `, ${Math.round(to - from)} s`}`;
}

async function download() {
	const [from, to] = cut;
	by("cut").disabled = true;
	by("cut-words").textContent = `${words.cutting} …`;
	try {
		const found = await get(`${report().recording}?from=${from.toFixed(2)}&to=${to.toFixed(2)}`);
		made("a", { href: found.download, download: "" }).click();
		stated = 0;
		cutState();
		if (found.note) by("cut-words").textContent += `: ${found.note}`;
	} catch (error) {
		by("cut").disabled = false;
		by("cut-words").textContent = error.message;
	}
}

const linkTo = () => (several() ? `/timeline?${searched()}` : `/cameras/${encodeURIComponent(chosen)}/timeline?t=${t.toFixed(1)}`);
const searched = () => {
	const named = "single" in page.dataset ? [] : [["camera", chosen], ...(several() ? [["with", together.join()]] : [])];
	return `${new URLSearchParams([...named, ["t", t.toFixed(1)]])}`.replaceAll("%2C", ",");
};

// The address always names the moment, so that the page can be kept, reloaded and sent on.
let addressed = 0;
function address() {
	if (Date.now() - addressed < 500) return; // browsers refuse more than some hundred changes in half a minute
	addressed = Date.now();
	history.replaceState(null, "", `${location.pathname}?${searched()}`);
	by("why").href = `/cameras/${encodeURIComponent(chosen)}/why?t=${t.toFixed(1)}`;
}

async function share() {
	const field = by("link").querySelector("input");
	field.value = new URL(linkTo(), location.href).href;
	by("link").hidden = false;
	field.select();
	try {
		await navigator.clipboard.writeText(field.value);
		say(words.copied);
	} catch {
		// over plain HTTP there is no clipboard: the link stands there, selected
	}
}

let due = false;
function draw() {
	if (due) return;
	due = true;
	requestAnimationFrame(() => {
		due = false;
		for (const { camera, canvas, row } of strips) {
			drawStrip(canvas, reports.get(camera), view, { t, cut: camera === chosen ? cut : null }, now());
			row.classList.toggle("chosen", camera === chosen && strips.length > 1);
			if (t === null) continue;
			canvas.setAttribute("aria-valuenow", Math.round(t - day[0]));
			canvas.setAttribute("aria-valuetext", clockOf(t));
		}
		by("clock").textContent = t === null ? "" : clockOf(t);
		const hours = (view[1] - view[0]) / 3600;
		by("width").textContent = hours >= 1 ? `${Math.round(hours)} h` : `${Math.round(hours * 60)} min`;
		const date = new Date((day[0] + 43200) * 1000);
		by("day").value = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map(n => String(n).padStart(2, "0")).join("-");
		by("day-after").disabled = day[1] > now();
		cutState();
	});
}

let dragging = false;

const momentOf = (event, canvas) => {
	const area = canvas.getBoundingClientRect();
	return view[0] + clamp((event.clientX - area.left) / area.width, 0, 1) * (view[1] - view[0]);
};

for (const { camera, canvas, row } of strips) {
	canvas.onpointerdown = event => {
		if (event.button) return;
		canvas.setPointerCapture(event.pointerId);
		dragging = true;
		choose(camera);
		seek(momentOf(event, canvas), { follow: false });
		button();
	};
	canvas.onpointermove = event => {
		if (dragging && canvas.hasPointerCapture(event.pointerId)) seek(momentOf(event, canvas));
		if (event.pointerType === "mouse" || dragging) preview(camera, canvas, row, momentOf(event, canvas), event.clientX);
	};
	canvas.onpointerup = canvas.onpointercancel = () => {
		if (!dragging) return;
		dragging = false;
		by("bubble").hidden = true;
		show();
	};
	canvas.onpointerleave = () => dragging || (by("bubble").hidden = true);
	canvas.onfocus = () => choose(camera);
	canvas.addEventListener("wheel", event => {
		if (!event.ctrlKey) return;
		event.preventDefault();
		zoom(event.deltaY < 0 ? 1 : -1);
	}, { passive: false });
	canvas.onkeydown = event => {
		const step = { ArrowLeft: -10, ArrowRight: 10, PageDown: -600, PageUp: 600 }[event.key];
		if (step) seek(t + step * (event.shiftKey ? 6 : 1));
		else if (event.key === "Home") seek(report()?.recorded[0]?.t_start ?? day[0]);
		else if (event.key === "End") seek((report()?.recorded.at(-1)?.t_end ?? day[1]) - 1);
		else return;
		event.preventDefault();
	};
}

// A small picture over the pointer; of the chosen camera or of the one under it.
let asked = "";
async function preview(camera, canvas, row, moment, x) {
	const bubble = by("bubble");
	const found = reports.get(camera);
	const span = found?.recorded.find(each => each.t_start - 1 <= moment && moment <= each.t_end);
	const home = bubble.parentElement.getBoundingClientRect();
	bubble.hidden = false;
	bubble.style.top = `${row.getBoundingClientRect().top - home.top + AXIS}px`;
	bubble.style.left = `${clamp(x - home.left, 80, home.width - 80)}px`;
	bubble.querySelector("span").textContent = clockOf(moment);
	const image = bubble.querySelector("img");
	image.hidden = !span;
	if (!span) return;
	const fine = Math.max(1, (view[1] - view[0]) / 600);
	asked = `${found.frame}?t=${clamp(Math.round(moment / fine) * fine, span.t_start, span.t_end).toFixed(1)}&size=small`;
	if (image.dataset.busy) return;
	while (image.getAttribute("src") !== asked && !bubble.hidden) {
		image.dataset.busy = "1";
		image.src = asked;
		await image.decode().catch(() => {});
		delete image.dataset.busy;
	}
}

const actions = {
	" ": () => (playing ? stop() : play()),
	j: () => jump(-1),
	k: () => jump(1),
	m: () => {
		silent = !silent;
		by("sound").setAttribute("aria-pressed", !silent);
	},
	i: () => mark(false),
	o: () => mark(true),
	"+": () => zoom(1),
	"-": () => zoom(-1)
};
keys({ ...actions, " ": () => (document.activeElement?.closest("button, a") ? false : actions[" "]()) });
const clicks = {
	play: actions[" "],
	sound: actions.m,
	"alert-before": actions.j,
	"alert-after": actions.k,
	closer: actions["+"],
	wider: actions["-"],
	"cut-from": actions.i,
	"cut-to": actions.o,
	cut: download,
	share,
	"day-before": () => go(-1),
	"day-after": () => go(1),
	"to-now": () => {
		if (playing) stop();
		day = dayOf(now());
		open();
	}
};
for (const [id, act] of Object.entries(clicks)) by(id).onclick = act;
by("days").addEventListener("submit", event => event.preventDefault());
by("day").addEventListener("change", event => {
	const [year, month, date] = event.target.value.split("-").map(Number);
	if (!year) return;
	if (playing) stop();
	day = dayOf(new Date(year, month - 1, date, 12).getTime() / 1000);
	open();
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
const today = camera => day[1] > now() && refresh(camera);
setInterval(() => document.hidden || today(), 15000);
const changed = row => today(row.camera ?? row.name);
follow({ alert: changed, camera: changed, health: changed });
for (const { camera, row } of strips)
	row.querySelector("input")?.addEventListener("change", ({ target }) => {
		together = target.checked ? [...together, camera] : together.filter(name => name !== camera);
		if (together.length && !together.includes(chosen)) choose(together[0]);
		arrange();
		addressed = 0;
		show();
		draw();
	});
setInterval(tick, TICK_MS);
arrange();
draw();
refresh();
