// A form of settings: what its costs say when answers overtake each other, and a second save that fails.
import assert from "node:assert/strict";
import { before, beforeEach, mock, test } from "node:test";
import { served } from "./served.js";

const field = { type: "number", value: "10", validity: { badInput: false }, focus() {}, scrollIntoView() {} };
const part = values => ({ textContent: "", hidden: true, scrollIntoView() {}, ...values });
const parts = { "[type=submit]": part({ disabled: false }), "[data-mine]": part(), "[data-theirs]": part(), "[data-general]": part(), "[data-met]": part(), "[data-saved]": part() };
parts["[data-cost]"] = part({ lines: [], replaceChildren: (...rows) => (parts["[data-cost]"].lines = rows.map(row => row.textContent)) });
const setting = { dataset: { key: "storage.keep_hours", kind: "number", scale: "1" }, querySelector: name => (name === ".wrong" ? part() : field) };
const brought = { querySelectorAll: name => (name === ".setting" ? [{ ...setting, querySelector: () => ({ ...field, value: "10" }) }] : []) };
const listeners = {};
const form = {
	dataset: { form: "storage", base: "before" },
	isConnected: true,
	closest: () => ({ dataset: { swap: "form" } }),
	addEventListener: (kind, work) => (listeners[kind] = work),
	querySelector: name => parts[name],
	querySelectorAll: name => (name === ".setting" ? [setting] : []),
};
const asked = [];
const settled = () => new Promise(done => setImmediate(done));

before(async () => {
	globalThis.document = { documentElement: { lang: "en" }, addEventListener() {}, createElement: () => ({ content: { firstElementChild: brought } }), querySelector: () => null, querySelectorAll: name => (name === "form.settings" ? [form] : []) };
	globalThis.addEventListener = () => {};
	mock.timers.enable({ apis: ["setTimeout"] });
	const post = (url, body, method) => new Promise((answer, refuse) => asked.push({ url, body, method, answer, refuse }));
	const get = url => post(url, undefined, "GET");
	await served("settings_form.js", { follow() {}, get, made: (_tag, values) => values, post, reload() {}, say() {}, swap() {} });
});
beforeEach(() => asked.splice(0));

function type(value) {
	field.value = value;
	listeners.input();
	mock.timers.tick(500);
}

test("the cost that stands is that of the last change, whichever answer comes last", async () => {
	type("5");
	type("2");
	const [first, second] = asked;
	second.answer({ cost: ["deletes 8 hours"] });
	await settled();
	first.answer({ cost: ["deletes 5 hours"] });
	await settled();
	assert.deepEqual(parts["[data-cost]"].lines, ["deletes 8 hours"]);
	type("10");
	await settled();
	assert.deepEqual(parts["[data-cost]"].lines, []);
});

test("a save of mine that meets no answer says so, and may be tried again", async () => {
	const failing = mock.method(globalThis, "fetch", async () => {
		throw new TypeError("fetch failed");
	});
	type("5");
	parts["[data-met]"].hidden = false;
	const done = parts["[data-mine]"].onclick();
	await settled();
	asked.find(each => each.url === "/api/v1/settings")?.refuse(new Error("The appliance does not answer."));
	await done;
	failing.mock.restore();
	assert.equal(parts["[data-general]"].textContent, "The appliance does not answer.");
	assert.equal(form.dataset.base, "before");
	assert.equal(parts["[data-met]"].hidden, false);
});
