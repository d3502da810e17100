// Live video: one connection for all cameras of a page, played through Media Source; `currentTime` is camera time.
import { t } from "./texts.js";
const Source = globalThis.ManagedMediaSource ?? globalThis.MediaSource;
const KEEP = 6; // seconds already shown
const QUEUE_MAX = 24e6; // bytes not yet appended
const CODECS = { avc1: "H.264", hvc1: "H.265" };

// Plays one camera. shown(at): a frame is on screen; stills(why): no more video.
export class LivePlayer {
	looks = [];
	constructor(video, shown, stills) {
		Object.assign(this, { video, stills });
		video.muted = video.disableRemotePlayback = true;
		video.addEventListener("waiting", () => (this.hand = 0.6));
		video.addEventListener("error", () => this.stop(t("this browser cannot play what the camera sends")));
		const each = (_, frame) => {
			if (this.type) shown(frame.mediaTime);
			video.requestVideoFrameCallback(each);
		};
		video.requestVideoFrameCallback(each);
	}
	begin(type) {
		if (type === this.type) return;
		const name = type.split('"')[1].slice(0, 4);
		const playable = Source?.isTypeSupported(type);
		this.stop(playable ? "" : t("this browser cannot play {codec}", { codec: CODECS[name] ?? name }));
		if (!playable) return;
		const media = new Source();
		Object.assign(this, { type, media, bytes: 0, hand: 0.25, steps: [0.5], end: 0 });
		this.video.src = URL.createObjectURL(media);
		media.onsourceopen = () => {
			if (media !== this.media || this.buffer) return;
			this.buffer = media.addSourceBuffer(type);
			this.buffer.onupdateend = () => this.pump();
			this.pump();
		};
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
			this.follow(buffered.end(buffered.length - 1));
			if (video.currentTime - buffered.start(0) > 2 * KEEP) return buffer.remove(buffered.start(0), video.currentTime - KEEP);
		}
		const next = this.queue.shift();
		if (!next) return;
		this.bytes -= next.length;
		buffer.appendBuffer(next);
	}
	// Stay as far behind the end as pieces are long, and a little.
	follow(end) {
		const { video } = this;
		if (end !== this.end) {
			if (this.end) this.steps = [...this.steps, Math.min(2, Math.abs(end - this.end))].slice(-6);
			this.end = end;
		}
		this.hand = Math.max(0.25, this.hand - 0.005);
		const ahead = end - video.currentTime - Math.max(...this.steps) - this.hand;
		if (ahead > 1 || video.currentTime > end || video.paused) {
			video.currentTime += ahead;
			video.play().catch(() => {});
		} else video.playbackRate = ahead > 0.15 ? 1.08 : ahead < -0.3 ? 0.96 : 1;
	}
	// Between the frames that were examined before and after `at`.
	boxes(at) {
		const next = this.looks.find(each => each.t > at + 0.02);
		const last = this.looks.findLast(each => each.t <= at + 0.02);
		if (!last || at - last.t > 1) return [];
		const share = next && next.t - last.t < 1 ? (at - last.t) / (next.t - last.t) : 0;
		return last.objects.map(object => {
			const then = next?.objects.find(each => each.track === object.track) ?? object;
			return { ...object, box: object.box.map((side, i) => side + share * (then.box[i] - side)) };
		});
	}
	stop(why) {
		if (this.type) this.video.removeAttribute("src");
		if (this.type) this.video.load();
		Object.assign(this, { type: "", buffer: null, media: null, queue: [] });
		if (why) this.stills(why);
	}
}

// Follows cameras: `views` by name, see cameras.js. Returns how to end it.
export function watch(views, when) {
	const names = Object.keys(views);
	const query = new URLSearchParams([...names.map(name => ["camera", name]), ["when", when], ["stream", when === "active" ? "sub" : "main"]]);
	let ended = false;
	let stop = null;
	async function read(signal) {
		const answer = await fetch(`/api/v1/live?${query}`, { signal });
		if (!answer.ok) throw new Error((await answer.json()).detail);
		const reader = answer.body.getReader();
		let data = new Uint8Array();
		for (;;) {
			const { value, done } = await reader.read();
			if (done) return;
			const both = new Uint8Array(data.length + value.length);
			both.set(data);
			both.set(value, data.length);
			let at = 0;
			for (let end; at + 6 <= both.length; at = end) {
				end = at + 6 + new DataView(both.buffer).getUint32(at + 2);
				if (end > both.length) break;
				const [kind, body] = [String.fromCharCode(both[at]), both.slice(at + 6, end)];
				views[names[both[at + 1]]][kind]?.(kind === "v" ? body : new TextDecoder().decode(body));
			}
			data = both.slice(at);
		}
	}
	async function run() {
		while (names.length && !ended && !document.hidden) {
			stop = new AbortController();
			const { signal } = stop;
			await read(signal).catch(error => signal.aborted || names.forEach(name => views[name].lost(error.message)));
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
