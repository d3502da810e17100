// @ts-check
// Times in the viewer's own zone; the absolute time on hover.
import { locale, t } from "./texts.js";
const full = new Intl.DateTimeFormat(locale, { dateStyle: "full", timeStyle: "long" });
const clock = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const short = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY_MS = 86400e3;
const NEAR_DAYS = 300; // a date further away has its year: it could be taken for the next of its name

const midnight = date => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
const daysAgo = date => Math.round((midnight(new Date()) - midnight(date)) / DAY_MS);

function dated(options) {
	const [near, far] = [{}, { year: "numeric" }].map(more => new Intl.DateTimeFormat(locale, { ...options, ...more }));
	return date => (Math.abs(daysAgo(date)) > NEAR_DAYS ? far : near).format(date);
}
const day = dated({ day: "numeric", month: "short" });
const weekday = dated({ weekday: "long", day: "numeric", month: "long" });

function ago(date) {
	const seconds = (Date.now() - date) / 1000;
	if (seconds > -60 && seconds < 45) return t("just now");
	if (seconds > 0 && seconds < 3600) return t("{n} min ago", { n: Math.max(1, Math.round(seconds / 60)) });
	return moment(date, short);
}

function moment(date, style = clock) {
	const days = daysAgo(date);
	if (days === 0) return style.format(date);
	return `${days === 1 ? t("yesterday") : day(date)} ${style.format(date)}`;
}

const recent = date => (Date.now() - date < 3600e3 ? `${moment(date, short)}, ${ago(date)}` : moment(date, short));

const styles = {
	ago,
	recent,
	since: date => moment(date, short),
	moment,
	clock: date => clock.format(date),
	full: date => `${day(date)}, ${clock.format(date)}`
};

export const momentOf = at => moment(new Date(at * 1000));
export const clockOf = moment => clock.format(new Date(moment * 1000));

export function dayOf(moment) {
	const date = new Date(moment * 1000);
	const days = daysAgo(date);
	return days === 0 ? t("Today") : days === 1 ? t("Yesterday") : weekday(date);
}

export function dress(root = document) {
	for (const element of root.querySelectorAll("time[datetime]")) {
		const date = new Date(element.dateTime);
		const text = styles[element.dataset.style](date);
		if (element.textContent !== text) element.textContent = text;
		if (!element.title) element.title = full.format(date);
	}
}
