// An empty file is sent, too: it takes the place of what was sent before, and is refused instead of that being restored.
import assert from "node:assert/strict";
import { test } from "node:test";
import { served } from "./served.js";

test("each file is sent from its first byte on, an empty one as one empty piece", async () => {
	const heard = {};
	const sent = [];
	const status = { textContent: "" };
	const told = [];
	let done = Promise.resolve();
	globalThis.document = { documentElement: { lang: "en" }, addEventListener: (kind, work) => (heard[kind] = work) };
	globalThis.fetch = async (path, { body }) => {
		told.push(status.textContent);
		sent.push([path, body.size]);
		return { ok: true };
	};
	const post = async path => void sent.push([path]);
	await served("backup.js", { attempt: (_button, work) => (done = work()), by: () => status, post, renew: async () => {}, say() {} });
	for (const bytes of [0, 1024 * 1024, 1024 * 1024 + 1]) {
		const elements = { file: { files: [new Blob([new Uint8Array(bytes)])] }, passphrase: { value: "p" }, other_site: { checked: false } };
		heard.submit({ preventDefault() {}, target: { elements, reset() {} } });
		await done;
	}
	const [first, second] = ["/api/v1/restore/upload?at=0", "/api/v1/restore/upload?at=1048576"];
	const check = ["/api/v1/restore"];
	assert.deepEqual(sent, [[first, 0], check, [first, 1024 * 1024], check, [first, 1024 * 1024], [second, 1], check]);
	assert.deepEqual(told, ["0 % sent", "0 % sent", "0 % sent", "99 % sent"]);
});
