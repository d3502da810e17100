// @ts-check
// Arithmetic of the timeline: days, views, marks and alerts, in UTC seconds. It needs no page.
const SPANS_S = [86400, 6 * 3600, 3600, 600, 120]; // widths of a view, from the whole day to two minutes
const WHOLE_DAY_S = 82800; // a view this wide shows the whole day: the shortest day has 23 hours
const NEWEST_S = 5; // before the end of the recording: a person lands on a picture, not on the edge
const CUT_BEFORE_S = 30; // length of a cut whose end is marked first
const ALERT_NEAR_S = 0.5; // an alert this near is the one on screen, not the next

export const CUT_S_MAX = 900; // the appliance cuts no more than 15 minutes at once

/** @type {(value: number, low: number, high: number) => number} */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** @type {(stretch: Stretch) => number} */
export const width = ([from, to]) => to - from;

/**
 * The day of a moment, midnight to midnight of the viewer: 23 to 25 hours.
 * @param {number} moment
 * @returns {Stretch}
 */
export function dayOf(moment, days = 0) {
	const date = new Date(moment * 1000);
	const at = n => new Date(date.getFullYear(), date.getMonth(), date.getDate() + n).getTime() / 1000;
	return [at(days), at(days + 1)];
}

/** @type {(day: Stretch) => number} */
export const noonOf = day => day[0] + 43200;

/**
 * The date of a day as a date field wants it: 2026-11-24.
 * @param {Stretch} day
 */
export function dateOf(day) {
	const date = new Date(noonOf(day) * 1000);
	return [date.getFullYear(), date.getMonth() + 1, date.getDate()].map(n => String(n).padStart(2, "0")).join("-");
}

/**
 * The day that a date field names; null while it is not filled in.
 * @param {string} date
 */
export function dayNamed(date) {
	const [year, month, day] = date.split("-").map(Number);
	return year ? dayOf(new Date(year, month - 1, day, 12).getTime() / 1000) : null;
}

/**
 * A view of this many seconds around a moment, inside its day.
 * @param {number} t
 * @param {number} span_s
 * @param {Stretch} day
 * @returns {Stretch}
 */
export function centred(t, span_s, day) {
	const wide = Math.min(span_s, width(day));
	const from = clamp(t - wide / 2, day[0], day[1] - wide);
	return [from, from + wide];
}

/**
 * The next closer (way 1) or wider (way -1) view around a moment.
 * @param {number} t
 * @param {Stretch} view
 * @param {Stretch} day
 * @param {number} way
 * @returns {Stretch}
 */
export function zoomed(t, view, day, way) {
	const at = SPANS_S.findIndex(span => span <= 1.1 * width(view));
	const next = centred(t, SPANS_S[clamp(at + way, 0, SPANS_S.length - 1)] ?? width(day), day);
	return width(next) >= WHOLE_DAY_S ? [...day] : next;
}

/**
 * The moment shown to a person who named none: the newest recording of today, or the beginning of a past day's.
 * @param {Span[]} recorded
 * @param {Stretch} day
 * @param {number} now
 */
export function landing(recorded, day, now) {
	const last = recorded.at(-1);
	if (!last) return Math.min(noonOf(day), now);
	return day[1] > now ? last.t_end - NEWEST_S : recorded[0].t_start;
}

/**
 * The first beginning of a recording after a moment; Infinity if there is none.
 * @param {Span[]} recorded
 * @param {number} t
 */
export const nextStart = (recorded, t) => Math.min(...recorded.map(span => span.t_start).filter(start => start > t));

/**
 * The next alert (way 1) or the one before (way -1); alerts are in the order of time.
 * @template {AlertMark} T
 * @param {T[]} alerts
 * @param {number} t
 * @param {number} way
 */
export const neighbour = (alerts, t, way) =>
	way > 0 ? alerts.find(each => each.t_start > t + ALERT_NEAR_S) : alerts.findLast(each => each.t_start < t - ALERT_NEAR_S);

/**
 * A cut whose beginning or end is set to a moment.
 * @param {Cut | null} cut
 * @param {number} t
 * @param {boolean} end
 * @returns {Cut}
 */
export function marked(cut, t, end) {
	const [from, to] = cut ?? [t, null];
	return end ? [from < t ? from : t - CUT_BEFORE_S, t] : [t, to !== null && to > t ? to : null];
}

/**
 * Whether a cut has both ends and is not too long.
 * @param {Cut | null} cut
 * @returns {cut is Stretch}
 */
export const isReady = cut => cut !== null && cut[1] !== null && cut[1] - cut[0] <= CUT_S_MAX;

/**
 * The moment under a pointer.
 * @param {number} x
 * @param {{left: number, width: number}} area
 * @param {Stretch} view
 */
export const momentAt = (x, area, view) => view[0] + clamp((x - area.left) / area.width, 0, 1) * width(view);

/**
 * Seconds between two pictures that a view tells apart: a strip shows about 600 of them.
 * @param {Stretch} view
 */
export const frameStep = view => Math.max(1, width(view) / 600);

/**
 * Seconds that a key moves the needle; undefined if it is another key.
 * @param {string} key
 * @param {boolean} shift
 * @returns {number | undefined}
 */
export function stepOf(key, shift) {
	const step = { ArrowLeft: -10, ArrowRight: 10, PageDown: -600, PageUp: 600 }[key];
	return step && step * (shift ? 6 : 1);
}
