// @ts-check
// One camera on the stage: its picture of a moment, and its recording, piece by piece in two videos that take turns.
import { converted } from "./converted.js";
import { problemOf } from "./problem.js";
import { t } from "./texts.js";
import { clamp } from "./timeline_view.js";
const PIECE_S = 20;
const FIRST_S = 6; // short, so that it is there soon
const FIRST_CONVERTED_S = 1; // each next one is made while the one before plays, and is twice as long
const PIECE_S_MAX = 600;
const CONVERTED_S_MAX = 120;
const AHEAD = 0.5; // of a piece that is not converted: from here on the next one is fetched
const LEAST_S = 0.3; // of a piece
const OFF_S_MAX = 2; // further off the clock it seeks, nearer it plays faster or slower
const IMAGES_MAX = 150;
/** @type {Map<string, {image: ImageBitmap, at: number}>} */
const images = new Map();

/** @type {(loaded: Loaded) => number} the camera's time of what is on screen */
const positionOf = ({ piece, video }) => piece.t_start + video.currentTime;

export class Pane {
	run = 0; // counts the beginnings of playing: what was asked for in an earlier one is dropped
	rate = 1;
	/** @type {Loaded | null} */
	current = null;
	/** @type {Promise<Loaded | null> | null} */
	next = null;
	loadingSince = 0; // ms; 0: it does not load
	wanted = ""; // the address of the picture to show
	fetching = false;
	convert = false;
	/**
	 * @param {HTMLElement} stage
	 * @param {string} camera
	 * @param {{report(camera: string): TimelineReport | undefined, clock(): number, ready(): void, failed(text: string): void}} hooks
	 */
	constructor(stage, camera, hooks) {
		this.stage = stage;
		this.camera = camera;
		this.hooks = hooks;
		/** @type {HTMLVideoElement[]} */
		this.videos = [...stage.querySelectorAll("video")];
		this.canvas = stage.querySelector("canvas");
		stage.dataset.camera = camera;
		this.stop();
		for (const video of this.videos) {
			video.onended = () => video === this.current?.video && this.turn();
			video.onerror = () => video === this.current?.video && video.src && this.fail(video.error);
		}
	}
	get report() {
		return this.hooks.report(this.camera);
	}
	note(text) {
		const line = this.stage.querySelector(".note");
		if (line.textContent !== text) line.textContent = text;
		line.hidden = !text;
	}
	// -- pictures
	spanAt(moment) {
		return this.report?.recorded.find(span => span.t_start - 1 <= moment && moment <= span.t_end);
	}
	// coarse: pictures nearer than so many seconds are one; small: while it is dragged over.
	show(moment, now, coarse, small) {
		this.stage.dataset.shows = "picture";
		const { report } = this;
		const span = this.spanAt(moment);
		if (!report || !span) {
			this.gap(moment, now);
			return;
		}
		this.note("");
		const at = clamp(Math.round(moment / coarse) * coarse, span.t_start, span.t_end);
		this.wanted = `${report.frame}?t=${at.toFixed(1)}&size=${small ? "small" : "large"}`;
		this.pull();
	}
	gap(moment, now) {
		this.stage.dataset.shows = "picture";
		this.wanted = "";
		const hole = this.report?.missing.find(each => each.t_start <= moment && moment <= (each.t_end ?? now));
		this.blank(hole ? t("Not recorded: {reason}", { reason: hole.reason }) : moment >= now - 1 ? t("This is still to come.") : t("This is not on the disk yet."));
	}
	// A picture of another moment must not stand beside the clock.
	blank(text) {
		this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
		this.note(text);
	}
	// One picture at a time, and always the one wanted last.
	async pull() {
		if (this.fetching) return;
		this.fetching = true;
		try {
			for (let url = ""; url !== this.wanted && this.wanted; ) {
				url = this.wanted;
				const image = await this.fetchImage(url).catch(() => this.misses(url, t("The appliance does not answer.")));
				if (image && this.stage.dataset.shows === "picture" && this.wanted) this.paint(image);
			}
		} finally {
			this.fetching = false;
		}
	}
	misses(url, why) {
		if (url === this.wanted && this.stage.dataset.shows === "picture") this.blank(why);
		return null;
	}
	async fetchImage(url) {
		if (images.has(url)) return images.get(url);
		const answer = await fetch(url);
		if (!answer.ok) return this.misses(url, await problemOf(answer));
		const image = await createImageBitmap(await answer.blob());
		const shown = { image, at: Number(answer.headers.get("X-Frame-Time")) };
		images.set(url, shown);
		const [oldest] = images.keys();
		if (images.size > IMAGES_MAX) {
			images.get(oldest)?.image.close();
			images.delete(oldest);
		}
		return shown;
	}
	paint({ image, at }) {
		[this.canvas.width, this.canvas.height] = [image.width, image.height];
		this.canvas.getContext("2d").drawImage(image, 0, 0);
		this.stage.style.aspectRatio = `${image.width} / ${image.height}`;
		this.canvas.dataset.t = at;
	}
	// -- playing
	// What of the recording is to be played at a moment; undefined: nothing.
	playable(moment) {
		return this.report?.recorded.find(span => span.t_start <= moment + 0.2 && moment + LEAST_S < span.t_end);
	}
	// The camera's time of what is on screen; null: it does not play.
	get position() {
		return this.current && positionOf(this.current);
	}
	get waitsMs() {
		return this.loadingSince ? performance.now() - this.loadingSince : 0;
	}
	stop() {
		this.run++;
		for (const video of this.videos) {
			video.pause();
			if (!video.hasAttribute("src")) continue;
			video.removeAttribute("src");
			video.load();
		}
		this.current = this.next = null;
		this.loadingSince = 0;
	}
	// Keep to the clock. leads: this one is the clock. hold: another one is not ready.
	follow(moment, now, { rate, hold, leads, muted }) {
		this.rate = rate;
		if (this.loadingSince) return;
		if (!this.current) return this.playable(moment) ? this.start(moment) : this.gap(moment, now);
		const { video, piece } = this.current;
		const position = positionOf(this.current);
		const off = position - moment;
		if (Math.abs(off) > OFF_S_MAX * Math.max(1, rate / 2)) {
			this.stop();
			return this.start(moment);
		}
		video.playbackRate = clamp(leads ? rate : rate - off, Math.max(0.1, rate / 2), 16);
		video.muted = muted;
		if (hold && !video.paused) video.pause();
		else if (!hold && video.paused && !video.ended) video.play().catch(error => error.name !== "AbortError" && this.fail(error));
		if (!this.next && position > piece.from + (piece.converted ? 0 : AHEAD) * (piece.to - piece.from)) this.next = this.load(piece.to, 1 - this.current.which);
	}
	async start(moment) {
		await this.begin(this.load(moment, 0, true));
	}
	async turn() {
		if (!this.current) return;
		const { piece, which } = this.current;
		await this.begin(this.next ?? this.load(piece.to, 1 - which));
	}
	/** @param {Promise<Loaded | null>} loading */
	async begin(loading) {
		const run = this.run;
		this.loadingSince = performance.now();
		const loaded = await loading;
		if (run !== this.run) return;
		this.loadingSince = 0;
		this.current = loaded;
		this.next = null;
		if (!loaded) return;
		const behind = this.hooks.clock() - positionOf(loaded);
		if (behind > 0.1 && behind < OFF_S_MAX) loaded.video.currentTime += behind;
		this.note("");
		this.stage.dataset.shows = "ab"[loaded.which];
		this.stage.dataset.converted = `${loaded.piece.converted}`;
		this.hooks.ready();
	}
	/**
	 * A piece in one of the videos, at its first moment; null: there is none.
	 * @param {number} moment
	 * @param {number} which
	 * @param {boolean} [first]
	 * @returns {Promise<Loaded | null>}
	 */
	async load(moment, which, first) {
		const run = this.run;
		try {
			const piece = await this.prepare(moment, first, run);
			if (!piece || run !== this.run) return null;
			const video = this.videos[which];
			video.src = piece.url;
			const heard = new AbortController();
			await new Promise((/** @type {(value?: unknown) => void} */ done, wrong) => {
				video.addEventListener("loadeddata", () => (video.videoWidth ? done() : wrong(new DOMException("", "NotSupportedError"))), heard);
				video.addEventListener("error", () => wrong(video.error), heard);
			}).finally(() => heard.abort());
			video.currentTime = Math.max(0, piece.from - piece.t_start);
			return { video, which, piece };
		} catch (error) {
			if (run === this.run) this.fail(error);
			return null;
		}
	}
	async prepare(moment, first, run) {
		const { report } = this;
		const span = this.playable(moment);
		if (!report || !span) return null;
		const convert = this.convert || (report.codec === "hevc" && !this.videos[0].canPlayType('video/mp4; codecs="hvc1.1.6.L120.90"'));
		const from = Math.max(moment, span.t_start);
		const last = this.current?.piece;
		const growing = first || !last ? FIRST_CONVERTED_S * this.rate : Math.min(PIECE_S * this.rate, 2 * (last.to - last.from));
		const length = convert ? Math.min(CONVERTED_S_MAX, growing) : Math.min(PIECE_S_MAX, (first ? FIRST_S : PIECE_S) * this.rate);
		const to = Math.min(span.t_end, from + length);
		const url = `${report.recording}?from=${from.toFixed(2)}&to=${to.toFixed(2)}${convert ? "&codec=h264" : ""}`;
		const found = await converted(url, text => this.loadingSince && this.note(text), () => run === this.run);
		// A piece that ends early (the stream's format changed) is gone on from, at least a little later.
		return found && { ...found, from, to: found.t_end < to - 2 ? Math.max(found.t_end, from + 1) : to };
	}
	fail(error) {
		const unplayable = error instanceof MediaError || error?.name === "NotSupportedError";
		this.stop();
		if (unplayable && !this.convert) this.convert = true; // asked for again with the next tick
		else this.hooks.failed((!unplayable && error?.message) || t("This browser cannot play this recording. Pictures work here; download a cut of it instead."));
	}
}
