// @ts-check
// The stream of changes, of which all windows share one, and work that changes ask for: neither runs more often than it must.
import { shared, SharedSource } from "./shared.js";
const RETRY_MS = 3000; // after the browser gave up a connection

/**
 * A function that runs this work, at most once at a time; asked again meanwhile, once more `pauseMs` afterwards.
 * It promises a run that begins from now on.
 * @param {() => unknown} work
 * @param {number} pauseMs
 * @param {(error: Error) => void} failed
 * @returns {() => Promise<void>}
 */
export function coalescedWork(work, pauseMs, failed) {
	/** @type {Promise<void> | null} */
	let running = null;
	/** @type {Promise<void> | null} */
	let next = null;
	const run = () => {
		running = Promise.resolve()
			.then(work)
			.catch(failed)
			.then(() => {
				running = null;
			});
		return running;
	};
	const runLater = async before => {
		await before;
		await new Promise(done => setTimeout(done, pauseMs));
		next = null;
		await running;
		await run();
	};
	return () => {
		if (!running) return run();
		next ??= runLater(running);
		return next;
	};
}

/**
 * Rows that wait to be shown, the newest of each id. One that the appliance did not answer for stays, behind the others,
 * and is tried again after RETRY_MS: its change does not come twice. One that it refused is dropped.
 */
export class RowQueue {
	/** @type {Map<string, any>} */
	rows = new Map();
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	timer;
	put(row) {
		this.rows.set(row.id, row);
	}
	/**
	 * Show all that wait. Throws what went wrong with one, after those before it.
	 * @param {(row: any) => Promise<void>} show
	 * @param {() => unknown} repeat called later, where some still wait
	 */
	async drain(show, repeat) {
		while (this.rows.size) {
			const [[id, row]] = this.rows;
			try {
				await show(row);
			} catch (error) {
				const newest = this.rows.get(id);
				this.rows.delete(id);
				if (error.unanswered || newest !== row) this.put(newest);
				clearTimeout(this.timer); // each row that comes meanwhile fails as well, and one repetition is enough
				this.timer = setTimeout(repeat, RETRY_MS);
				throw error;
			}
			if (this.rows.get(id) === row) this.rows.delete(id);
		}
	}
}

/**
 * Follows the stream from a change on. A hidden page lets go of its connection (a browser has six to one host) and
 * resumes from the last change it saw.
 */
export class EventFeed {
	/** @type {EventSource | SharedSource | null} */
	source = null;
	/**
	 * @param {number} rev the last change that the page knows
	 * @param {Record<string, (row: any) => void>} handlers by kind of change
	 * @param {(state: string) => void} light
	 */
	constructor(rev, handlers, light) {
		this.rev = rev;
		this.handlers = handlers;
		this.light = light;
	}
	listen() {
		document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
		addEventListener("pagehide", () => this.close());
		addEventListener("pageshow", () => this.openIfSeen());
		this.openIfSeen();
	}
	openIfSeen() {
		if (!document.hidden) this.open();
	}
	open() {
		if (this.source) return;
		const way = shared(() => this.anew());
		const source = way ? new SharedSource(way, this.rev) : new EventSource(`/api/v1/stream?since=${this.rev}`);
		this.source = source;
		source.onopen = () => this.light("live");
		source.onerror = () => {
			this.light("lost");
			if (this.source?.readyState !== EventSource.CLOSED) return; // the browser tries by itself
			this.source = null;
			setTimeout(() => this.openIfSeen(), RETRY_MS);
		};
		for (const [kind, handle] of Object.entries(this.handlers))
			source.addEventListener(kind, (/** @type {any} */ event) => {
				this.rev = Number(event.lastEventId) || this.rev;
				handle(JSON.parse(event.data));
			});
	}
	anew() {
		this.close();
		this.openIfSeen();
	}
	close() {
		this.source?.close();
		this.source = null;
	}
}
