// What a page says when something before the appliance answers, which sends no problem in JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { served } from "./served.js";

globalThis.document = { documentElement: { lang: "en" } };
const proxy = () => new Response("<h1>Bad Gateway</h1>", { status: 502 });
const appliance = () => Response.json({ detail: "Not recorded then." }, { status: 404 });

test("a refusal is told in the appliance's words, or with its status", async () => {
	const { problemOf } = await served("problem.js");
	assert.equal(await problemOf(appliance()), "Not recorded then.");
	assert.equal(await problemOf(proxy()), "The appliance answered 502.");
});

test("a recording to be converted says the same", async () => {
	const { converted } = await served("converted.js");
	for (const [answer, words] of /** @type {const} */ ([[appliance, "Not recorded then."], [proxy, "The appliance answered 502."]])) {
		globalThis.fetch = async () => answer();
		await assert.rejects(converted("/recording", () => {}, () => true), { message: words });
	}
});

test("live video says the same, also by the worker, which knows no language", async () => {
	const { readLive } = await import("../../appliance/dashboard/static/live_buffer.js");
	const { refusalOf } = await served("problem.js");
	const asked = { names: ["gate"], when: "always", h264: [] };
	for (const [answer, words] of /** @type {const} */ ([[appliance, "Not recorded then."], [proxy, "The appliance answered 502."]])) {
		globalThis.fetch = async () => answer();
		const error = await readLive(asked, new AbortController().signal, () => {}).catch(each => each);
		assert.equal(refusalOf(error.message, error.status), words);
	}
});
