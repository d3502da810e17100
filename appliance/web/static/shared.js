// @ts-check
// What all windows of this browser share: a worker that holds their connections, where the browser has such a thing.
const HERE_MS = 10000; // the worker forgets a window that is silent for longer than three of these
const UNHEARD_MAX = 3; // so often in a row a worker that lives does not leave a window without an answer
/** @type {MessagePort | null | undefined} undefined: nobody has asked yet; null: there is none */
let port;
/** @type {Set<(data: any) => void>} */
const listeners = new Set();
/** @type {Set<() => void>} */
const orphans = new Set();

// The worker failed to load, or the browser ended it: from now on each window has connections of its own.
function fail() {
	port = null;
	for (const each of orphans) each();
	orphans.clear();
}

let unheard = 0; // "here" that the worker has not answered
function tellHere() {
	if (document.hidden || !port) return;
	if (unheard++ < UNHEARD_MAX) port.postMessage({ do: "here" });
	else fail();
}

/**
 * The way to the worker; null: there is none.
 * @param {() => void} failed called once if it turns out that there is none, or no more, while somebody listens
 * @returns {{send(message: object): void, listen(hear: (data: any) => void): () => void} | null}
 */
export function shared(failed) {
	if (port === undefined) {
		port = null;
		try {
			const worker = new SharedWorker(new URL("./shared_worker.js", import.meta.url), { type: "module", name: "vedette" });
			worker.onerror = fail;
			port = worker.port;
			port.onmessage = ({ data }) => {
				unheard = 0;
				for (const hear of listeners) hear(data);
			};
			setInterval(tellHere, HERE_MS);
		} catch {
			return null;
		}
	}
	if (!port) return null;
	return {
		send: message => port?.postMessage(message),
		listen(hear) {
			listeners.add(hear);
			orphans.add(failed);
			return () => {
				listeners.delete(hear);
				orphans.delete(failed);
			};
		}
	};
}

/** The stream of changes as the worker passes it on; to its reader it is an EventSource. */
export class SharedSource extends EventTarget {
	readyState = 0;
	onopen = () => {};
	onerror = () => {};
	/**
	 * @param {NonNullable<ReturnType<typeof shared>>} way
	 * @param {number} since the last change that the reader knows
	 */
	constructor(way, since) {
		super();
		this.way = way;
		this.since = since;
		this.deaf = way.listen(data => this.take(data));
		way.send({ do: "events", since });
	}
	take({ events, change }) {
		if (events === "open") {
			this.readyState = 1;
			this.onopen();
		} else if (events) {
			if (events === "over") this.close();
			this.onerror();
		} else if (change && (!change.id || change.id > this.since)) {
			this.since = Math.max(this.since, change.id);
			this.dispatchEvent(new MessageEvent(change.kind, { data: change.data, lastEventId: String(change.id || this.since) }));
		}
	}
	close() {
		if (this.readyState === EventSource.CLOSED) return;
		this.readyState = EventSource.CLOSED;
		this.deaf();
		this.way.send({ do: "quiet" });
	}
}
