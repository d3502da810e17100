// Live video: messages out of bytes, how far behind the end it plays, boxes between examined frames.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MessageReader, objectsAt, Pace, rateOf } from "../../appliance/dashboard/static/live_buffer.js";

function message(kind, camera, text) {
	const body = new TextEncoder().encode(text);
	const bytes = new Uint8Array(6 + body.length);
	bytes.set([kind.charCodeAt(0), camera]);
	new DataView(bytes.buffer).setUint32(2, body.length);
	bytes.set(body, 6);
	return bytes;
}

const shown = ({ kind, camera, body }) => [kind, camera, new TextDecoder().decode(body)];

test("messages come out whole wherever the bytes were cut", () => {
	const bytes = Uint8Array.from([...message("c", 0, "video/mp4"), ...message("v", 1, ""), ...message("b", 200, "[1, 2]")]);
	const whole = [["c", 0, "video/mp4"], ["v", 1, ""], ["b", 200, "[1, 2]"]];
	for (const size of [1, 2, 5, 7, bytes.length]) {
		const reader = new MessageReader();
		const found = [];
		for (let at = 0; at < bytes.length; at += size) found.push(...[...reader.read(bytes.slice(at, at + size))].map(shown));
		assert.deepEqual(found, whole, `pieces of ${size} bytes`);
		assert.equal(reader.data.length, 0);
	}
});

test("a length of more than two gigabytes is not negative", () => {
	const reader = new MessageReader();
	const head = message("v", 0, "");
	new DataView(head.buffer).setUint32(2, 0xffffffff);
	assert.deepEqual([...reader.read(head)], []);
	assert.equal(reader.data.length, 6);
});

test("it plays as far behind the end as pieces are long, and a little", () => {
	const pace = new Pace();
	assert.equal(pace.ahead(10, 9.25), 0);
	const short = new Pace();
	for (let n = 0; n <= 10; n++) short.ahead(10 + n * 0.2, 9);
	assert.ok(Math.abs(short.ahead(12, 12 - 0.2 - 0.25)) < 1e-6);
});

test("a long piece counts as two seconds at most, and is forgotten after six", () => {
	const pace = new Pace();
	pace.ahead(10, 10);
	assert.ok(Math.abs(pace.ahead(40, 40) - -2.25) < 1e-6);
	for (let n = 1; n <= 6; n++) pace.ahead(40 + n * 0.5, 40);
	assert.ok(Math.abs(pace.ahead(43, 43) - -0.75) < 1e-6);
});

test("after a stall it stays further behind, and comes closer again", () => {
	const pace = new Pace();
	const before = pace.ahead(10, 10);
	pace.stalled();
	assert.ok(pace.ahead(10, 10) < before - 0.3);
	for (let n = 0; n < 80; n++) pace.ahead(10, 10);
	assert.equal(pace.ahead(10, 10), before);
});

test("it plays faster when it is behind, slower when it is ahead, else as it was recorded", () => {
	assert.deepEqual([0.5, 0.15, 0, -0.3, -0.5].map(rateOf), [1.08, 1, 1, 1, 0.96]);
});

/**
 * @param {number} t
 * @param {Record<number, Box>} boxes by track
 * @returns {ExaminedFrame}
 */
const frame = (t, boxes) => ({
	t,
	objects: Object.entries(boxes).map(([track, box]) => ({ track: Number(track), label: "person", score: 0.9, box }))
});

test("a box moves between the frames before and after", () => {
	const frames = [frame(10, { 1: [0, 0, 0.2, 0.2] }), frame(10.4, { 1: [0.4, 0, 0.6, 0.2] })];
	const [object] = objectsAt(frames, 10.1);
	assert.deepEqual(object.box.map(side => Math.round(side * 1000) / 1000), [0.1, 0, 0.3, 0.2]);
	assert.equal(object.track, 1);
	assert.deepEqual(objectsAt(frames, 10)[0].box, [0, 0, 0.2, 0.2]);
});

test("a box whose object is not in the next frame stands still; nothing is shown after a second", () => {
	const frames = [frame(10, { 1: [0, 0, 0.2, 0.2] }), frame(10.4, { 2: [0.4, 0, 0.6, 0.2] })];
	assert.deepEqual(objectsAt(frames, 10.3)[0].box, [0, 0, 0.2, 0.2]);
	assert.deepEqual(objectsAt(frames, 10.4)[0].track, 2);
	assert.deepEqual(objectsAt(frames, 11.5), []);
	assert.deepEqual(objectsAt(frames, 9), []);
	assert.deepEqual(objectsAt([], 9), []);
});

test("a box does not move across more than a second", () => {
	const frames = [frame(10, { 1: [0, 0, 0.2, 0.2] }), frame(12, { 1: [0.8, 0, 1, 0.2] })];
	assert.deepEqual(objectsAt(frames, 10.9)[0].box, [0, 0, 0.2, 0.2]);
});
