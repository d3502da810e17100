// A new token is shown once: what fails after it was made does not take it away.
import assert from "node:assert/strict";
import { test } from "node:test";
import { served } from "./served.js";

test("a new token is on the page although the lists could not be read again", async () => {
	const heard = {};
	const code = { textContent: "" };
	const fresh = { hidden: true, querySelector: () => code };
	const shown = [];
	const attempt = async (_button, work) => work().catch(error => void shown.push(error.message));
	const failed = async () => {
		throw new TypeError("Failed to fetch");
	};
	globalThis.document = { documentElement: { lang: "en" }, addEventListener: (kind, work) => (heard[kind] = work) };
	globalThis.fetch = failed;
	await served("users.js", { attempt, by: () => fresh, follow() {}, post: async () => ({ token: "vd_secret" }), reload: failed, say() {}, swap() {} });
	const form = { id: "add-token", elements: { name: { value: "mine" }, role: { value: "viewer" } }, dataset: {}, reset() {} };
	await heard.submit({ preventDefault() {}, target: form });
	assert.deepEqual(shown, ["Failed to fetch"]);
	assert.equal(code.textContent, "vd_secret");
	assert.equal(fresh.hidden, false);
});

test("an appliance that answers with an error does not have the page loaded again, which would lose the token", async () => {
	const heard = {};
	const code = { textContent: "" };
	let loads = 0;
	globalThis.document = { documentElement: { lang: "en" }, addEventListener: (kind, work) => (heard[kind] = work) };
	globalThis.location = { reload: () => loads++ };
	globalThis.fetch = async () => ({ ok: false, redirected: false, status: 503 });
	const attempt = async (_button, work) => work().catch(() => {});
	const reload = async () => {
		throw new Error("The appliance answered 503.");
	};
	await served("users.js", { attempt, by: () => ({ querySelector: () => code }), follow() {}, post: async () => ({ token: "vd_secret" }), reload, say() {}, swap() {} });
	const form = { id: "add-token", elements: { name: { value: "mine" }, role: { value: "viewer" } }, dataset: {}, reset() {} };
	await heard.submit({ preventDefault() {}, target: form });
	assert.deepEqual([code.textContent, loads], ["vd_secret", 0]);
});
