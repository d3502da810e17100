// Zones, lines and rules of one camera: drawn on its picture, told in words, tried on what was recorded, saved.
import { attempt, by, follow, get, post, say } from "./page.js";
import { number, t, tn } from "./texts.js";
import { clockOf } from "./time.js";
const root = by("editor");
const camera = root.dataset.camera;
const labels = root.dataset.labels.split(" ");
const [W, H] = [Number(root.dataset.width), Number(root.dataset.height)];
const svg = by("paper");
const UNDO_MAX = 50;
const KINDS = { enter: t("enters"), exit: t("leaves"), dwell: t("stays in"), line: t("crosses") };
const DIRECTIONS = { both: t("either way"), left_to_right: t("along the arrow"), right_to_left: t("against the arrow") };

let base = "";
let shown = { zones: {}, ignore: [], lines: {}, rules: [] };
let saved = "";
let chosen = null; // {kind: "zones" | "lines", name}
let corner = -1; // of what is chosen
const past = [];
let place = null; // of the false alarms that a link proposes a change for

svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
root.querySelector("[data-ratio]").style.aspectRatio = `${W} / ${H}`;

const state = () => JSON.stringify(shown);
const round = x => Math.round(Math.min(1, Math.max(0, x)) * 1000) / 1000;

function remember() {
	past.push(state());
	if (past.length > UNDO_MAX) past.shift();
}

function changed() {
	by("undo").disabled = !past.length;
	by("save").disabled = state() === saved;
	by("wrong").textContent = "";
}

function change(work) {
	remember();
	work();
	refresh();
}

function element(name, attributes, parent, text = "") {
	const made = document.createElementNS(parent.namespaceURI, name);
	for (const key in attributes) made.setAttribute(key, attributes[key]);
	if (text) made.textContent = text;
	parent.append(made);
	return made;
}

const at = ([x, y]) => [x * W, y * H];
const isChosen = (kind, name) => chosen && chosen.kind === kind && chosen.name === name;

function draw() {
	const held = document.activeElement?.dataset?.corner !== undefined;
	svg.replaceChildren();
	const dot = (W / Math.max(svg.clientWidth, 1)) * (matchMedia("(pointer: coarse)").matches ? 11 : 7);
	for (const kind of ["zones", "lines"])
		for (const [name, points] of Object.entries(shown[kind])) shape(kind, name, points, dot);
	if (chosen) handles(shown[chosen.kind][chosen.name], dot);
	if (place) element("rect", { class: "place", x: place[0] * W, y: place[1] * H, width: (place[2] - place[0]) * W, height: (place[3] - place[1]) * H }, svg);
	shown.rules.forEach((rule, n) => {
		for (const high of [rule.height_min, rule.height_max].filter(Boolean).map(share => share * H)) {
			const [x, y] = [dot * (2 + 8 * n), H - high - dot];
			element("rect", { class: "place limit", x, y, width: 0.4 * high, height: high }, svg);
			element("text", { class: "tag", x, y, "font-size": dot * 1.6 }, svg, rule.name);
		}
	});
	if (held) svg.querySelector(`[data-corner="${corner}"]`)?.focus();
}

function shape(kind, name, points, dot) {
	const group = element("g", { class: `${kind}${isChosen(kind, name) ? " chosen" : ""}${shown.ignore.includes(name) ? " ignored" : ""}` }, svg);
	const line = points.map(point => at(point).join(",")).join(" ");
	element(kind === "zones" ? "polygon" : "polyline", { points: line }, group);
	if (kind === "lines") arrow(group, points, dot);
	const [x, y] = at(kind === "zones" ? points.reduce((a, b) => (a[0] + a[1] < b[0] + b[1] ? a : b)) : points[1]);
	element("text", { class: "tag", x: Math.min(x + dot, W - dot * 9), y: Math.max(y, 0) + dot * 2.6, "font-size": dot * 2.1 }, group, name);
	group.onpointerdown = () => {
		chosen = { kind, name };
		corner = -1;
		draw();
		list();
	};
}

