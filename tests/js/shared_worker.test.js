// The worker of all windows: one that it dropped while the computer slept gets its events and its video again.
import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

mock.timers.enable({ apis: ["Date", "setInterval", "setTimeout"] });
/** @type {Source[]} */
let opened = [];
/** @type {AbortSignal[]} */
let lives = [];

class Source extends EventTarget {
	static OPEN = 1;
	static CLOSED = 2;
	readyState = 1;
	constructor(url) {
		super();
		this.url = url;
		opened.push(this);
	}
	close() {
		this.readyState = Source.CLOSED;
	}
}
let connect = _event => {};
Object.assign(globalThis, {
	EventSource: Source,
	addEventListener: (_kind, work) => (connect = work),
	fetch: (_url, { signal }) =>
		new Promise((_done, failed) => {
			lives.push(signal);
			signal.addEventListener("abort", () => failed(new Error("aborted")));
		})
});
await import("../../appliance/dashboard/static/shared_worker.js");

function windowOf() {
	const told = [];
	const port = { postMessage: message => told.push(message), onmessage: _event => {} };
	connect({ ports: [port] });
	return { told, send: data => port.onmessage({ data }) };
}

const WATCH = { do: "live", key: "1", names: ["gate"], when: "always", h264: [] };
const over = told => told.filter(each => each.events === "over").length;

beforeEach(() => {
	mock.timers.tick(60000); // windows of the test before are forgotten
	opened = [];
	lives = [];
});

test("a window that says that it is there is never dropped", () => {
	const { told, send } = windowOf();
	send({ do: "events", since: 5 });
	for (let n = 0; n < 10; n++) {
		mock.timers.tick(10000);
		send({ do: "here" });
	}
	assert.equal(told.filter(each => each.here).length, 10);
	assert.equal(over(told), 0);
	assert.deepEqual(opened.map(each => each.readyState), [Source.OPEN]);
});

test("after a sleep a window is told that its events are over, and resumes them", () => {
	const { told, send } = windowOf();
	send({ do: "events", since: 5 });
	mock.timers.tick(50000);
	assert.equal(opened[0].readyState, Source.CLOSED);
	send({ do: "here" });
	assert.equal(over(told), 1);
	send({ do: "quiet" });
	send({ do: "events", since: 9 });
	assert.deepEqual(opened.map(each => each.url), ["/api/v1/stream?since=5", "/api/v1/stream?since=9"]);
	send({ do: "here" });
	assert.equal(over(told), 1);
});

test("after a sleep a window gets its video again", () => {
	const { told, send } = windowOf();
	send(WATCH);
	assert.equal(lives.length, 1);
	mock.timers.tick(50000);
	mock.timers.tick(6000);
	assert.ok(lives[0].aborted);
	send({ do: "here" });
	assert.deepEqual(lives.map(each => each.aborted), [true, false]);
	assert.equal(over(told), 0, "it followed no events");
	send({ do: "still", key: "1" });
});
