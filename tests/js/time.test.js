// Dates that are far away say of which year they are.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { served } from "./served.js";

test("a date has its year where it could be taken for another one's", async () => {
	globalThis.document = { documentElement: { lang: "en" } };
	mock.timers.enable({ apis: ["Date"], now: new Date(2026, 11, 1, 12).getTime() });
	const { dayOf, momentOf } = await served("time.js");
	const at = (year, month, day) => new Date(year, month, day, 9, 5).getTime() / 1000;
	assert.doesNotMatch(momentOf(at(2026, 5, 3)), /2026/);
	assert.doesNotMatch(dayOf(at(2026, 5, 3)), /2026/);
	assert.match(momentOf(at(2025, 11, 3)), /2025.* 09:05:00$/);
	assert.match(momentOf(at(2024, 5, 3)), /2024/);
	assert.match(dayOf(at(2024, 5, 3)), /2024/);
});