// The direction `left_to_right` of a line from a to b: across it, from its left to its right.
function arrow(group, [a, b], dot) {
	const [[x1, y1], [x2, y2]] = [at(a), at(b)];
	const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
	const long = Math.hypot(x2 - x1, y2 - y1) || 1;
	const [nx, ny] = [-(y2 - y1) / long, (x2 - x1) / long];
	const [hx, hy] = [mx + nx * dot * 4, my + ny * dot * 4];
	element("line", { x1: mx - nx * dot * 4, y1: my - ny * dot * 4, x2: hx, y2: hy, class: "way" }, group);
	const wing = turn => [hx - nx * dot * 1.4 + turn * ny * dot * 1.1, hy - ny * dot * 1.4 - turn * nx * dot * 1.1].join(",");
	element("polygon", { points: [[hx, hy].join(","), wing(1), wing(-1)].join(" "), class: "head" }, group);
}

function handles(points, dot) {
	if (chosen.kind === "zones")
		points.forEach((point, i) => {
			const next = points[(i + 1) % points.length];
			const [x, y] = at([(point[0] + next[0]) / 2, (point[1] + next[1]) / 2]);
			const middle = element("circle", { cx: x, cy: y, r: dot * 0.6, class: "middle" }, svg);
			middle.onpointerdown = event => {
				event.stopPropagation();
				remember();
				points.splice(i + 1, 0, [round(x / W), round(y / H)]);
				corner = i + 1;
				draw();
				drag(event, points);
			};
		});
	points.forEach((point, i) => {
		const [x, y] = at(point);
		const handle = element("circle", { cx: x, cy: y, r: dot, class: `corner${i === corner ? " held" : ""}`, tabindex: 0, "data-corner": i }, svg);
		handle.setAttribute("role", "button");
		handle.setAttribute("aria-label", t("Corner {n} of {name}: {x} % from the left, {y} % from the top", { n: i + 1, name: chosen.name, x: Math.round(point[0] * 100), y: Math.round(point[1] * 100) }));
		handle.onfocus = () => (corner = i);
		handle.onpointerdown = event => {
			event.stopPropagation();
			remember();
			corner = i;
			drag(event, points);
		};
		handle.onkeydown = event => byKey(event, points, i);
	});
}

function drag(event, points) {
	event.preventDefault();
	svg.setPointerCapture(event.pointerId);
	const frame = svg.getBoundingClientRect();
	const move = each => {
		points[corner] = [round((each.clientX - frame.left) / frame.width), round((each.clientY - frame.top) / frame.height)];
		draw();
	};
	const end = () => {
		svg.removeEventListener("pointermove", move);
		changed();
		list();
		svg.querySelector(`[data-corner="${corner}"]`)?.focus();
	};
	svg.addEventListener("pointermove", move);
	svg.addEventListener("lostpointercapture", end, { once: true });
}

function byKey(event, points, i) {
	const step = event.shiftKey ? 0.05 : 0.005;
	const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
	if (moves[event.key]) {
		event.preventDefault();
		change(() => (points[i] = [round(points[i][0] + moves[event.key][0]), round(points[i][1] + moves[event.key][1])]));
	} else if (["Delete", "Backspace"].includes(event.key) && chosen.kind === "zones") {
		event.preventDefault();
		if (points.length <= 3) return say(t("A zone has at least three corners."));
		change(() => points.splice(i, 1));
		svg.querySelector(`[data-corner="${Math.min(i, points.length - 1)}"]`)?.focus();
	}
}

function fresh(stem, taken) {
	for (let n = 1; ; n++) if (!taken.includes(n > 1 ? `${stem}-${n}` : stem)) return n > 1 ? `${stem}-${n}` : stem;
}

function rename(kind, name, wanted) {
	if (!wanted || wanted === name || shown[kind][wanted]) return list();
	change(() => {
		shown[kind] = Object.fromEntries(Object.entries(shown[kind]).map(([key, value]) => [key === name ? wanted : key, value]));
		for (const rule of shown.rules) if (rule[kind === "zones" ? "zone" : "line"] === name) rule[kind === "zones" ? "zone" : "line"] = wanted;
		if (kind === "zones") shown.ignore = shown.ignore.map(each => (each === name ? wanted : each));
		if (isChosen(kind, name)) chosen = { kind, name: wanted };
	});
}

