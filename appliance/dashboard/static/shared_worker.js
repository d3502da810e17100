// @ts-check
// One connection for events and at most two for live video, for all windows of this browser: a browser has six to one
// host. Each window says what it follows, and gets that.
import { readLive } from "./live_buffer.js";
const EVENTS_KEPT = 512; // for a window that comes a moment after its page was made
const KINDS = ["alert", "camera", "health", "trouble"];
const SILENT_MS = 35000; // a window says every ten seconds that it is there
const RETRY_MS = 2000;
const SHRINK_MS = 5000; // a window that is reloaded comes back sooner
const CAMERAS_MAX = 64; // of one connection

/**
 * @typedef {object} Follower a window
 * @property {MessagePort} port
 * @property {number} seenAt ms
 * @property {number | null} since the last change it knows; null: it follows no events
 * @property {Map<string, import("./live_buffer.js").LiveRequest>} live by a name that the window chose
 */
/** @type {Set<Follower>} */
const followers = new Set();

const events = {
	/** @type {EventSource | null} */
	source: null,
	from: 0, // everything after this change is in `kept`
	/** @type {{kind: string, id: number, data: string}[]} */
	kept: [],
	open(since) {
		this.close();
		Object.assign(this, { from: since, kept: [] });
		const source = new EventSource(`/api/v1/stream?since=${since}`);
		this.source = source;
		source.onopen = () => this.tell({ events: "open" });
		source.onerror = () => {
			const over = source.readyState === EventSource.CLOSED;
			this.tell({ events: over ? "over" : "lost" });
			if (over) this.close();
		};
		for (const kind of KINDS) source.addEventListener(kind, event => this.take(kind, event));
	},
	take(kind, event) {
		const change = { kind, id: kind === "trouble" ? 0 : Number(event.lastEventId), data: event.data };
		if (change.id) this.kept.push(change);
		if (this.kept.length > EVENTS_KEPT) this.from = this.kept.shift()?.id ?? 0;
		this.tell({ change });
	},
	tell(message) {
		for (const each of followers) if (each.since !== null) each.port.postMessage(message);
	},
	follow(follower, since) {
		follower.since = since;
		if (!this.source || since < this.from) return this.open(since);
		if (this.source.readyState === EventSource.OPEN) follower.port.postMessage({ events: "open" });
		for (const change of this.kept) if (change.id > since) follower.port.postMessage({ change });
	},
	close() {
		this.source?.close();
		this.source = null;
	}
};

// Live video of the cameras that some window follows: `always` the main streams, `active` the second ones.
class LiveGroup {
	/** @type {string[]} */
	names = [];
	/** @type {AbortController | null} */
	stop = null;
	constructor(when) {
		this.when = when;
	}
	*wanted() {
		for (const follower of followers)
			for (const [key, each] of follower.live) if (each.when === this.when) yield { follower, key, names: each.names, h264: each.h264 };
	}
	// fresh: somebody came, who needs each stream from its beginning.
	update(fresh) {
		const names = [...new Set([...this.wanted()].flatMap(each => each.names))].sort().slice(0, CAMERAS_MAX);
		if (!names.length) {
			this.stop?.abort();
			Object.assign(this, { names, stop: null });
		} else if (fresh || names.join() !== this.names.join()) {
			this.names = names;
			this.run(this.stop);
		}
	}
	async run(before) {
		const stop = new AbortController();
		const { names, when } = this;
		const h264 = [...new Set([...this.wanted()].flatMap(each => each.h264))].filter(name => names.includes(name));
		this.stop = stop;
		while (this.stop === stop) {
			await readLive({ names, when, h264 }, stop.signal, this.hand.bind(this), () => before?.abort()).catch(
				error => this.stop === stop && this.lost(error),
			);
			before?.abort();
			await new Promise(done => setTimeout(done, RETRY_MS));
		}
	}
	hand(name, kind, body) {
		for (const each of this.wanted()) if (each.names.includes(name)) each.follower.port.postMessage({ live: each.key, name, kind, body });
	}
	lost({ message, status }) {
		for (const each of this.wanted()) each.follower.port.postMessage({ live: each.key, lost: message, status });
	}
}
const groups = { always: new LiveGroup("always"), active: new LiveGroup("active") };

const shrink = () =>
	setTimeout(() => {
		for (const group of Object.values(groups)) group.update(false);
	}, SHRINK_MS);

function drop(follower) {
	followers.delete(follower);
	shrink();
	if (![...followers].some(each => each.since !== null)) events.close();
}

const acts = {
	events: (follower, { since }) => events.follow(follower, since),
	quiet(follower) {
		follower.since = null;
		if (![...followers].some(each => each.since !== null)) events.close();
	},
	live(follower, { key, names, when, h264 }) {
		follower.live.set(key, { names, when, h264 });
		groups[when].update(true);
	},
	still(follower, { key }) {
		follower.live.delete(key);
		shrink();
	},
	// A window that was silent for too long, as its computer slept, was dropped (back) and does not know it.
	here(follower, { back }) {
		follower.port.postMessage({ here: true });
		if (!back) return;
		if (follower.since !== null) follower.port.postMessage({ events: "over" });
		for (const group of Object.values(groups)) group.update(false);
	}
};

addEventListener("connect", (/** @type {any} */ event) => {
	const [port] = event.ports;
	/** @type {Follower} */
	const follower = { port, seenAt: Date.now(), since: null, live: new Map() };
	port.onmessage = ({ data }) => {
		const back = !followers.has(follower);
		follower.seenAt = Date.now();
		followers.add(follower);
		acts[data.do](follower, { ...data, back });
	};
});
setInterval(() => {
	for (const each of followers) if (Date.now() - each.seenAt > SILENT_MS) drop(each);
}, 10000);
