// Days, views, cuts and alerts of the timeline, in a time zone whose days are 23 to 25 hours long.
import assert from "node:assert/strict";
import { before, test } from "node:test";

/** @type {typeof import("../../appliance/dashboard/static/timeline_view.js")} */
let view;
before(async () => {
	process.env.TZ = "Europe/Zurich";
	view = await import("../../appliance/dashboard/static/timeline_view.js");
});

const HOUR_S = 3600;
const at = text => new Date(text).getTime() / 1000;
const span = (t_start, t_end) => ({ t_start, t_end });

test("a day is midnight to midnight of the viewer", () => {
	assert.deepEqual(view.dayOf(at("2026-11-24T02:00:00+01:00")), [at("2026-11-24T00:00:00+01:00"), at("2026-11-25T00:00:00+01:00")]);
	assert.deepEqual(view.dayOf(at("2026-11-24T02:00:00+01:00"), -1)[0], at("2026-11-23T00:00:00+01:00"));
});

test("a day on which the clock changes has 23 or 25 hours, and the next one begins where it ends", () => {
	const short = view.dayOf(at("2026-03-29T12:00:00+02:00"));
	const long = view.dayOf(at("2026-10-25T12:00:00+01:00"));
	assert.equal(view.width(short), 23 * HOUR_S);
	assert.equal(view.width(long), 25 * HOUR_S);
	assert.equal(view.dayOf(view.noonOf(long), 1)[0], long[1]);
	assert.equal(view.dateOf(long), "2026-10-25");
	assert.equal(view.dateOf(short), "2026-03-29");
});

test("a date field names a day, and none while it is not filled in", () => {
	assert.equal(view.dateOf(view.dayNamed("2026-02-03") ?? [0, 0]), "2026-02-03");
	assert.equal(view.dayNamed(""), null);
});

test("a view stays inside its day", () => {
	const day = view.dayOf(at("2026-11-24T12:00:00+01:00"));
	assert.deepEqual(view.centred(day[0] + 10, HOUR_S, day), [day[0], day[0] + HOUR_S]);
	assert.deepEqual(view.centred(day[1] - 10, HOUR_S, day), [day[1] - HOUR_S, day[1]]);
	assert.deepEqual(view.centred(day[0] + 7200, HOUR_S, day), [day[0] + 5400, day[0] + 9000]);
	assert.deepEqual(view.centred(day[0], 1e6, day), day);
});

test("closer and wider go from the whole day to two minutes and back", () => {
	for (const text of ["2026-11-24T12:00:00+01:00", "2026-03-29T12:00:00+02:00", "2026-10-25T12:00:00+01:00"]) {
		const day = view.dayOf(at(text));
		let now = day;
		const widths = [];
		for (let n = 0; n < 5; n++) {
			now = view.zoomed(day[0] + 40000, now, day, 1);
			widths.push(view.width(now));
		}
		assert.deepEqual(widths, [21600, 3600, 600, 120, 120]);
		for (let n = 0; n < 4; n++) now = view.zoomed(day[0] + 40000, now, day, -1);
		assert.deepEqual(now, day, text);
	}
});

test("a person lands on the newest recording of today and at the beginning of a past day's", () => {
	const day = view.dayOf(at("2026-11-24T12:00:00+01:00"));
	const recorded = [span(day[0] + 100, day[0] + 200), span(day[0] + 300, day[0] + 400)];
	assert.equal(view.landing(recorded, day, day[0] + 500), day[0] + 395);
	assert.equal(view.landing(recorded, day, day[1] + 500), day[0] + 100);
	assert.equal(view.landing([], day, day[1] + 500), view.noonOf(day));
	assert.equal(view.landing([], day, day[0] + 500), day[0] + 500);
});

test("playing goes on at the next recording, and nowhere after the last", () => {
	const recorded = [span(0, 10), span(20, 30), span(15, 18)];
	assert.equal(view.nextStart(recorded, 10), 15);
	assert.equal(view.nextStart(recorded, 20), Infinity);
	assert.equal(view.nextStart([], 0), Infinity);
});

test("the alert on screen is neither the next one nor the one before", () => {
	const alerts = [10, 20, 30].map(t_start => /** @type {any} */ ({ t_start }));
	assert.equal(view.neighbour(alerts, 20, 1)?.t_start, 30);
	assert.equal(view.neighbour(alerts, 20, -1)?.t_start, 10);
	assert.equal(view.neighbour(alerts, 20.4, -1)?.t_start, 10);
	assert.equal(view.neighbour(alerts, 30, 1), undefined);
	assert.equal(view.neighbour([], 30, -1), undefined);
});

test("a cut is marked from either end and never runs backwards", () => {
	assert.deepEqual(view.marked(null, 100, false), [100, null]);
	assert.deepEqual(view.marked(null, 100, true), [70, 100]);
	assert.deepEqual(view.marked([90, null], 100, true), [90, 100]);
	assert.deepEqual(view.marked([90, 100], 80, true), [50, 80]);
	assert.deepEqual(view.marked([90, 100], 95, false), [95, 100]);
	assert.deepEqual(view.marked([90, 100], 100, false), [100, null]);
});

test("a cut is ready with both ends and at most 15 minutes", () => {
	assert.equal(view.isReady(null), false);
	assert.equal(view.isReady([0, null]), false);
	assert.equal(view.isReady([0, 900]), true);
	assert.equal(view.isReady([0, 900.1]), false);
});

test("a pointer is at a moment of the view, also beside the strip", () => {
	const area = { left: 100, width: 200 };
	assert.equal(view.momentAt(200, area, [1000, 3000]), 2000);
	assert.equal(view.momentAt(0, area, [1000, 3000]), 1000);
	assert.equal(view.momentAt(900, area, [1000, 3000]), 3000);
});

test("pictures are as far apart as a strip can tell", () => {
	assert.equal(view.frameStep([0, 86400]), 144);
	assert.equal(view.frameStep([0, 120]), 1);
});

test("keys move the needle, with Shift six times as far; other keys do not", () => {
	assert.equal(view.stepOf("ArrowLeft", false), -10);
	assert.equal(view.stepOf("PageDown", true), -3600);
	assert.equal(view.stepOf("a", true), undefined);
});
