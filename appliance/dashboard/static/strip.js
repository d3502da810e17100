// @ts-check
// Draws a stretch of a camera's time: recording, what is missing, looks a minute, alerts, faults, the needle.
import { locale } from "./texts.js";
const MINUTE_S = 60;
const SEVERITY = { alert: "#d5372c", warning: "#d9920a", info: null };
const STEPS = [10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600];
const long = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const short = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const AXIS = 18; // CSS pixels that the times take

function colours(element) {
	const style = getComputedStyle(element);
	const of = name => style.getPropertyValue(`--${name}`).trim();
	return Object.fromEntries(["ink", "muted", "line", "sunken", "surface", "accent", "bad", "mid", "info"].map(name => [name, of(name)]));
}

// view: [from, to] in UTC seconds. marks: {t, cut: [from, to]}. report: of the API, or undefined while it is fetched.
export function drawStrip(canvas, report, view, marks, now) {
	const ratio = devicePixelRatio || 1;
	const [w, h] = [canvas.clientWidth, canvas.clientHeight];
	canvas.width = Math.round(w * ratio);
	canvas.height = Math.round(h * ratio);
	const pen = canvas.getContext("2d");
	pen.scale(ratio, ratio);
	const c = colours(canvas);
	const x = t => ((t - view[0]) / (view[1] - view[0])) * w;
	const bar = (t0, t1, top, bottom, least = 1) => {
		const left = Math.max(0, x(t0));
		const right = Math.min(w, x(t1));
		if (right >= 0 && left <= w) pen.fillRect(left, top, Math.max(least, right - left), bottom - top);
	};
	const floor = h - 5;
	pen.fillStyle = c.sunken;
	pen.fillRect(0, AXIS, w, h - AXIS);
	axis(pen, c, view, x, h);
	if (!report) return;
	pen.fillStyle = c.accent;
	pen.globalAlpha = 0.22;
	for (const span of report.recorded) bar(span.t_start, span.t_end, AXIS, floor);
	pen.globalAlpha = 1;
	looks(pen, c, report.activity, bar, floor);
	for (const hole of report.missing) {
		const end = Math.min(hole.t_end ?? now, now);
		pen.fillStyle = hole.kind === "interrupted" ? c.bad : c.muted;
		pen.globalAlpha = hole.kind === "interrupted" ? 0.6 : 0.25;
		bar(hole.t_start, end, AXIS + (floor - AXIS) / 2 - 2, AXIS + (floor - AXIS) / 2 + 2, 2);
		pen.globalAlpha = 1;
	}
	pen.fillStyle = c.mid;
	for (const fault of report.health) bar(fault.t_start, fault.t_end ?? now, floor, h, 3);
	for (const alert of report.alerts) {
		pen.fillStyle = SEVERITY[alert.severity] ?? c.info;
		pen.globalAlpha = alert.verdict === "rejected" || alert.review === "false_alarm" ? 0.4 : 1;
		bar(alert.t_start, alert.t_end ?? now, AXIS, AXIS + 7, 3);
		pen.globalAlpha = 1;
	}
	if (marks.cut) {
		const [from, to] = marks.cut;
		pen.strokeStyle = c.ink;
		pen.setLineDash([4, 3]);
		pen.strokeRect(x(from), AXIS + 1, Math.max(1, x(to ?? marks.t) - x(from)), floor - AXIS - 2);
		pen.setLineDash([]);
	}
	pen.fillStyle = c.ink;
	if (marks.t !== null) pen.fillRect(x(marks.t) - 1, AXIS - 4, 2, h);
}

function looks(pen, c, activity, bar, floor) {
	const most = Math.max(60, ...activity.looks);
	const high = floor - AXIS - 9;
	activity.looks.forEach((count, n) => {
		if (!count) return;
		const t = activity.t + n * MINUTE_S;
		pen.fillStyle = activity.seen[n] ? c.accent : c.muted;
		pen.globalAlpha = activity.seen[n] ? 0.85 : 0.45;
		bar(t, t + MINUTE_S, floor - Math.max(1, (high * count) / most), floor);
	});
	pen.globalAlpha = 1;
}

function axis(pen, c, view, x, h) {
	const step = STEPS.find(each => x(view[0] + each) >= 64) ?? 21600;
	const style = step < 60 ? long : short;
	const offset = new Date(view[0] * 1000).getTimezoneOffset() * 60;
	pen.font = "11px system-ui, sans-serif";
	pen.textBaseline = "middle";
	pen.textAlign = "center";
	for (let t = Math.ceil((view[0] - offset) / step) * step + offset; t <= view[1]; t += step) {
		pen.fillStyle = c.line;
		pen.fillRect(x(t), AXIS, 1, h - AXIS);
		pen.fillStyle = c.muted;
		if (x(t) > 26 && x(t) < pen.canvas.clientWidth - 26) pen.fillText(style.format(new Date(t * 1000)), x(t), AXIS / 2);
	}
}
