// @ts-check
// Live video: one connection for all cameras of a page, played through Media Source; `currentTime` is camera time.
import { objectsAt, Pace, rateOf, readLive } from "./live_buffer.js";
import { refusalOf } from "./problem.js";
import { shared } from "./shared.js";
import { t } from "./texts.js";
const Source = globalThis.ManagedMediaSource ?? globalThis.MediaSource;
const KEEP_S = 6; // already shown
const QUEUE_MAX = 24e6; // bytes not yet appended
const CODECS = { avc1: "H.264", hvc1: "H.265", hevc: "H.265" };
/** @type {(name: string) => string} for people */
export const codecNamed = name => CODECS[name] ?? name;
const WAIT_MS_MAX = 8000; // until a video that failed is asked for anew: 1 s, and each time twice as long
const WAITS = 60; // so many times as long it is asked for in H.264, then as it is recorded
const playsH265 = Boolean(Source?.isTypeSupported('video/mp4; codecs="hvc1.1.6.L120.90"'));
/** @type {Set<string>} the cameras whose video failed here a while ago */
const failed = new Set();
const wantsH264 = name => !playsH265 || failed.has(name);
/** @type {ReturnType<typeof setTimeout> | undefined} */
let asking;
// For all cameras of the page: they have one connection. Those that play go on.
function askAnew(ms) {
	if (asking) return;
	asking = setTimeout(() => {
		asking = undefined;
		dispatchEvent(new Event("asklive"));
	}, ms);
}

// Plays one camera. shown(at): a frame is on screen; stills(why): no more video.
export class LivePlayer {
	/** @type {ExaminedFrame[]} */
	examined = [];
	/** @type {Uint8Array<ArrayBuffer>[]} */
	queue = [];
	bytes = 0;
	type = "";
	/** @type {MediaSource | null} */
	media = null;
	/** @type {SourceBuffer | null} */
	buffer = null;
	pace = new Pace();
	waitMs = 500;
	/** @type {ReturnType<typeof setTimeout> | undefined} */
	recovery;
	/**
	 * @param {string} name of the camera
	 * @param {HTMLVideoElement} video
	 * @param {(at: number) => void} shown
	 * @param {(why: string) => void} stills
	 */
	constructor(name, video, shown, stills) {
		this.name = name;
		this.video = video;
		this.stills = stills;
		video.muted = video.disableRemotePlayback = true;
		video.addEventListener("waiting", () => this.pace.stalled());
		video.addEventListener("error", () => this.refuse(t("this browser cannot play what the camera sends")));
		const each = (_, frame) => {
			if (this.type) shown(frame.mediaTime);
			video.requestVideoFrameCallback(each);
		};
		video.requestVideoFrameCallback(each);
	}
	begin(type) {
		if (type === this.type) return;
		const name = type.split('"')[1].slice(0, 4);
		if (!Source?.isTypeSupported(type)) {
			const why = t("this browser cannot play {codec}", { codec: codecNamed(name) });
			return wantsH264(this.name) ? this.stop(why) : this.refuse(why); // there is nothing that it plays rather
		}
		this.stop("");
		const media = new Source();
		Object.assign(this, { type, media, bytes: 0, pace: new Pace() });
		const url = URL.createObjectURL(media);
		this.video.src = url;
		media.onsourceopen = () => {
			URL.revokeObjectURL(url);
			if (media !== this.media || this.buffer) return;
			try {
				this.buffer = media.addSourceBuffer(type);
			} catch {
				return this.refuse(t("this browser cannot play what the camera sends"));
			}
			this.buffer.onupdateend = () => this.pump();
			this.pump();
		};
	}
	// Ends the video. The page then asks for it in H.264, and after a while as it is recorded: what failed may have been the
	// browser's decoder, which was started again.
	refuse(why) {
		this.stop(why);
		this.waitMs = Math.min(2 * this.waitMs, WAIT_MS_MAX);
		failed.add(this.name);
		clearTimeout(this.recovery);
		this.recovery = setTimeout(() => {
			failed.delete(this.name);
			askAnew(0);
		}, WAITS * this.waitMs);
		askAnew(this.waitMs);
	}
	take(bytes) {
		if (!this.type) return;
		this.queue.push(bytes);
		this.bytes += bytes.length;
		if (this.bytes > QUEUE_MAX) this.stop(t("this browser is too slow for it"));
		this.pump();
	}
	pump() {
		const { buffer, video } = this;
		if (!buffer || buffer.updating || video.error) return;
		const { buffered } = buffer;
		if (buffered.length) {
			this.follow(buffered.start(buffered.length - 1), buffered.end(buffered.length - 1));
			if (video.currentTime - buffered.start(0) > 2 * KEEP_S) return buffer.remove(buffered.start(0), video.currentTime - KEEP_S);
		}
		const next = this.queue.shift();
		if (!next) return;
		this.bytes -= next.length;
		buffer.appendBuffer(next);
	}
	// Before the beginning of what came there is no picture: the first one is shown as soon as it is there.
	follow(begin, end) {
		const { video } = this;
		const ahead = this.pace.ahead(end, video.currentTime);
		if (ahead > 1 || video.currentTime > end || video.paused) {
			video.currentTime = Math.max(begin, video.currentTime + ahead);
			video.play().catch(() => {});
		} else video.playbackRate = rateOf(ahead);
	}
	objectsAt(at) {
		return objectsAt(this.examined, at);
	}
	stop(why) {
		if (this.type) this.video.removeAttribute("src");
		if (this.type) this.video.load();
		Object.assign(this, { type: "", buffer: null, media: null, queue: [] });
		if (why) this.stills(why);
	}
}

