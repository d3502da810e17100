// @ts-check
// Draws boxes, zones and lines over a picture that fills its canvas with `object-fit: contain`.
import { t } from "./texts.js";
// As --t0 .. --t5 in the dark scheme: a picture is seldom white.
const COLOURS = ["#3fd0b5", "#f0a259", "#8fa8ff", "#e58bcb", "#b9c95a", "#ff8f94"];
const LABELS = {
	person: t("person"), bicycle: t("bicycle"), car: t("car"), motorcycle: t("motorcycle"), bus: t("bus"), truck: t("truck"),
	cat: t("cat"), dog: t("dog"),
};
/** @type {(name: string) => string} of a class, for people */
export const labelOf = name => LABELS[name] ?? name;
const NARROW = 460; // CSS pixels; below this a box's tag leaves out the score

const colourOf = track => COLOURS[track % COLOURS.length];

// Where the picture lies inside the canvas, in CSS pixels, and a context scaled to them.
export function begin(canvas, width, height) {
	const ratio = devicePixelRatio || 1;
	const [w, h] = [canvas.clientWidth, canvas.clientHeight];
	if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
		canvas.width = Math.round(w * ratio);
		canvas.height = Math.round(h * ratio);
	}
	const pen = canvas.getContext("2d");
	pen.setTransform(ratio, 0, 0, ratio, 0, 0);
	pen.clearRect(0, 0, w, h);
	const scale = Math.min(w / width, h / height);
	return { pen, x: (w - width * scale) / 2, y: (h - height * scale) / 2, w: width * scale, h: height * scale };
}

export function paint(area, image) {
	area.pen.drawImage(image, area.x, area.y, area.w, area.h);
}

export function box(area, object, alpha = 1) {
	const { pen } = area;
	const [x1, y1, x2, y2] = object.box;
	const [x, y, w, h] = [area.x + x1 * area.w, area.y + y1 * area.h, (x2 - x1) * area.w, (y2 - y1) * area.h];
	const colour = colourOf(object.track);
	pen.save();
	pen.globalAlpha = alpha;
	pen.lineJoin = "round";
	pen.strokeStyle = "rgb(0 0 0 / 55%)";
	pen.lineWidth = 4;
	pen.strokeRect(x, y, w, h);
	pen.strokeStyle = colour;
	pen.lineWidth = 2;
	pen.strokeRect(x, y, w, h);
	const score = area.w < NARROW ? "" : ` ${Math.round(object.score * 100)} %`;
	tag(area, labelOf(object.label) + score, x - 1, y - 3, colour);
	pen.restore();
}

function tag(area, text, x, y, colour) {
	const { pen } = area;
	pen.font = "600 12px system-ui, sans-serif";
	pen.textBaseline = "middle";
	const wide = pen.measureText(text).width + 12;
	const left = Math.max(area.x, Math.min(x, area.x + area.w - wide));
	const top = Math.max(area.y, y - 18);
	pen.fillStyle = "rgb(12 13 14 / 78%)";
	pen.beginPath();
	pen.roundRect(left, top, wide, 18, 4);
	pen.fill();
	pen.fillStyle = colour;
	pen.fillRect(left, top + 3, 3, 12);
	pen.fillStyle = "#fff";
	pen.fillText(text, left + 8, top + 9.5);
}

export function places(area, zones, lines) {
	const { pen } = area;
	const at = ([x, y]) => [area.x + x * area.w, area.y + y * area.h];
	pen.save();
	pen.lineWidth = 1.5;
	for (const [name, points] of Object.entries(zones)) {
		pen.beginPath();
		for (const point of points) pen.lineTo(...at(point));
		pen.closePath();
		pen.fillStyle = "rgb(99 210 187 / 12%)";
		pen.strokeStyle = "rgb(99 210 187 / 90%)";
		pen.fill();
		pen.stroke();
		const [x, y] = at(points.reduce((first, each) => (each[0] + each[1] < first[0] + first[1] ? each : first)));
		tag(area, name, x + 6, y + 24, "#63d2bb");
	}
	for (const [name, [a, b]] of Object.entries(lines)) {
		pen.beginPath();
		pen.moveTo(...at(a));
		pen.lineTo(...at(b));
		pen.setLineDash([8, 5]);
		pen.lineWidth = 2.5;
		pen.strokeStyle = "#f3c969";
		pen.stroke();
		pen.setLineDash([]);
		tag(area, name, ...at(b), "#f3c969");
	}
	pen.restore();
}
