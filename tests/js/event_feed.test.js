// The stream of changes, over a browser of our own: a hidden page lets go, and resumes where it was.
import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { coalescedWork, EventFeed, RowQueue } from "../../appliance/web/static/event_feed.js";

/** @type {Source[]} */
let opened = [];

class Source extends EventTarget {
	static CLOSED = 2;
	readyState = 1;
	onopen = () => {};
	onerror = () => {};
	constructor(url) {
		super();
		this.url = url;
		opened.push(this);
	}
	close() {
		this.readyState = Source.CLOSED;
	}
	send(kind, id, row) {
		this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(row), lastEventId: String(id) }));
	}
}

const page = Object.assign(new EventTarget(), { hidden: false });
const windowEvents = new EventTarget();
Object.assign(globalThis, { EventSource: Source, document: page, addEventListener: windowEvents.addEventListener.bind(windowEvents) });

function hide(hidden) {
	page.hidden = hidden;
	page.dispatchEvent(new Event("visibilitychange"));
}

beforeEach(() => {
	opened = [];
	page.hidden = false;
});

function listen(rev = 7) {
	const rows = [];
	const lights = [];
	const feed = new EventFeed(rev, { alert: row => rows.push(row) }, state => lights.push(state));
	feed.listen();
	return { feed, rows, lights };
}

test("the stream begins at the change that the page shows, and hands its rows over", () => {
	const { rows, lights } = listen(7);
	assert.deepEqual(opened.map(each => each.url), ["/api/v1/stream?since=7"]);
	opened[0].onopen();
	opened[0].send("alert", 9, { id: "a" });
	opened[0].send("camera", 10, { name: "gate" });
	assert.deepEqual(rows, [{ id: "a" }]);
	assert.deepEqual(lights, ["live"]);
});

test("a hidden page lets go of its connection and resumes after the last change it saw", () => {
	const { feed } = listen(7);
	opened[0].send("alert", 12, {});
	hide(true);
	assert.equal(opened[0].readyState, Source.CLOSED);
	hide(false);
	assert.equal(opened.at(-1)?.url, "/api/v1/stream?since=12");
	feed.open();
	assert.equal(opened.filter(each => each.url.endsWith("=12")).length, 1);
});

test("a page that opens hidden does not connect before it is seen", () => {
	page.hidden = true;
	listen(3);
	assert.equal(opened.length, 0);
	hide(false);
	assert.ok(opened.some(each => each.url.endsWith("since=3")));
});

test("while the browser tries by itself it is left alone; once it gave up, the page tries later", () => {
	mock.timers.enable({ apis: ["setTimeout"] });
	try {
		const { lights } = listen(5);
		opened[0].onerror();
		assert.deepEqual(lights, ["lost"]);
		mock.timers.tick(10000);
		assert.equal(opened.length, 1);
		opened[0].close();
		opened[0].onerror();
		mock.timers.tick(2999);
		assert.equal(opened.length, 1);
		mock.timers.tick(1);
		assert.equal(opened.length, 2);
	} finally {
		mock.timers.reset();
	}
});

test("a page that was hidden meanwhile does not try again", () => {
	mock.timers.enable({ apis: ["setTimeout"] });
	try {
		listen(5);
		opened[0].close();
		opened[0].onerror();
		page.hidden = true;
		mock.timers.tick(3000);
		assert.equal(opened.length, 1);
	} finally {
		mock.timers.reset();
	}
});

/** Work whose end the test decides. */
function work() {
	/** @type {(() => void)[]} */
	const ends = [];
	const run = () => new Promise(done => ends.push(() => done(undefined)));
	return { ends, run };
}

const settled = () => new Promise(done => setImmediate(done));

test("a row that met no answer is shown later, and one that was refused holds up no other", async () => {
	mock.timers.enable({ apis: ["setTimeout"] });
	try {
		const queue = new RowQueue();
		const shown = [];
		let repeats = 0;
		const failing = new Map([["a", Object.assign(new Error("no answer"), { unanswered: true })], ["b", new Error("404")]]);
		const show = async row => {
			const error = failing.get(row.id);
			failing.delete(row.id);
			if (error) throw error;
			shown.push(`${row.id}${row.rev}`);
		};
		for (const row of [{ id: "a", rev: 1 }, { id: "b", rev: 2 }, { id: "c", rev: 3 }]) queue.put(row);
		await assert.rejects(queue.drain(show, () => repeats++), /no answer/);
		queue.put({ id: "a", rev: 4 });
		mock.timers.tick(3000);
		assert.equal(repeats, 1);
		await assert.rejects(queue.drain(show, () => repeats++), /404/);
		await queue.drain(show, () => repeats++);
		assert.deepEqual(shown, ["c3", "a4"]);
		assert.equal(queue.rows.size, 0);
	} finally {
		mock.timers.reset();
	}
});

test("a row that never meets an answer holds up no other, and all that fail are tried again once", async () => {
	mock.timers.enable({ apis: ["setTimeout"] });
	try {
		const queue = new RowQueue();
		const shown = [];
		let repeats = 0;
		const show = async row => {
			if (row.id === "a") throw Object.assign(new Error("500"), { unanswered: true });
			shown.push(row.id);
		};
		queue.put({ id: "a" });
		for (const id of ["b", "c", "d"]) {
			queue.put({ id });
			await assert.rejects(queue.drain(show, () => repeats++), /500/);
		}
		mock.timers.tick(3000);
		assert.equal(repeats, 1);
		await assert.rejects(queue.drain(show, () => repeats++), /500/);
		assert.deepEqual(shown, ["b", "c", "d"]);
	} finally {
		mock.timers.reset();
	}
});

test("work that is asked for many times meanwhile runs once more", async () => {
	const { ends, run } = work();
	const ask = coalescedWork(run, 0, assert.fail);
	const first = ask();
	await settled();
	const others = [ask(), ask(), ask()];
	assert.equal(ends.length, 1);
	ends[0]();
	await first;
	while (ends.length < 2) await settled();
	ends[1]();
	await Promise.all(others);
	assert.equal(ends.length, 2);
});

test("the promise is one of a run that begins from now on", async () => {
	let n = 0;
	const ask = coalescedWork(async () => {
		await settled();
		n++;
	}, 0, assert.fail);
	const first = ask();
	await Promise.resolve();
	const second = ask();
	await first;
	assert.equal(n, 1);
	await second;
	assert.equal(n, 2);
});

test("work that fails is reported, and runs the next time", async () => {
	const failures = [];
	let n = 0;
	const ask = coalescedWork(() => {
		if (n++ === 0) throw new Error("no");
	}, 0, error => failures.push(error.message));
	await ask();
	await ask();
	assert.deepEqual(failures, ["no"]);
	assert.equal(n, 2);
});
