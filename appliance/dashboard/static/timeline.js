// @ts-check
// A day of the recording: strips to drag on, pictures while dragging, playing, cutting, links to a moment.
import { by, coalesced, follow, get, keys, made, say } from "./page.js";
import { clockOf, momentOf } from "./time.js";
import { Pane } from "./pane.js";
import { AXIS, drawStrip } from "./strip.js";
import { offerExport } from "./export.js";
import { centred, clamp, CUT_S_MAX, dateOf, dayNamed, dayOf, isReady, landing, marked, momentAt } from "./timeline_view.js";
import { neighbour, nextStart, noonOf, frameStep, stepOf, width, zoomed } from "./timeline_view.js";
const TOGETHER_MAX = 4;
const TICK_MS = 150;
const HOLD_MS = 300; // a camera may lack its next piece this long before the others wait for it
const LISTED_MAX = 200;
const ADDRESS_MS = 500; // browsers refuse more than some hundred changes of the address in half a minute
const words = by("words").dataset;

// A small picture over the pointer: the camera under it at the moment under it.
class Bubble {
	constructor() {
		this.element = by("bubble");
		this.image = this.element.querySelector("img");
		this.wanted = "";
	}
	hide() {
		this.element.hidden = true;
	}
	/**
	 * @param {TimelineReport | undefined} report
	 * @param {HTMLElement} row
	 * @param {number} moment
	 * @param {number} x of the pointer
	 * @param {number} step_s between two pictures
	 */
	show(report, row, moment, x, step_s) {
		const span = report?.recorded.find(span => span.t_start - 1 <= moment && moment <= span.t_end);
		const home = this.element.parentElement.getBoundingClientRect();
		this.element.hidden = false;
		this.element.style.top = `${row.getBoundingClientRect().top - home.top + AXIS}px`;
		this.element.style.left = `${clamp(x - home.left, 80, home.width - 80)}px`;
		this.element.querySelector("span").textContent = clockOf(moment);
		this.image.hidden = !span;
		if (!report || !span) return;
		this.wanted = `${report.frame}?t=${clamp(Math.round(moment / step_s) * step_s, span.t_start, span.t_end).toFixed(1)}&size=small`;
		this.pull();
	}
	// One picture at a time, and always the one wanted last.
	async pull() {
		if (this.image.dataset.busy) return;
		while (this.image.getAttribute("src") !== this.wanted && !this.element.hidden) {
			this.image.dataset.busy = "1";
			this.image.src = this.wanted;
			await this.image.decode().catch(() => {});
			delete this.image.dataset.busy;
		}
	}
}

// The list of the day: alerts, what is missing and faults of the chosen camera.
class DayList {
	/** @param {(moment: number) => void} seek */
	constructor(seek) {
		this.seek = seek;
		this.listed = "";
		this.since = 0; // when the day begins
	}
	/**
	 * @param {string} camera
	 * @param {TimelineReport | undefined} report
	 */
	show(camera, report) {
		if (!report) return;
		const until = each => (each.t_end === null ? words.lasts : `${words.until} ${clockOf(each.t_end)}`);
		const rows = [
			...report.alerts.map(each => ({ t: each.t_start, kind: `sev ${each.severity}`, text: each.title, href: each.page })),
			...report.missing.map(each => ({ t: each.t_start, kind: `l-${each.kind === "interrupted" ? "interrupted" : "deleted"}`, text: `${words.missing} ${until(each)}: ${each.reason}` })),
			...report.health.map(each => ({ t: each.t_start, kind: "l-health", text: `${each.title}${each.camera ? "" : ` (${words.appliance})`} ${until(each)}` }))
		].sort((a, b) => a.t - b.t);
		by("who").textContent = camera;
		this.since = report.t_start;
		const state = JSON.stringify([camera, rows, report.alerts_left_out]);
		if (state === this.listed) return; // an equal list stays as it is, and so does the focus in it
		this.listed = state;
		by("nothing").hidden = rows.length > 0;
		by("happened").replaceChildren(...rows.slice(0, LISTED_MAX).map(each => this.line(each)));
		const more = rows.length - LISTED_MAX + report.alerts_left_out;
		if (rows.length > LISTED_MAX || report.alerts_left_out)
			by("happened").append(made("li", { className: "muted", textContent: `${Math.max(more, report.alerts_left_out)} ${words.more}` }));
	}
	line(each) {
		const to = made("button", { type: "button", onclick: () => this.seek(each.t) });
		const at = each.t < this.since ? momentOf(each.t) : clockOf(each.t);
		to.append(made("i", { className: each.kind }), at, made("span", { textContent: each.text }));
		const item = made("li");
		item.append(to);
		if (each.href) item.append(made("a", { href: each.href, textContent: "→", ariaLabel: `${each.text}, ${clockOf(each.t)}` }));
		return item;
	}
}

