// The two videos of a camera on the stage: a day of playing leaves no listeners behind.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { served } from "./served.js";

class Video extends EventTarget {
	videoWidth = 640;
	currentTime = 0;
	set src(_url) {
		setImmediate(() => this.dispatchEvent(new Event("loadeddata")));
	}
	pause() {}
	hasAttribute() {
		return false;
	}
	canPlayType() {
		return "probably";
	}
}

test("of the pictures that were shown the oldest let go of their memory", async () => {
	globalThis.document = { documentElement: { lang: "en" } };
	const { Pane } = await served("pane.js");
	let open = 0;
	globalThis.fetch = async () => ({ ok: true, blob: async () => null, headers: new Map() });
	globalThis.createImageBitmap = async () => {
		open++;
		return { close: () => open-- };
	};
	const pane = new Pane({ dataset: {}, querySelectorAll: () => [], querySelector: () => ({}) }, "gate", {});
	for (let n = 0; n < 200; n++) await pane.fetchImage(`/frame?t=${n}`);
	assert.equal(open, 150);
});

test("each piece that was played takes its listeners with it", async () => {
	globalThis.document = { documentElement: { lang: "en" } };
	const { Pane } = await served("pane.js");
	const piece = { url: "/cut.mp4", t_start: 0, t_end: 20, sound: false, converted: false };
	globalThis.fetch = async () => ({ ok: true, status: 200, json: async () => piece });
	const videos = [new Video(), new Video()];
	const stage = { dataset: {}, querySelectorAll: () => videos, querySelector: () => ({}) };
	const report = { recorded: [{ t_start: 0, t_end: 3600 }], codec: "h264", recording: "/recording" };
	const pane = new Pane(stage, "gate", { report: () => report, clock: () => 0, ready() {}, failed: assert.fail });
	for (let n = 0; n < 5; n++) assert.ok(await pane.load(20 * n, 0));
	for (const kind of ["error", "loadeddata"]) assert.equal(getEventListeners(videos[0], kind).length, 0, kind);
});

test("where a picture does not come, none of another moment stands beside the clock", async () => {
	globalThis.document = { documentElement: { lang: "en" } };
	const { Pane } = await served("pane.js");
	const note = { textContent: "", hidden: true };
	let cleared = 0;
	const canvas = { getContext: () => ({ clearRect: () => cleared++ }) };
	const stage = { dataset: {}, querySelectorAll: () => [], querySelector: name => (name === "canvas" ? canvas : note) };
	const report = { recorded: [{ t_start: 0, t_end: 3600 }], frame: "/frame" };
	const pane = new Pane(stage, "gate", { report: () => report });
	globalThis.fetch = async () => {
		throw new TypeError("Failed to fetch");
	};
	pane.show(10, 3600, 0.1, false);
	await new Promise(done => setImmediate(done));
	assert.deepEqual([note.textContent, note.hidden, cleared], ["The appliance does not answer.", false, 1]);
	globalThis.fetch = async () => new Response("<h1>Bad Gateway</h1>", { status: 502 });
	pane.show(20, 3600, 0.1, false);
	await new Promise(done => setTimeout(done, 20));
	assert.deepEqual([note.textContent, cleared], ["The appliance answered 502.", 2]);
});
