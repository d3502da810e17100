// @ts-check
// The parts of the live player (live.js) that need no browser, so node can test them: splits the byte stream of
// /api/v1/live into messages, computes the delay to play with, and interpolates boxes between examined frames.
const HEAD_BYTES = 6; // kind, camera, length (32 bits, big-endian): docs/dashboard.md
const NEAR_S = 0.02; // a frame on screen and an examined one this near are the same
const STALE_S = 1; // boxes older than this are not shown, and none is moved across a longer time
const STEPS_KEPT = 6; // fragments whose length counts for how far behind the buffer's end to play
const STEP_S_MAX = 2; // a longer fragment counts as this long
const MARGIN_S = 0.25; // played this far behind the end, beyond the length of a fragment
const MARGIN_LOST_S = 0.005; // by which the margin shrinks with each fragment
const STALL_MARGIN_S = 0.6; // after the video had nothing to play

/** Collects bytes as they come and yields whole messages. */
export class MessageReader {
	data = new Uint8Array();
	/**
	 * @param {Uint8Array} bytes
	 * @returns {Generator<{kind: string, camera: number, body: Uint8Array}>}
	 */
	*read(bytes) {
		const both = new Uint8Array(this.data.length + bytes.length);
		both.set(this.data);
		both.set(bytes, this.data.length);
		let at = 0;
		for (let end; at + HEAD_BYTES <= both.length; at = end) {
			end = at + HEAD_BYTES + new DataView(both.buffer).getUint32(at + 2);
			if (end > both.length) break;
			yield { kind: String.fromCharCode(both[at]), camera: both[at + 1], body: both.slice(at + HEAD_BYTES, end) };
		}
		this.data = both.slice(at);
	}
}

/**
 * @typedef {object} LiveRequest
 * @property {string[]} names of the cameras
 * @property {string} when `always`: the main streams; `active`: the second ones
 * @property {string[]} h264 names of those of which nothing else is played, see docs/http-api.md
 */

/**
 * Follows cameras over one connection until it ends.
 * @param {LiveRequest} asked
 * @param {AbortSignal} signal
 * @param {(name: string, kind: string, body: Uint8Array) => void} onMessage called for each message
 * @param {() => void} [onBytes] called whenever bytes have come
 * @throws {Error & {status?: number}} why the appliance refuses; without words where it gave none (problem.js)
 */
export async function readLive({ names, when, h264 }, signal, onMessage, onBytes) {
	const stream = when === "active" ? "sub" : "main";
	const cameras = Object.entries({ camera: names, h264 }).flatMap(([key, each]) => each.map(name => [key, name]));
	const query = new URLSearchParams([...cameras, ...Object.entries({ when, stream })]);
	const answer = await fetch(`/api/v1/live?${query}`, { signal });
	if (!answer.ok) throw Object.assign(new Error((await answer.json().catch(() => ({}))).detail ?? ""), { status: answer.status });
	if (!answer.body) return;
	const reader = answer.body.getReader();
	const messages = new MessageReader();
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		onBytes?.();
		for (const { kind, camera, body } of messages.read(value)) onMessage(names[camera], kind, body);
	}
}

/** Keeps the position behind the end of the buffer by the length of the longest recent fragment and a margin. */
export class Pace {
	margin = MARGIN_S;
	steps = [0.5];
	end = 0;
	stalled() {
		this.margin = STALL_MARGIN_S;
	}
	/**
	 * How many seconds to go on from a position to be where playing belongs; negative: back.
	 * @param {number} end of the buffer, s
	 * @param {number} position
	 */
	ahead(end, position) {
		if (end !== this.end) {
			if (this.end) this.steps = [...this.steps, Math.min(STEP_S_MAX, Math.abs(end - this.end))].slice(-STEPS_KEPT);
			this.end = end;
		}
		this.margin = Math.max(MARGIN_S, this.margin - MARGIN_LOST_S);
		return end - position - Math.max(...this.steps) - this.margin;
	}
}

/** @type {(ahead: number) => number} how fast to play: a little faster or slower, unheard and hardly seen */
export const rateOf = ahead => (ahead > 0.15 ? 1.08 : ahead < -0.3 ? 0.96 : 1);

/**
 * The objects at a moment, moved between the frames that were examined before and after it.
 * @param {ExaminedFrame[]} frames in the order of time
 * @param {number} at
 * @returns {FoundObject[]}
 */
export function objectsAt(frames, at) {
	const next = frames.find(each => each.t > at + NEAR_S);
	const last = frames.findLast(each => each.t <= at + NEAR_S);
	if (!last || at - last.t > STALE_S) return [];
	const share = next && next.t - last.t < STALE_S ? (at - last.t) / (next.t - last.t) : 0;
	return last.objects.map(object => {
		const then = next?.objects.find(each => each.track === object.track) ?? object;
		return { ...object, box: /** @type {Box} */ (object.box.map((side, i) => side + share * (then.box[i] - side))) };
	});
}
