// @ts-check
// Zones, lines and rules of one camera: drawn on its picture, given as rules, tried on what was recorded, saved.
import { attempt, by, follow, get, post, say } from "./page.js";
import { t, tn } from "./texts.js";
import { clockOf } from "./time.js";
import { labelOf } from "./draw.js";
import { Drawing, element } from "./drawing.js";
import { Rebuilding } from "./rebuilding.js";
import { RuleForm, tick } from "./rule_form.js";
import { changesOf, emptyScene, feetOf, followRenames, freeName, idOf, rename, rulesOn } from "./scene.js";
const UNDO_MAX = 50;
const STILL_MS = 1000; // between two tries to get the first picture
const TRIED = "/api/v1/setup/pictures/"; // where the picture of a try is
/** @type {Record<"zone" | "line", Point[]>} */
const NEW_SHAPES = { zone: [[0.3, 0.4], [0.7, 0.4], [0.7, 0.9], [0.3, 0.9]], line: [[0.3, 0.6], [0.7, 0.6]] };

export class Editor {
	base = ""; // the digest of the site file that the scene was read from
	/** @type {any} the site file of then */
	site = { cameras: {} };
	scene = emptyScene();
	saved = "";
	/** @type {{kind: ShapeKind, name: string} | null} */
	chosen = null;
	/** @type {string[]} */
	past = [];
	/** @type {Box | null} of the false alarms that a link proposes a change for */
	place = null;

