// A device that subscribed to the key of before can subscribe again.
import assert from "node:assert/strict";
import { test } from "node:test";
import { served } from "./served.js";

test("a subscription to another key is given up for one to the present key", async () => {
	let held = { key: "old", unsubscribe: async () => (held = null) };
	const subscribed = [];
	const pushManager = {
		getSubscription: async () => held,
		async subscribe({ applicationServerKey: key }) {
			if (held && held.key !== key) throw Object.assign(new Error("A subscription with another key exists"), { name: "InvalidStateError" });
			held = { key, unsubscribe: async () => (held = null) };
			return { toJSON: () => ({ endpoint: `https://push.example/${key}`, keys: {} }) };
		}
	};
	let press = async () => {};
	const button = { addEventListener: (_kind, work) => (press = work), closest: () => ({ querySelector: () => ({}) }), hidden: false };
	const done = { value: "" };
	globalThis.window = { PushManager: class {} };
	globalThis.Notification = { permission: "granted", requestPermission: async () => "granted" };
	globalThis.document = { documentElement: { lang: "en" } };
	const navigator = { languages: ["en"], platform: "Linux", userAgent: "Firefox/140", serviceWorker: { ready: Promise.resolve({ pushManager }) } };
	Object.defineProperty(globalThis, "navigator", { configurable: true, value: navigator });
	const post = async (path, body) => {
		if (path.endsWith("/test")) return { ok: true };
		if (!body) return { key: "new" };
		subscribed.push(body.endpoint);
		return { browsers: [{ id: "b1" }] };
	};
	const by = id => ({ subscribe: button, "device-done": done })[id] ?? null;
	await served("device.js", { attempt: async (_button, work) => work(), by, made() {}, post, async renew() {}, say() {} });
	await press();
	assert.deepEqual(subscribed, ["https://push.example/new"]);
	assert.equal(button.hidden, true);
});