function list() {
	const all = ["zones", "lines"].flatMap(kind => Object.keys(shown[kind]).map(name => [kind, name]));
	by("no-shapes").hidden = all.length > 0;
	by("shapes").replaceChildren(
		...all.map(([kind, name]) => {
			const item = document.createElement("li");
			item.className = isChosen(kind, name) ? "chosen" : "";
			const field = element("input", { value: name, "aria-label": t(kind === "zones" ? t("Name of the zone {name}") : t("Name of the line {name}"), { name }), pattern: "(\\w|-)+", maxlength: 64 }, item);
			field.onchange = () => rename(kind, name, field.value.trim());
			field.onfocus = () => {
				if (isChosen(kind, name)) return;
				chosen = { kind, name };
				corner = -1;
				draw();
				for (const other of by("shapes").children) other.className = other === item ? "chosen" : "";
			};
			if (kind === "zones") tick(item, t("ignore"), shown.ignore, name, ignore => (shown.ignore = ignore));
			else element("span", { class: "muted" }, item, t("line"));
			const gone = element("button", { type: "button", class: "plain", "aria-label": t("Remove {name}", { name }) }, item, t("Remove"));
			gone.onclick = () => {
				const used = shown.rules.filter(rule => rule.zone === name || rule.line === name).map(rule => rule.name);
				if (used.length) return (by("wrong").textContent = t("{name} is used by the rule {rules}: change that first.", { name, rules: used.join(", ") }));
				change(() => {
					delete shown[kind][name];
					if (kind === "zones") shown.ignore = shown.ignore.filter(each => each !== name);
					if (isChosen(kind, name)) chosen = null;
				});
			};
			return item;
		})
	);
	by("rules").replaceChildren(...shown.rules.map(ruleForm));
}

// A box to tick: whether `name` is among `all`.
function tick(parent, words, all, name, take) {
	const label = element("label", {}, parent);
	const on = all.includes(name);
	element("input", on ? { type: "checkbox", checked: "" } : { type: "checkbox" }, label).addEventListener("change", () =>
		change(() => take(on ? all.filter(each => each !== name) : [...all, name]))
	);
	label.append(` ${words}`);
}

function select(parent, text, choices, value, take) {
	const label = element("label", {}, parent, `${text} `);
	const field = element("select", {}, label);
	for (const [key, words] of choices) element("option", key === value ? { value: key, selected: "" } : { value: key }, field, words);
	field.onchange = () => change(() => take(field.value));
	return field;
}

function input(parent, text, attributes, take) {
	const label = element("label", {}, parent, `${text} `);
	const field = element("input", attributes, label);
	field.onchange = () => change(() => take(field));
	return field;
}

