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
