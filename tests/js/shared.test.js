// The way to the worker of all windows: a worker that the browser ended is noticed, and only who still listens is told.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

mock.timers.enable({ apis: ["setInterval"] });
const asked = [];
const port = { postMessage: message => asked.push(message.do), onmessage: _event => {} };
globalThis.document = { hidden: false };
globalThis.SharedWorker = class {
	port = port;
};
const { shared } = await import("../../appliance/web/static/shared.js");

function listener() {
	const heard = { times: 0, failed: 0 };
	const way = shared(() => heard.failed++);
	const deaf = way?.listen(() => heard.times++) ?? assert.fail();
	return { heard, deaf };
}

test("a worker that no longer answers is given up, for those who listen", () => {
	const [one, other] = [listener(), listener()];
	for (let n = 0; n < 10; n++) {
		mock.timers.tick(10000);
		port.onmessage({ data: { here: true } });
	}
	assert.deepEqual([one.heard, other.heard], [{ times: 10, failed: 0 }, { times: 10, failed: 0 }]);
	document.hidden = true; // asks for nothing
	mock.timers.tick(100000);
	document.hidden = false;
	other.deaf();
	mock.timers.tick(30000);
	assert.deepEqual([one.heard.failed, asked.length], [0, 13]);
	mock.timers.tick(10000);
	assert.deepEqual([one.heard.failed, other.heard.failed], [1, 0]);
	assert.equal(shared(assert.fail), null);
});