	constructor() {
		this.root = by("editor");
		this.camera = this.root.dataset.camera;
		this.labels = JSON.parse(this.root.dataset.labels);
		this.drawing = new Drawing(this);
		this.lists = new Rebuilding([by("shapes"), by("rules")], () => this.build());
		this.listen();
		this.act(by("save"), () => this.load());
	}
	get state() {
		return JSON.stringify(this.scene);
	}
	isChosen(kind, name) {
		return this.chosen !== null && this.chosen.kind === kind && this.chosen.name === name;
	}
	isSaved(rule) {
		return JSON.parse(this.saved || "{}").rules?.some(each => each.name === rule.name) ?? false;
	}
	changes() {
		return [...changesOf(this.camera, JSON.parse(this.saved), this.scene), ...followRenames(this.site, this.camera, this.scene)];
	}
	// -- state
	remember() {
		this.past.push(this.state);
		if (this.past.length > UNDO_MAX) this.past.shift();
	}
	change(work) {
		this.remember();
		work();
		this.refresh();
	}
	undo() {
		this.scene = JSON.parse(this.past.pop() ?? this.saved);
		this.refresh();
	}
	changed() {
		by("undo").disabled = !this.past.length;
		by("save").disabled = this.state === this.saved;
		by("wrong").textContent = "";
	}
	refresh() {
		if (this.chosen && !this.scene[this.chosen.kind][this.chosen.name]) this.chosen = null;
		this.changed();
		this.show();
	}
	show() {
		this.drawing.draw();
		this.list();
	}
	choose(shape) {
		this.chosen = shape;
		this.show();
	}
	/** @param {"zone" | "line"} stem */
	add(stem) {
		this.change(() => {
			/** @type {ShapeKind} */
			const kind = `${stem}s`;
			const name = freeName(stem, Object.keys(this.scene[kind]));
			this.scene[kind][name] = structuredClone(NEW_SHAPES[stem]);
			this.chosen = { kind, name };
			this.drawing.corner = 0;
		});
	}
	/** @param {{zone?: string, line?: string}} watched */
	titleOf({ zone, line }) {
		return zone ? t("Person in {zone}", { zone }) : t("Person crosses {line}", { line });
	}
	addRule() {
		const { zones, lines, rules } = this.scene;
		const [zone] = Object.keys(zones);
		const [line] = Object.keys(lines);
		if (!zone && !line) return this.refuse(t("Add a zone or a line first: a rule watches one."));
		this.change(() => {
			const title = this.titleOf({ zone, line });
			const name = freeName(idOf(title), rules.map(rule => rule.name));
			rules.push({ name, title, ...(zone ? { kind: "enter", zone } : { kind: "line", line }), labels: ["person"], severity: "warning" });
		});
		this.lists.now();
		by("rules").lastElementChild.querySelector("input").focus();
	}
	refuse(text) {
		by("wrong").textContent = text;
	}
	// -- the lists of zones and lines, and of rules
	list() {
		this.lists.soon();
	}
	build() {
		const opened = new Set([...by("rules").querySelectorAll("details[open]")].map(each => each.parentElement.dataset.rule));
		const shapes = ["zones", "lines"].flatMap(kind => Object.keys(this.scene[kind]).map(name => ({ kind, name })));
		by("no-shapes").hidden = shapes.length > 0;
		by("shapes").replaceChildren(...shapes.map(shape => this.shapeItem(shape)));
		by("rules").replaceChildren(...this.scene.rules.map(rule => new RuleForm(this, rule, opened.has(rule.name)).form));
	}
	shapeItem(shape) {
		const { kind, name } = shape; // the shape has the new name as soon as one is typed
		const item = document.createElement("li");
		item.className = this.isChosen(kind, name) ? "chosen" : "";
		const label = kind === "zones" ? t("Name of the zone {name}", { name }) : t("Name of the line {name}", { name });
		const field = element("input", { value: name, "aria-label": label, maxlength: 64 }, item);
		field.onchange = () => this.rename(shape, field.value.trim());
		field.onfocus = () => {
			if (this.isChosen(kind, shape.name)) return;
			this.chosen = { kind, name: shape.name };
			this.drawing.corner = -1;
			this.drawing.draw();
			for (const other of by("shapes").children) other.className = other === item ? "chosen" : "";
		};
		if (kind === "zones") tick(item, t("ignore"), this.scene.ignore, name, names => this.ignore(shape.name, names.includes(name)));
		else element("span", { class: "muted" }, item, t("line"));
		const remove = element("button", { type: "button", class: "plain", "aria-label": t("Remove {name}", { name }) }, item, t("Remove"));
		remove.onclick = () => this.remove(kind, shape.name);
		return item;
	}
	ignore(name, isIgnored) {
		this.change(() => {
			const others = this.scene.ignore.filter(each => each !== name);
			this.scene.ignore = isIgnored ? [...others, name] : others;
		});
	}
	rename(shape, wanted) {
		const { kind, name } = shape;
		if (!wanted || wanted === name || this.scene[kind][wanted]) return this.list();
		this.change(() => {
			rename(this.scene, kind, name, wanted);
			if (this.isChosen(kind, name)) this.chosen = { kind, name: wanted };
			shape.name = wanted;
		});
	}
	remove(kind, name) {
		const rules = rulesOn(this.scene, name);
		if (rules.length) return this.refuse(t("The rule {rules} uses {name}: change the rule first.", { name, rules: rules.join(", ") }));
		this.change(() => {
			delete this.scene[kind][name];
			if (kind === "zones") this.scene.ignore = this.scene.ignore.filter(each => each !== name);
		});
	}
	// -- what the appliance does with it
	async tryOut() {
		const { base, camera } = this;
		const asked = this.changes();
		const unchanged = [{ path: ["cameras", camera, "zones"], value: this.scene.zones }];
		this.showTrial(await post("/api/v1/settings/try", { base, camera, changes: asked.length ? asked : unchanged }));
	}
	showTrial(trial) {
		const panel = by("outcome");
		panel.hidden = false;
		panel.replaceChildren();
		element("h2", {}, panel, t("On the last day"));
		element("p", {}, panel, trial.frames
			? `${tn("These rules would have alerted once", "These rules would have alerted {n} times", trial.then.count)}; ${t("the rules in force: {n}.", { n: trial.now.count })} ${tn("{n} examined frame was judged.", "{n} examined frames were judged.", trial.frames)}`
			: t("Nothing is stored of that time, so there is no result."));
		const rows = element("ol", { class: "trial" }, panel);
		for (const alert of trial.then.alerts.slice(-20).reverse()) {
			const row = element("li", {}, rows);
			element("a", { href: `/cameras/${encodeURIComponent(this.camera)}/timeline?t=${alert.t_start.toFixed(1)}` }, row, clockOf(alert.t_start));
			element("span", {}, row, ` ${alert.labels.map(labelOf).join(", ")} · ${alert.rules.join(", ")}${alert.new ? ` · ${t("new")}` : ""}`);
		}
		element("p", { class: "muted small" }, panel, t("Judged on the recorded tracks. This does not try another threshold or network."));
		panel.scrollIntoView({ block: "nearest" });
	}
	async replay() {
		const asked = this.changes();
		const [model, threshold] = [by("network").value, by("threshold").value];
		if (model) asked.push({ path: ["detector", "model"], value: model });
		if (threshold) asked.push({ path: ["detector", "score_min"], value: Number(threshold) });
		if (!asked.length) throw new Error(t("Nothing is changed yet: both sides would be the same."));
		const stretch = JSON.parse(by("stretch").value);
		const t_start = new Date(by("since").value).getTime() / 1000;
		const span = t_start && stretch.minutes ? { spans: [{ t_start, t_end: t_start + 60 * stretch.minutes }] } : stretch;
		const { page } = await post(`/api/v1/cameras/${encodeURIComponent(this.camera)}/trials`, { base: this.base, changes: asked, ...span });
		this.report(t("It is being tried on the recording."));
		element("a", { href: page, target: "_blank" }, by("outcome"), t("See how far it is, and what differs"));
	}
	async save() {
		const changes = this.changes();
		if (!changes.length) return this.report(t("Nothing is changed."));
		this.root.inert = true; // a change made meanwhile would be lost
		try {
			const body = { base: this.base, changes, why: `zones and rules of ${this.camera}` };
			this.take(await post("/api/v1/settings", body));
		} catch (error) {
			if (error.status !== 409) throw error;
			return await this.meet();
		} finally {
			this.root.inert = false;
		}
		this.report(this.scene.rules.length ? t("Saved and in force: it watches now.") : t("Saved and in force. Without a rule nothing is reported: add one."));
		element("a", { href: `/?camera=${encodeURIComponent(this.camera)}` }, by("outcome"), t("See its alerts"));
	}
	// Another tab or person saved meanwhile: theirs can be shown, or mine saved on top of it.
	async meet() {
		const settings = await get("/api/v1/settings");
		if (settings.edited) throw new Error(t("The site file was changed by hand, and that change is not in force yet. Take it first."));
		const { state, scene } = this;
		this.report(t("Somebody changed the settings meanwhile. What you drew is still here."));
		const button = (text, work) => (element("button", { type: "button" }, by("outcome"), text).onclick = work);
		button(t("Show theirs"), () => {
			this.take(settings);
			this.past = [state];
			this.changed();
			this.report(t("This is theirs. Undo brings yours back."));
		});
		button(t("Save mine"), () => {
			this.take(settings);
			this.scene = scene;
			this.refresh();
			this.act(by("save"), () => this.save());
		});
		by("outcome").scrollIntoView({ block: "nearest" });
	}
	// A camera that was added just now has no picture of its own yet: that of the try stands in until it comes.
	awaitStill() {
		const image = this.root.querySelector(".stage img");
		const own = `/api/v1/cameras/${encodeURIComponent(this.camera)}/picture`;
		const seen = new URLSearchParams(location.search).get("seen") ?? "";
		const missing = async () => {
			by("first-picture").hidden = false;
			if (seen.startsWith(TRIED) && !image.src.includes(TRIED)) image.src = seen;
			const answer = await fetch(own).catch(() => null);
			if (answer?.status !== 200) return setTimeout(missing, STILL_MS);
			image.src = `${own}?${Date.now()}`;
			by("first-picture").hidden = true;
		};
		if (image.complete && !image.naturalWidth) missing();
		else image.addEventListener("error", missing, { once: true });
	}
	report(text) {
		say(text);
		by("outcome").hidden = false;
		by("outcome").replaceChildren();
		element("p", {}, by("outcome"), text);
	}
	take(settings) {
		this.base = settings.digest;
		this.site = settings.site;
		const { zones, ignore, lines, rules } = settings.site.cameras[this.camera] ?? {};
		this.scene = structuredClone({ zones: zones ?? {}, ignore: ignore ?? [], lines: lines ?? {}, rules: rules ?? [] });
		this.saved = this.state;
		this.past = [];
		this.refresh();
	}
	async load() {
		const settings = await get("/api/v1/settings");
		this.take(settings);
		for (const button of this.root.querySelectorAll("button:disabled")) button.disabled = button.id === "undo";
		this.suggest(new URLSearchParams(location.search));
		if (settings.edited) this.refuse(t("The site file was changed by hand, and that change is not in force yet. Take it first."));
	}
	/**
	 * Make the change that a link from false alarms proposes, to be tried and saved, or not.
	 * @param {URLSearchParams} wanted
	 */
	suggest(wanted) {
		const box = (wanted.get("place") ?? "").split(",").map(Number);
		if (box.length === 4 && box.every(x => x >= 0 && x <= 1)) this.place = /** @type {Box} */ (box);
		const rule = this.scene.rules.find(each => each.name === wanted.get("rule"));
		if (rule?.zone && this.scene.zones[rule.zone]) this.chosen = { kind: "zones", name: rule.zone };
		for (const key of ["score_min", "height_min", "height_max"]) {
			const value = Number(wanted.get(key));
			if (rule && value > 0 && value <= 1) this.change(() => (rule[key] = value));
		}
		const { place } = this;
		if (place && wanted.has("ignore"))
			this.change(() => {
				const name = freeName("ignored", Object.keys(this.scene.zones));
				this.scene.zones[name] = feetOf(place);
				this.scene.ignore.push(name);
				this.chosen = { kind: "zones", name };
			});
		this.show();
	}
	// -- what a person does
	async act(button, work) {
		await attempt(button, work);
		by("save").disabled = this.state === this.saved;
	}
	listen() {
		by("add-zone").onclick = () => this.add("zone");
		by("add-line").onclick = () => this.add("line");
		by("add-rule").onclick = () => this.addRule();
		by("undo").onclick = () => this.undo();
		by("renew").onclick = () => (this.root.querySelector(".stage img").src = `/api/v1/cameras/${encodeURIComponent(this.camera)}/picture?${Date.now()}`);
		const works = { try: () => this.tryOut(), replay: () => this.replay(), save: () => this.save() };
		for (const [id, work] of Object.entries(works)) by(id).onclick = () => this.act(by(id), work);
		this.root.addEventListener("input", () => (by("save").disabled = false)); // a click on it first ends the typing
		this.awaitStill();
		addEventListener("resize", () => this.drawing.draw());
		addEventListener("beforeunload", event => this.saved && this.state !== this.saved && event.preventDefault());
	}
}

new Editor();
follow({});