function ruleForm(rule) {
	const form = document.createElement("fieldset");
	element("legend", {}, form, rule.name);
	input(form, t("Name"), { value: rule.name, pattern: "(\\w|-)+", maxlength: 64 }, field => (rule.name = field.value.trim()));
	const who = element("div", { class: "who", role: "group", "aria-label": t("What it watches for") }, form);
	const wanted = rule.labels ?? ["person"];
	for (const name of new Set([...labels, ...wanted])) tick(who, name, wanted, name, found => (rule.labels = found));
	select(form, t("when it"), Object.entries(KINDS), rule.kind, kind => {
		rule.kind = kind;
		const of = kind === "line" ? "line" : "zone";
		for (const key of ["zone", "line", "seconds", "direction"]) if (key !== of) delete rule[key];
		rule[of] ??= Object.keys(shown[`${of}s`])[0] ?? "";
		if (kind === "dwell") rule.seconds = 20;
	});
	const of = rule.kind === "line" ? "line" : "zone";
	const places = Object.keys(shown[`${of}s`]);
	select(form, of === "line" ? t("the line") : t("the zone"), [...new Set([rule[of], ...places])].map(name => [name, name || t("(none: add one)")]), rule[of], name => (rule[of] = name));
	if (rule.kind === "dwell") input(form, t("for seconds"), { type: "number", min: 1, max: 86400, value: rule.seconds }, field => (rule.seconds = Number(field.value)));
	if (rule.kind === "line") select(form, t("going"), Object.entries(DIRECTIONS), rule.direction ?? "both", way => (rule.direction = way));
	select(form, t("raise"), [["info", t("an info")], ["warning", t("a warning")], ["alert", t("an alert")]], rule.severity ?? "warning", severity => (rule.severity = severity));
	input(form, t("score at least"), { type: "number", min: 0, max: 1, step: 0.01, value: rule.score_min ?? 0.5 }, field => (rule.score_min = Number(field.value)));
	for (const [key, words] of [["height_min", t("height at least")], ["height_max", t("height at most")]])
		input(form, words, { type: "number", min: 0, max: 1, step: 0.01, value: rule[key] ?? "", placeholder: t("any") }, ({ value }) => {
			if (value) rule[key] = Number(value);
			else delete rule[key];
		});
	input(form, t("only at"), { value: (rule.schedule?.hours ?? []).join(", "), placeholder: t("always, or 22:00-06:00") }, field => {
		const hours = field.value.split(",").map(each => each.trim()).filter(Boolean);
		if (hours.length) rule.schedule = { ...rule.schedule, hours };
		else delete rule.schedule;
	});
	const gone = element("button", { type: "button", class: "plain" }, form, t("Remove {name}", { name: rule.name }));
	gone.onclick = () => change(() => shown.rules.splice(shown.rules.indexOf(rule), 1));
	return form;
}

function changes() {
	const before = JSON.parse(saved);
	return ["zones", "ignore", "lines", "rules"]
		.filter(key => JSON.stringify(before[key]) !== JSON.stringify(shown[key]))
		.map(key => ({ path: ["cameras", camera, key], ...(Object.keys(shown[key]).length ? { value: shown[key] } : { remove: true }) }));
}

const act = (button, work) => attempt(button, work).then(() => (by("save").disabled = state() === saved));

async function tryOut() {
	const asked = changes();
	const trial = await post("/api/v1/settings/try", { base, camera, changes: asked.length ? asked : [{ path: ["cameras", camera, "zones"], value: shown.zones }] });
	const panel = by("outcome");
	panel.hidden = false;
	panel.replaceChildren();
	element("h2", {}, panel, t("On the last day"));
	element("p", {}, panel, trial.frames
		? `${tn("These rules would have alerted once", "These rules would have alerted {n} times", trial.then.count)}; ${t("the rules in force: {n}.", { n: trial.now.count })} ${tn("{n} look was judged.", "{n} looks were judged.", trial.frames)}`
		: t("Nothing is stored of that time, so nothing can be said."));
	const rows = element("ol", { class: "trial" }, panel);
	for (const alert of trial.then.alerts.slice(-20).reverse()) {
		const row = element("li", {}, rows);
		element("a", { href: `/cameras/${encodeURIComponent(camera)}/timeline?t=${alert.t_start.toFixed(1)}` }, row, clockOf(alert.t_start));
		element("span", {}, row, ` ${alert.labels.join(", ")} · ${alert.rules.join(", ")}${alert.new ? ` · ${t("new")}` : ""}`);
	}
	element("p", { class: "muted small" }, panel, t("Judged on the tracks that were recorded; another threshold or network is not tried by this."));
	panel.scrollIntoView({ block: "nearest" });
}

async function replay() {
	const asked = changes();
	const [model, floor] = [by("network").value, by("floor").value];
	if (model) asked.push({ path: ["detector", "model"], value: model });
	if (floor) asked.push({ path: ["detector", "score_min"], value: Number(floor) });
	if (!asked.length) throw new Error(t("Nothing is changed yet: both sides would be the same."));
	const stretch = JSON.parse(by("stretch").value);
	const t_start = new Date(by("since").value) / 1000;
	const on = t_start && stretch.minutes ? { spans: [{ t_start, t_end: t_start + 60 * stretch.minutes }] } : stretch;
	const { page } = await post(`/api/v1/cameras/${encodeURIComponent(camera)}/trials`, { base, changes: asked, ...on });
	told(t("It is being tried on the recording."));
	element("a", { href: page, target: "_blank" }, by("outcome"), t("See how far it is, and what differs"));
}

