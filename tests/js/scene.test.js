// Zones, lines and rules of the editor.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as scene from "../../appliance/dashboard/static/scene.js";

/** @returns {Scene} */
const yard = () => ({
	zones: { door: [[0.1, 0.1], [0.5, 0.1], [0.5, 0.5]], road: [[0, 0], [1, 0], [1, 1]] },
	ignore: ["road"],
	lines: { gate: [[0.2, 0.5], [0.8, 0.5]] },
	rules: [{ name: "visitor", kind: "enter", zone: "door" }, { name: "crossing", kind: "line", line: "gate", direction: "both" }]
});

test("a share stays inside the frame and has three digits", () => {
	assert.deepEqual([-0.2, 0.12345, 1.7].map(scene.round), [0, 0.123, 1]);
});

test("a new name is the first that is free", () => {
	assert.equal(scene.freeName("zone", []), "zone");
	assert.equal(scene.freeName("zone", ["zone", "zone-3"]), "zone-2");
});

test("a renamed zone keeps its place, its rules and that it is ignored", () => {
	const found = yard();
	scene.rename(found, "zones", "door", "entrance");
	scene.rename(found, "zones", "road", "street");
	assert.deepEqual(Object.keys(found.zones), ["entrance", "street"]);
	assert.deepEqual(found.ignore, ["street"]);
	assert.equal(found.rules[0].zone, "entrance");
	assert.equal(found.rules[1].line, "gate");
});

test("what names a zone elsewhere follows its new name", () => {
	const found = yard();
	const site = {
		alerts: { adjoining: [{ zones: ["yard/road", "gate/road"], seconds: 6 }] },
		cameras: { yard: { quota: { zone_days: { road: 3 } }, privacy: { mask: ["door"] } } }
	};
	assert.deepEqual(scene.followRenames(site, "yard", found), []);
	scene.rename(found, "zones", "road", "lane");
	scene.rename(found, "zones", "lane", "street");
	assert.deepEqual(scene.followRenames(site, "yard", found), [
		{ path: ["alerts", "adjoining"], value: [{ zones: ["yard/street", "gate/road"], seconds: 6 }] },
		{ path: ["cameras", "yard", "quota", "zone_days"], value: { street: 3 } }
	]);
	scene.rename(found, "zones", "street", "road");
	assert.deepEqual(scene.followRenames(site, "yard", found), []);
});

test("a line renamed like a zone leaves the zone's rules alone", () => {
	const found = yard();
	scene.rename(found, "lines", "gate", "door");
	assert.equal(found.rules[1].line, "door");
	assert.equal(found.rules[0].zone, "door");
	assert.deepEqual(scene.rulesOn(found, "door"), ["visitor", "crossing"]);
	assert.deepEqual(scene.rulesOn(found, "road"), []);
});

test("another kind of rule loses the keys of the old one", () => {
	const found = yard();
	const [visitor, crossing] = found.rules;
	scene.setKind(crossing, "dwell", found);
	assert.deepEqual(crossing, { name: "crossing", kind: "dwell", zone: "door", seconds: 20 });
	scene.setKind(visitor, "line", found);
	assert.deepEqual(visitor, { name: "visitor", kind: "line", line: "gate" });
	scene.setKind(visitor, "exit", { ...found, zones: {} });
	assert.equal(visitor.zone, "");
});

test("only what differs is changed, and what is empty is removed", () => {
	const now = yard();
	assert.deepEqual(scene.changesOf("yard", yard(), now), []);
	now.ignore = [];
	now.lines.gate[0] = [0.3, 0.5];
	assert.deepEqual(scene.changesOf("yard", yard(), now), [
		{ path: ["cameras", "yard", "ignore"], remove: true },
		{ path: ["cameras", "yard", "lines"], value: now.lines }
	]);
});

test("between the last corner and the first there is a point too", () => {
	const { door } = yard().zones;
	assert.deepEqual(scene.between(door, 0), [0.3, 0.1]);
	assert.deepEqual(scene.between(door, 2), [0.3, 0.3]);
	assert.equal(scene.canLoseCorner(door), false);
	assert.equal(scene.canLoseCorner([...door, [0, 0]]), true);
	assert.deepEqual(scene.topLeft([[0.5, 0.5], [0.2, 0.1], [0.1, 0.9]]), [0.2, 0.1]);
});

test("arrow keys move a corner, with Shift further, and never out of the frame", () => {
	assert.deepEqual(scene.stepped([0.5, 0.5], "ArrowLeft", false), [0.495, 0.5]);
	assert.deepEqual(scene.stepped([0.5, 0.99], "ArrowDown", true), [0.5, 1]);
	assert.equal(scene.stepped([0.5, 0.5], "Enter", false), undefined);
});

test("the arrow of a line points from its left to its right", () => {
	const down = scene.arrowOf([0, 10], [20, 10], 2); // drawn to the right: its left is above, y grows downwards
	assert.deepEqual(down.tail, [10, 2]);
	assert.deepEqual(down.tip, [10, 18]);
	assert.deepEqual(down.head[0], down.tip);
	assert.ok(down.head.slice(1).every(point => point[1] < 18));
	const up = scene.arrowOf([20, 10], [0, 10], 2);
	assert.deepEqual(up.tip, [10, 2]);
	const point = scene.arrowOf([5, 5], [5, 5], 2);
	assert.ok(point.tip.every(Number.isFinite));
});

test("a zone around the feet lies at the lower edge of the box", () => {
	assert.deepEqual(scene.feetOf([0.2, 0.1, 0.4, 0.9]), [[0.2, 0.7], [0.4, 0.7], [0.4, 1], [0.2, 1]]);
});
