// @ts-check
// Zones and lines drawn over the picture of a camera, with handles that a pointer drags and arrow keys move.
import { by, say } from "./page.js";
import { t } from "./texts.js";
import { arrowOf, between, canLoseCorner, round, stepped, topLeft } from "./scene.js";

/** @type {(name: string, attributes: object, parent: Element, text?: string) => any} */
export function element(name, attributes, parent, text = "") {
	const made = document.createElementNS(parent.namespaceURI, name);
	for (const key in attributes) made.setAttribute(key, attributes[key]);
	if (text) made.textContent = text;
	parent.append(made);
	return made;
}

export class Drawing {
	/** @param {import("./editor.js").Editor} editor */
	constructor(editor) {
		const { width, height } = editor.root.dataset;
		this.editor = editor;
		this.svg = by("paper");
		this.w = Number(width);
		this.h = Number(height);
		this.corner = -1; // of the chosen shape
		this.dot = 1;
		this.svg.setAttribute("viewBox", `0 0 ${this.w} ${this.h}`);
		editor.root.querySelector("[data-ratio]").style.aspectRatio = `${width} / ${height}`;
	}
	/**
	 * @param {Point} point
	 * @returns {Point}
	 */
	at([x, y]) {
		return [x * this.w, y * this.h];
	}
	draw() {
		const { svg, editor } = this;
		const held = svg.contains(document.activeElement?.closest("[data-corner]") ?? null);
		svg.replaceChildren();
		this.dot = (this.w / Math.max(svg.clientWidth, 1)) * (matchMedia("(pointer: coarse)").matches ? 11 : 7);
		for (const kind of ["zones", "lines"])
			for (const [name, points] of Object.entries(editor.scene[kind])) this.shape(kind, name, points);
		if (editor.chosen) this.handles(editor.chosen, editor.scene[editor.chosen.kind][editor.chosen.name]);
		if (editor.place) this.place(editor.place);
		for (const [n, rule] of editor.scene.rules.entries()) this.heights(rule, n);
		if (held) this.focus(this.corner);
	}
	focus(corner) {
		this.svg.querySelector(`[data-corner="${corner}"]`)?.focus();
	}
	place([x1, y1, x2, y2]) {
		const [x, y] = this.at([x1, y1]);
		element("rect", { class: "place", x, y, width: (x2 - x1) * this.w, height: (y2 - y1) * this.h }, this.svg);
	}
	/**
	 * @param {Rule} rule
	 * @param {number} n
	 */
	heights(rule, n) {
		for (const share of [rule.height_min, rule.height_max]) {
			if (!share) continue;
			const high = share * this.h;
			const [x, y] = [this.dot * (2 + 8 * n), this.h - high - this.dot];
			element("rect", { class: "place limit", x, y, width: 0.4 * high, height: high }, this.svg);
			element("text", { class: "tag", x, y, "font-size": this.dot * 1.6 }, this.svg, rule.name);
		}
	}
	shape(kind, name, points) {
		const { editor, dot } = this;
		const marks = `${editor.isChosen(kind, name) ? " chosen" : ""}${editor.scene.ignore.includes(name) ? " ignored" : ""}`;
		const group = element("g", { class: `${kind}${marks}` }, this.svg);
		element(kind === "zones" ? "polygon" : "polyline", { points: points.map(point => this.at(point).join()).join(" ") }, group);
		if (kind === "lines") this.arrow(group, points);
		const [x, y] = this.at(kind === "zones" ? topLeft(points) : points[1]);
		element("text", { class: "tag", x: Math.min(x + dot, this.w - dot * 9), y: Math.max(y, 0) + dot * 2.6, "font-size": dot * 2.1 }, group, name);
		group.onpointerdown = () => {
			this.corner = -1;
			editor.choose({ kind, name });
		};
	}
	arrow(group, [a, b]) {
		const { tail, tip, head } = arrowOf(this.at(a), this.at(b), this.dot);
		element("line", { x1: tail[0], y1: tail[1], x2: tip[0], y2: tip[1], class: "way" }, group);
		element("polygon", { points: head.map(point => point.join()).join(" "), class: "head" }, group);
	}
	handles({ kind, name }, points) {
		if (kind === "zones") for (const i of points.keys()) this.middle(points, i);
		points.forEach((point, i) => {
			const [cx, cy] = this.at(point);
			const handle = element("circle", { cx, cy, r: this.dot, class: `corner${i === this.corner ? " held" : ""}`, tabindex: 0, "data-corner": i }, this.svg);
			const [x, y] = point.map(share => Math.round(share * 100));
			handle.setAttribute("role", "button");
			handle.setAttribute("aria-label", t("Corner {n} of {name}: {x} % from the left, {y} % from the top", { n: i + 1, name, x, y }));
			handle.onfocus = () => (this.corner = i);
			handle.onpointerdown = event => this.grab(event, points, i);
			handle.onkeydown = event => this.byKey(event, kind, points, i);
		});
	}
	// A dot between two corners becomes a corner when it is dragged.
	middle(points, i) {
		const point = between(points, i);
		const [cx, cy] = this.at(point);
		element("circle", { cx, cy, r: this.dot * 0.6, class: "middle" }, this.svg).onpointerdown = event => this.grab(event, points, i + 1, point);
	}
	grab(event, points, corner, added) {
		event.stopPropagation();
		this.editor.remember();
		if (added) points.splice(corner, 0, added);
		this.corner = corner;
		if (added) this.draw();
		this.drag(event, points);
	}
	drag(event, points) {
		const { svg, editor } = this;
		event.preventDefault();
		svg.setPointerCapture(event.pointerId);
		const frame = svg.getBoundingClientRect();
		const move = each => {
			points[this.corner] = [round((each.clientX - frame.left) / frame.width), round((each.clientY - frame.top) / frame.height)];
			this.draw();
		};
		const end = () => {
			svg.removeEventListener("pointermove", move);
			editor.changed();
			editor.list();
			this.focus(this.corner);
		};
		svg.addEventListener("pointermove", move);
		svg.addEventListener("lostpointercapture", end, { once: true });
	}
	byKey(event, kind, points, i) {
		const moved = stepped(points[i], event.key, event.shiftKey);
		if (moved) {
			event.preventDefault();
			this.editor.change(() => (points[i] = moved));
		} else if (["Delete", "Backspace"].includes(event.key) && kind === "zones") {
			event.preventDefault();
			if (!canLoseCorner(points)) return say(t("A zone has at least three corners."));
			this.editor.change(() => points.splice(i, 1));
			this.focus(Math.min(i, points.length - 1));
		} else if (["Insert", "+"].includes(event.key) && kind === "zones") {
			event.preventDefault();
			this.editor.change(() => points.splice(i + 1, 0, between(points, i)));
			this.focus(i + 1);
		}
	}
}