let watches = 0;
const requestFor = (names, when) => ({ names, when, h264: names.filter(wantsH264) });
const textOf = (kind, body) => (kind === "v" ? body : new TextDecoder().decode(body));

// Follows cameras until the returned function is called. `views` has by camera name a `view` (cameras.js): one function for
// each kind of message (live_buffer.js; "v" is video, which stays bytes), and `lost`. Where the browser has a shared worker
// (shared.js), all windows use its one connection; if the worker fails to load, `end` becomes that of a connection of ours.
export function watch(views, when) {
	let end = () => {};
	const way = shared(() => {
		end();
		end = watchAlone(views, when);
	});
	end = way ? watchTogether(way, views, when) : watchAlone(views, when);
	return () => end();
}

// Asks the worker for cameras ({do: "live", key}) or for none ({do: "still", key}). `key` tells our messages from others';
// `deaf` ends listening.
function watchTogether(way, views, when) {
	const names = Object.keys(views);
	const key = `${++watches}`;
	const deaf = way.listen(({ live, name, kind, body, lost, status }) => {
		if (live !== key) return;
		if (lost !== undefined) for (const each of names) views[each].lost(refusalOf(lost, status));
		else views[name][kind]?.(textOf(kind, body));
	});
	const turn = () => way.send(names.length && !document.hidden ? { do: "live", key, ...requestFor(names, when) } : { do: "still", key });
	const events = { visibilitychange: document, pagehide: globalThis, pageshow: globalThis };
	const leave = () => way.send({ do: "still", key });
	const hear = event => (event.type === "pagehide" ? leave() : turn());
	for (const [event, target] of Object.entries(events)) target.addEventListener(event, hear);
	turn();
	return () => {
		for (const [event, target] of Object.entries(events)) target.removeEventListener(event, hear);
		deaf();
		leave();
	};
}

// Holds a connection of its own while the page is visible, and connects again 2 s after it was lost.
function watchAlone(views, when) {
	const names = Object.keys(views);
	let ended = false;
	/** @type {AbortController | null} */
	let stop = null;
	async function run() {
		while (names.length && !ended && !document.hidden) {
			stop = new AbortController();
			const { signal } = stop;
			await readLive(requestFor(names, when), signal, (name, kind, body) => views[name][kind]?.(textOf(kind, body))).catch(error => {
				if (!signal.aborted) for (const name of names) views[name].lost(refusalOf(error.message, error.status));
			});
			if (!signal.aborted) await new Promise(done => setTimeout(done, 2000));
		}
		stop = null;
	}
	const turn = () => (document.hidden ? stop?.abort() : stop || run());
	document.addEventListener("visibilitychange", turn);
	turn();
	return () => {
		ended = true;
		stop?.abort();
	};
}