class Timeline {
	/** @type {Map<string, TimelineReport>} */
	reports = new Map();
	/** @type {Pane[]} */
	panes = [];
	/** @type {Cut | null} */
	cut = null;
	/** @type {Cut | null | undefined} the cut that its sentence is about */
	stated;
	/** @type {Set<string>} cameras whose report is to be fetched */
	stale = new Set();
	skew = 0; // the appliance's clock less the viewer's
	playing = false;
	moved = false; // since it plays, the clock has moved
	silent = true;
	dragging = false;
	addressed = 0; // when the address was changed last, ms
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	addressing;
	due = false; // drawing waits for the next frame of the browser

	constructor() {
		this.page = by("timeline");
		this.strips = [...document.querySelectorAll(".strip")].map(row => ({ camera: row.dataset.camera, row, canvas: row.querySelector("canvas") }));
		this.blank = by("panes").firstElementChild;
		const query = new URLSearchParams(location.search);
		const asked = (query.get("with") ?? "").split(",");
		/** @type {string} */
		this.chosen = this.page.dataset.chosen;
		/** @type {string[]} */
		this.together = asked.filter(name => this.strips.some(each => each.camera === name)).slice(0, TOGETHER_MAX);
		/** @type {number | null} the moment shown; null before the first report */
		this.t = Number(query.get("t")) || null;
		this.day = dayOf(this.t ?? Date.now() / 1000);
		this.view = this.day;
		this.bubble = new Bubble();
		this.list = new DayList(moment => this.seek(moment));
		this.reload = coalesced(() => this.loadStale(), 3000);
		this.listen();
		this.arrange();
		this.draw();
		this.refresh();
	}
	get now() {
		return Date.now() / 1000 + this.skew;
	}
	get several() {
		return this.together.length > 1;
	}
	get report() {
		return this.reports.get(this.chosen);
	}
	// -- reports
	async load(camera) {
		const [from, to] = this.day;
		const found = await get(`/api/v1/cameras/${encodeURIComponent(camera)}/timeline?from=${from}&to=${to}`);
		if (from !== this.day[0]) return; // another day was chosen meanwhile
		this.skew = found.now - Date.now() / 1000;
		this.reports.set(camera, found);
	}
	async loadStale() {
		while (this.stale.size) {
			const asked = this.day;
			const camera = this.stale.has(this.chosen) ? this.chosen : [...this.stale][0];
			this.stale.delete(camera);
			try {
				await this.load(camera);
			} catch (error) {
				this.stale.add(camera);
				throw error;
			}
			if (asked !== this.day) continue; // no report of the new day is there yet
			if (camera === this.chosen) this.settle();
			this.draw();
		}
		this.page.dataset.loaded = this.day[0];
	}
	/** @param {string} [camera] all if it is left out */
	refresh(camera) {
		for (const each of this.strips) if (!camera || each.camera === camera) this.stale.add(each.camera);
		this.reload();
	}
	/** @param {string} [camera] */
	refreshToday(camera) {
		if (this.day[1] > this.now) this.refresh(camera);
	}
	// A person who named no moment lands on the recording.
	settle() {
		if (this.t === null && this.report) this.t = landing(this.report.recorded, this.day, this.now);
		if (this.t !== null && !this.playing) this.show();
		this.list.show(this.chosen, this.report);
	}
	// -- what is shown
	/** @param {number} moment */
	seek(moment, { follow: goOn = true } = {}) {
		this.t = clamp(moment, this.day[0], Math.min(this.day[1], this.now));
		this.keepInView();
		const played = this.playing;
		if (played) this.stop();
		this.show();
		if (played && goOn) this.play();
		this.draw();
	}
	/** @param {string} camera */
	choose(camera) {
		if (camera === this.chosen) return;
		this.chosen = camera;
		this.cut = null;
		this.arrange();
		this.list.show(this.chosen, this.report);
		this.show();
		this.draw();
	}
	keepInView() {
		if (this.t === null) return;
		if (this.t < this.view[0] || this.t > this.view[1]) this.view = centred(this.t, width(this.view), this.day);
	}
	/** @param {number} way 1 closer, -1 wider */
	zoom(way) {
		if (this.t === null) return;
		this.view = zoomed(this.t, this.view, this.day, way);
		this.draw();
	}
	/** @param {Stretch | null} day */
	open(day) {
		if (!day) return;
		if (this.playing) this.stop();
		this.day = this.view = day;
		this.reports.clear();
		this.cut = this.t = null;
		delete this.page.dataset.loaded;
		this.draw();
		this.refresh();
	}
	arrange() {
		const cameras = this.several ? this.together : [this.chosen];
		const full = this.together.length >= TOGETHER_MAX;
		for (const { camera, row } of this.strips) {
			const tick = row.querySelector("input");
			const checked = this.together.includes(camera);
			if (tick) Object.assign(tick, { checked, disabled: full && !checked });
		}
		if (`${cameras}` !== `${this.panes.map(pane => pane.camera)}`) {
			if (this.playing) this.stop();
			by("panes").replaceChildren(...cameras.map(() => this.blank.cloneNode(true)));
			by("panes").dataset.count = cameras.length;
			this.panes = cameras.map((camera, n) => this.paneOf(camera, by("panes").children[n]));
		}
		for (const pane of this.panes) pane.stage.classList.toggle("chosen", this.several && pane.camera === this.chosen);
	}
	paneOf(camera, stage) {
		stage.querySelector(".name").textContent = camera;
		stage.onclick = () => this.choose(camera);
		return new Pane(stage, camera, {
			report: name => this.reports.get(name),
			clock: () => this.t ?? 0,
			ready: () => this.tick(),
			failed: text => this.failed(text)
		});
	}
	show() {
		if (this.t === null) return;
		this.address();
		for (const pane of this.panes)
			if (pane.report) pane.show(this.t, this.now, this.dragging ? frameStep(this.view) : 0.1, this.dragging);
	}
	/** @param {string} text */
	note(text) {
		this.panes.find(pane => pane.camera === this.chosen)?.note(text);
	}
	// -- playing
	toggle() {
		if (this.playing) this.stop();
		else this.play();
	}
	play() {
		this.playing = true;
		this.moved = false;
		this.note(words.loading);
		this.tick();
		this.button();
	}
	stop() {
		this.playing = false;
		for (const pane of this.panes) pane.stop();
		this.button();
		this.show();
		this.draw();
	}
	failed(text) {
		this.stop();
		this.note(text);
	}
	// The first camera that plays is the clock, and the others keep to it.
	tick() {
		const { panes, t } = this;
		if (!this.playing || t === null) return;
		const lead = panes.find(pane => pane.current && !pane.loadingSince);
		const waits = panes.some(pane => pane.waitsMs > (this.moved ? HOLD_MS : 0));
		if (lead) {
			this.t = lead.position ?? t;
			this.moved ||= this.t > t + 0.1;
		} else if (!waits && !panes.some(pane => pane.loadingSince || pane.playable(t))) {
			this.t = nextStart(panes.flatMap(pane => pane.report?.recorded ?? []), t);
			if (this.t === Infinity) return this.finish();
		}
		by("sound").hidden = !panes.some(pane => pane.current?.piece.sound);
		const rate = Number(by("speed").value);
		for (const pane of panes)
			pane.follow(this.t, this.now, { rate, hold: waits, leads: pane === lead, muted: this.silent || pane.camera !== this.chosen });
		if (t > this.view[1]) this.keepInView();
		this.address();
		this.draw();
	}
	finish() {
		this.t = Math.max(...this.panes.map(pane => pane.report?.recorded.at(-1)?.t_end ?? 0));
		this.stop();
		this.note(words.end);
	}
	button() {
		const play = by("play");
		play.textContent = this.playing ? play.dataset.pause : play.dataset.play;
	}
	mute() {
		this.silent = !this.silent;
		by("sound").setAttribute("aria-pressed", !this.silent);
	}
	// -- alerts
	alerts() {
		const cameras = this.several ? this.together : this.strips.map(each => each.camera);
		const found = cameras.flatMap(camera => (this.reports.get(camera)?.alerts ?? []).map(alert => ({ ...alert, camera })));
		return found.sort((a, b) => a.t_start - b.t_start);
	}
	/** @param {number} way 1 to the next alert, -1 to the one before */
	jump(way) {
		if (this.t === null) return;
		const next = neighbour(this.alerts(), this.t, way);
		if (!next) {
			const none = way > 0 ? words.noLater : words.noEarlier;
			say(none);
			this.note(none);
			return;
		}
		this.choose(next.camera);
		this.seek(next.t_start);
		say(`${next.title}, ${next.camera}, ${clockOf(next.t_start)}`);
	}
	// -- cuts and links
	/** @param {boolean} end */
	mark(end) {
		if (this.t === null) return;
		this.cut = marked(this.cut, this.t, end);
		this.draw();
	}
	stateCut() {
		const { cut } = this;
		if (this.stated === cut) return; // the sentence about it stands
		this.stated = cut;
		by("cut").disabled = !isReady(cut);
		const line = by("cut-words");
		if (!cut) line.textContent = line.dataset.none;
		else if (cut[1] === null) line.textContent = `${clockOf(cut[0])} – …`;
		else if (cut[1] - cut[0] > CUT_S_MAX) line.textContent = line.dataset.long;
		else line.textContent = `${clockOf(cut[0])} – ${clockOf(cut[1])}, ${Math.round(cut[1] - cut[0])} s`;
	}
	async download() {
		if (!this.report || !isReady(this.cut)) return;
		const [from, to] = this.cut;
		by("cut").disabled = true;
		by("cut-words").textContent = `${words.cutting} …`;
		try {
			const found = await get(`${this.report.recording}?from=${from.toFixed(2)}&to=${to.toFixed(2)}`);
			made("a", { href: found.download, download: "" }).click();
			this.stated = undefined;
			this.stateCut();
			if (found.note) by("cut-words").textContent += `: ${found.note}`;
		} catch (error) {
			by("cut").disabled = false;
			by("cut-words").textContent = error.message;
		}
	}
	/** The cut, as it is ordered. */
	exported() {
		if (!isReady(this.cut)) throw new Error(words.none);
		const [begin, end] = this.cut;
		return { url: `/api/v1/cameras/${encodeURIComponent(this.chosen)}/export`, begin, end };
	}
	/** @param {number} t */
	queryAt(t) {
		const named = "single" in this.page.dataset ? [] : [["camera", this.chosen], ...(this.several ? [["with", this.together.join()]] : [])];
		return `${new URLSearchParams([...named, ["t", t.toFixed(1)]])}`.replaceAll("%2C", ",");
	}
	// The address always names the moment, so that the page can be kept, reloaded and sent on.
	address() {
		if (this.t === null) return;
		clearTimeout(this.addressing);
		const wait_ms = this.addressed + ADDRESS_MS - Date.now();
		if (wait_ms > 0) {
			this.addressing = setTimeout(() => this.address(), wait_ms);
			return;
		}
		this.addressed = Date.now();
		history.replaceState(null, "", `${location.pathname}?${this.queryAt(this.t)}`);
		by("why").href = `/cameras/${encodeURIComponent(this.chosen)}/why?t=${this.t.toFixed(1)}`;
	}
	async share() {
		if (this.t === null) return;
		const link = this.several ? `/timeline?${this.queryAt(this.t)}` : `/cameras/${encodeURIComponent(this.chosen)}/timeline?t=${this.t.toFixed(1)}`;
		const field = by("link").querySelector("input");
		field.value = new URL(link, location.href).href;
		by("link").hidden = false;
		field.select();
		try {
			await navigator.clipboard.writeText(field.value);
			say(words.copied);
		} catch {
			// over plain HTTP there is no clipboard: the link stands there, selected
		}
	}
	// -- drawing
	draw() {
		if (this.due) return;
		this.due = true;
		requestAnimationFrame(() => {
			this.due = false;
			this.paint();
		});
	}
	paint() {
		const { t, day, view } = this;
		for (const { camera, canvas, row } of this.strips) {
			drawStrip(canvas, this.reports.get(camera), view, { t, cut: camera === this.chosen ? this.cut : null }, this.now);
			row.classList.toggle("chosen", camera === this.chosen && this.strips.length > 1);
			if (t === null) continue;
			canvas.setAttribute("aria-valuenow", Math.round(t - day[0]));
			canvas.setAttribute("aria-valuetext", clockOf(t));
		}
		by("clock").textContent = t === null ? "" : clockOf(t);
		const hours = width(view) / 3600;
		by("width").textContent = hours >= 1 ? `${Math.round(hours)} h` : `${Math.round(hours * 60)} min`;
		by("day").value = dateOf(day);
		by("day-after").disabled = day[1] > this.now;
		this.stateCut();
	}
	// -- what a person does
	listenTo({ camera, canvas, row }) {
		const moment = event => momentAt(event.clientX, canvas.getBoundingClientRect(), this.view);
		canvas.onpointerdown = event => {
			if (event.button) return;
			canvas.setPointerCapture(event.pointerId);
			this.dragging = true;
			this.choose(camera);
			this.seek(moment(event), { follow: false });
			this.button();
		};
		canvas.onpointermove = event => {
			if (this.dragging && canvas.hasPointerCapture(event.pointerId)) this.seek(moment(event));
			if (event.pointerType === "mouse" || this.dragging)
				this.bubble.show(this.reports.get(camera), row, moment(event), event.clientX, frameStep(this.view));
		};
		canvas.onpointerup = canvas.onpointercancel = () => {
			if (!this.dragging) return;
			this.dragging = false;
			this.bubble.hide();
			this.show();
		};
		canvas.onpointerleave = () => this.dragging || this.bubble.hide();
		canvas.onfocus = () => this.choose(camera);
		canvas.addEventListener("wheel", event => {
			if (!event.ctrlKey) return;
			event.preventDefault();
			this.zoom(event.deltaY < 0 ? 1 : -1);
		}, { passive: false });
		canvas.onkeydown = event => {
			const step = stepOf(event.key, event.shiftKey);
			if (step) this.seek((this.t ?? this.now) + step);
			else if (event.key === "Home") this.seek(this.report?.recorded[0]?.t_start ?? this.day[0]);
			else if (event.key === "End") this.seek((this.report?.recorded.at(-1)?.t_end ?? this.day[1]) - 1);
			else return;
			event.preventDefault();
		};
		row.querySelector("input")?.addEventListener("change", ({ target }) => this.watchTogether(camera, target.checked));
	}
	/**
	 * @param {string} camera
	 * @param {boolean} wanted
	 */
	watchTogether(camera, wanted) {
		this.together = wanted ? [...this.together, camera] : this.together.filter(name => name !== camera);
		if (this.together.length && !this.together.includes(this.chosen)) this.choose(this.together[0]);
		this.arrange();
		this.addressed = 0;
		this.show();
		this.draw();
	}
	listen() {
		/** @type {Record<string, () => void>} */
		const actions = {
			" ": () => this.toggle(),
			j: () => this.jump(-1),
			k: () => this.jump(1),
			m: () => this.mute(),
			i: () => this.mark(false),
			o: () => this.mark(true),
			"+": () => this.zoom(1),
			"-": () => this.zoom(-1)
		};
		keys({ ...actions, " ": () => (document.activeElement?.closest("button, a, summary, input") ? false : this.toggle()) });
		const clicks = {
			play: actions[" "],
			sound: actions.m,
			"alert-before": actions.j,
			"alert-after": actions.k,
			closer: actions["+"],
			wider: actions["-"],
			"cut-from": actions.i,
			"cut-to": actions.o,
			cut: () => this.download(),
			share: () => this.share(),
			"day-before": () => this.open(dayOf(noonOf(this.day), -1)),
			"day-after": () => this.open(dayOf(noonOf(this.day), 1)),
			"to-now": () => this.open(dayOf(this.now))
		};
		for (const [id, act] of Object.entries(clicks)) by(id).onclick = act;
		offerExport(() => this.exported());
		by("days").addEventListener("submit", event => event.preventDefault());
		by("day").addEventListener("change", ({ target }) => this.open(dayNamed(target.value)));
		for (const strip of this.strips) this.listenTo(strip);
		addEventListener("resize", () => this.draw());
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
		setInterval(() => {
			if (document.hidden) return;
			this.refreshToday();
			if (this.stale.size) this.reload(); // a report of a past day that did not come
		}, 15000);
		setInterval(() => this.tick(), TICK_MS);
		const changed = row => this.refreshToday(row.camera ?? row.name);
		follow({ alert: changed, camera: changed, health: changed });
	}
}

new Timeline();