async function save() {
	root.inert = true; // what was drawn meanwhile would be lost
	try {
		take(await post("/api/v1/settings", { base, changes: changes(), why: `zones and rules of ${camera}` }));
	} finally {
		root.inert = false;
	}
	told(t("Saved and in force."));
}

function told(words) {
	say(words);
	by("outcome").hidden = false;
	by("outcome").replaceChildren();
	element("p", {}, by("outcome"), words);
}

function take(report) {
	base = report.digest;
	const written = report.site.cameras[camera] ?? {};
	shown = structuredClone({ zones: written.zones ?? {}, ignore: written.ignore ?? [], lines: written.lines ?? {}, rules: written.rules ?? [] });
	saved = state();
	past.length = 0;
	refresh();
}

function refresh() {
	if (chosen && !shown[chosen.kind][chosen.name]) chosen = null;
	changed();
	draw();
	list();
}

for (const [stem, points] of [["zone", [[0.3, 0.4], [0.7, 0.4], [0.7, 0.9], [0.3, 0.9]]], ["line", [[0.3, 0.6], [0.7, 0.6]]]])
	by(`add-${stem}`).addEventListener("click", () =>
		change(() => {
			const kind = `${stem}s`;
			const name = fresh(stem, Object.keys(shown[kind]));
			shown[kind][name] = structuredClone(points);
			[chosen, corner] = [{ kind, name }, 0];
		})
	);
by("add-rule").onclick = () => {
	const zone = Object.keys(shown.zones)[0];
	const line = Object.keys(shown.lines)[0];
	if (!zone && !line) return (by("wrong").textContent = t("Add a zone or a line first: a rule watches one."));
	change(() => {
		const name = fresh("rule", shown.rules.map(rule => rule.name));
		shown.rules.push({ name, ...(zone ? { kind: "enter", zone } : { kind: "line", line }), labels: ["person"], severity: "warning" });
	});
	by("rules").lastElementChild.querySelector("input").focus();
};
by("undo").onclick = () => {
	shown = JSON.parse(past.pop());
	refresh();
};
by("renew").onclick = () => (root.querySelector(".stage img").src = `/api/v1/cameras/${encodeURIComponent(camera)}/picture?${Date.now()}`);
for (const [id, work] of Object.entries({ try: tryOut, replay, save })) by(id).onclick = () => act(by(id), work);
// A link from what false alarms propose: the change is made here, to be tried and saved, or not.
function suggest(wanted) {
	const box = (wanted.get("place") ?? "").split(",").map(Number);
	if (box.length === 4 && box.every(x => x >= 0 && x <= 1)) place = box;
	const rule = shown.rules.find(each => each.name === wanted.get("rule"));
	if (rule && shown.zones[rule.zone]) chosen = { kind: "zones", name: rule.zone };
	for (const key of ["score_min", "height_min", "height_max"]) {
		const value = Number(wanted.get(key));
		if (rule && value > 0 && value <= 1) change(() => (rule[key] = value));
	}
	if (place && wanted.has("ignore"))
		change(() => {
			const [x1, y1, x2, y2] = place;
			const name = fresh("ignored", Object.keys(shown.zones));
			const [top, floor] = [round(y2 - (y2 - y1) / 4), round(y2 + (y2 - y1) / 8)]; // where its feet are
			shown.zones[name] = [[x1, top], [x2, top], [x2, floor], [x1, floor]];
			shown.ignore.push(name);
			chosen = { kind: "zones", name };
		});
	draw();
	list();
}

addEventListener("resize", draw);
addEventListener("beforeunload", event => state() !== saved && saved && event.preventDefault());
act(by("save"), async () => {
	const report = await get("/api/v1/settings");
	take(report);
	for (const button of root.querySelectorAll("button:disabled")) button.disabled = button.id === "undo";
	suggest(new URLSearchParams(location.search));
	if (report.edited) by("wrong").textContent = t("The site file was changed by hand and is not in force: take that change first.");
});
follow({});
