// @ts-check
// The live list: cards arrive, change in place, and are reviewed from the keyboard.
import { RowQueue } from "./event_feed.js";
import { by, coalesced, follow, keys, light, made, post, prepare, reload, review, say, swap } from "./page.js";
import { t, tn } from "./texts.js";
import { BATCH, choose, mark, none, send, some } from "./chosen.js";
import "./saved_filters.js";
import { preview } from "./preview.js";
import { dayOf } from "./time.js";
const CARDS_MAX = 400; // a tab left open for weeks stays small; older ones are behind "Older alerts"
const list = by("cards");
const fresh = by("fresh");
const live = "live" in list.dataset;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const waiting = new Map();
const cards = () => [...list.querySelectorAll(".card")];
const items = () => [...list.querySelectorAll(".card, .fault")];
const cardOf = id => by(`a-${id}`);
const newerThan = (a, b) => Number(a.dataset.t) - Number(b.dataset.t) || (a.dataset.id > b.dataset.id ? 1 : -1);

function markDays() {
	let last = "";
	for (const item of [...list.children]) {
		if (item.matches(".day")) {
			item.remove();
			continue;
		}
		const name = dayOf(Number(item.dataset.t));
		if (name !== last) item.before(made("li", { className: "day", textContent: name }));
		last = name;
	}
}

async function fetchCard(id, what = "alerts") {
	const text = await post(`/fragments/${what}/${encodeURIComponent(id)}${location.search}`, undefined, "GET", "text");
	if (!text) return null;
	const holder = made("template", { innerHTML: text });
	prepare(holder.content);
	const found = holder.content.querySelector(".card, .fault");
	if (found.matches(".card")) mark(found);
	return found;
}

function place(card) {
	by("empty").hidden = true;
	const below = items().find(other => newerThan(card, other) > 0);
	if (below) below.before(card);
	else list.append(card);
}

// The cards below glide to their new places instead of jumping there.
function glide(move) {
	const old = new Map(items().filter(card => card.getBoundingClientRect().top < innerHeight).map(card => [card, [card.offsetLeft, card.offsetTop]]));
	move();
	if (still.matches) return;
	for (const [card, [left, top]] of old) {
		const way = [left - card.offsetLeft, top - card.offsetTop];
		if (way.some(Boolean)) card.animate({ translate: [`${way.join("px ")}px`, "0 0"] }, { duration: 350, easing: "cubic-bezier(.2, .7, .2, 1)" });
	}
}

function arrive(card) {
	card.classList.add("arrives");
	glide(() => {
		place(card);
		if (scrollY < 200) forgetOldest();
		markDays();
	});
}

// What goes is behind "Older alerts" again, which begins after the last one that stays.
function forgetOldest() {
	const gone = items().slice(CARDS_MAX);
	if (!gone.length) return;
	for (const old of gone) old.remove();
	const { t: start, id } = items()[CARDS_MAX - 1].dataset;
	const query = new URLSearchParams(location.search);
	query.set("before", `${start}~${id}`);
	if (!by("older")) {
		const line = made("p", { className: "more" });
		line.append(made("a", { id: "older", textContent: t("Older alerts") }));
		by("empty").after(line);
	}
	by("older").href = `/?${query}`;
	watchEnd();
}

async function changed(alert) {
	const old = cardOf(alert.id);
	if (old) {
		if (Number(old.dataset.rev) >= alert.rev) return;
		const card = await fetchCard(alert.id);
		if (!card) {
			// It left the list. What a person did to it stands until the next visit, so that it can be undone.
			const withdrawn = (alert.standing === "withdrawn" || alert.standing === "doubted") && !alert.review;
			if (alert.deleted_t !== null || (withdrawn && !old.contains(document.activeElement))) {
				glide(() => {
					old.remove();
					markDays();
				});
				by("empty").hidden = items().length > 0;
			}
			return;
		}
		const focused = old.contains(document.activeElement);
		old.replaceWith(card);
		if (focused) card.querySelector(".open").focus({ preventScroll: true });
		return;
	}
	if (!live) return;
	const card = await fetchCard(alert.id);
	const known = waiting.delete(alert.id);
	const last = items().at(-1);
	if (!card || cardOf(alert.id) || (last && by("older") && newerThan(card, last) < 0)) return tellWaiting();
	if (!known) say(`${t("New alert")}: ${alert.title}, ${alert.camera}`);
	if (known || scrollY > 160) hold(card);
	else arrive(card);
}

// A health event comes quietly: it takes its place in the list, or changes where it stands.
async function changedHealth(event) {
	const old = by(`h-${event.id}`);
	if (old ? Number(old.dataset.rev) >= event.rev : !live) return;
	const line = await fetchCard(event.id, "health");
	if (!line) return;
	if (old) {
		const focused = old.contains(document.activeElement);
		old.replaceWith(line);
		if (focused) line.querySelector("a, button")?.focus({ preventScroll: true });
		return;
	}
	const last = items().at(-1);
	if (last && by("older") && newerThan(line, last) < 0) return;
	say(`${event.title}, ${event.camera || t("the appliance")}`);
	arrive(line);
}

// Someone is reading further down: never move the page under their eyes.
function hold(card) {
	waiting.set(card.dataset.id, card);
	tellWaiting();
}

function tellWaiting() {
	fresh.textContent = tn("{n} new alert", "{n} new alerts", waiting.size);
	fresh.hidden = !waiting.size;
}

function release() {
	for (const card of waiting.values()) arrive(card);
	waiting.clear();
	tellWaiting();
}

const queue = new RowQueue();
const work = coalesced(async () => {
	await queue.drain(row => ("learnable" in row ? changedHealth(row) : changed(row)), work);
	refreshSide(); // after the card, which it would be in the way of
});

const refreshSide = coalesced(async () => {
	const page = await reload("/");
	swap(page, "#headline, #states, #to-review, #arming:not([open])");
	document.title = page.title;
	soon();
}, 1000);
const soon = () => "soon" in by("to-review").dataset && setTimeout(refreshSide, 2000); // counted again by then

async function older() {
	const link = by("older");
	if (!link || link.dataset.busy) return;
	link.dataset.busy = "yes";
	try {
		const page = await reload(link.href);
		for (const item of page.querySelectorAll(".card, .fault")) if (!by(item.id)) list.append(item);
		markDays();
		const next = page.getElementById("older");
		if (next) link.href = next.getAttribute("href");
		else link.closest(".more").remove();
	} catch (error) {
		light("lost", error.message);
		return;
	} finally {
		delete link.dataset.busy;
	}
	watchEnd();
}

const end = new IntersectionObserver(seen => seen.some(each => each.isIntersecting) && older(), { rootMargin: "600px" });

// An observer speaks when its element comes into sight: asked anew, it says where it is.
function watchEnd() {
	const link = by("older");
	end.disconnect();
	if (link) end.observe(link);
}

function move(step) {
	const all = cards();
	const at = all.findIndex(card => card.contains(document.activeElement));
	const to = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + step))];
	to?.querySelector(".open").focus();
	to?.scrollIntoView({ block: "nearest" });
	if (at + step >= all.length - 3) older();
}

const WORDS = { reviewed: t("marked reviewed"), false_alarm: t("marked false alarm"), "": t("reviews taken back") };

function took(row) {
	queue.put(row);
	work();
}

// What was done last, and how it is taken back.
let takeBack = async () => {};

function offerUndo(text, act) {
	const bar = by("undo");
	if (!bar) return;
	takeBack = act;
	bar.querySelector("span").textContent = text;
	bar.hidden = false;
}

async function undo() {
	by("undo").hidden = true;
	try {
		await takeBack();
	} catch (error) {
		light("lost", error.message);
	}
}

async function inBatches(url, ids, body, got = took) {
	for (let at = 0; at < ids.length; at += BATCH) {
		const answer = await post(url, { ...body, ids: ids.slice(at, at + BATCH) });
		for (const alert of answer.alerts) got(alert);
	}
}

// before: the reviews that there were, by alert. Each comes back, also where they differed.
const undoReviews = before => async () => {
	for (const review of new Set(before.values()))
		await inBatches("/api/v1/alerts/review", [...before.keys()].filter(id => before.get(id) === review), { review: review || null });
	say(t("Review taken back"));
};

const reviewOf = id => cardOf(id)?.dataset.review ?? "";

async function reviewChosen(value) {
	const before = new Map();
	const words = WORDS[value || ""];
	await send("/api/v1/alerts/review", { review: value || null }, words, alert => {
		before.set(alert.id, reviewOf(alert.id));
		took(alert);
	});
	if (before.size) offerUndo(`${before.size} ${words}.`, undoReviews(before));
}

async function reviewOne(id, value) {
	const before = new Map([[id, reviewOf(id)]]);
	try {
		took(await review(id, value));
		const words = WORDS[value || ""];
		offerUndo(`${words[0].toUpperCase()}${words.slice(1)}.`, undoReviews(before));
	} catch (error) {
		light("lost", error.message);
	}
}

async function removeChosen(form) {
	const deleted = [];
	await send("/api/v1/alerts/delete", { reason: form.elements.reason.value.trim() }, t("deleted"), alert => {
		deleted.push(alert.id);
		took(alert);
	});
	form.reset();
	form.closest("details").open = false;
	if (!deleted.length) return;
	offerUndo(tn("{n} deleted.", "{n} deleted.", deleted.length), async () => {
		await inBatches("/api/v1/alerts/restore", deleted, {}, () => {});
		location.reload();
	});
	by("undo").querySelector("button").focus();
}

function chooseHere(range) {
	const card = document.activeElement?.closest(".card");
	if (!card) return false;
	choose(card, range);
}

function judge(value) {
	if (some()) return void reviewChosen(value);
	const card = document.activeElement?.closest(".card");
	if (!card?.querySelector(".pick")) return false; // who may only look
	reviewOne(card.dataset.id, value);
}

markDays();
fresh.addEventListener("click", () => {
	release();
	scrollTo({ top: 0 });
});
addEventListener("scroll", () => waiting.size && scrollY < 80 && release(), { passive: true });
const filters = document.querySelector(".filters");
filters.addEventListener("change", ({ target }) => {
	if (target.type === "search" || (target.type === "date" && target.value && target.value < "2000")) return; // still typing
	filters.requestSubmit();
});
filters.addEventListener("submit", () => {
	for (const field of filters.elements) if (field.name && !field.value.trim()) field.disabled = true; // a short link
});
addEventListener("pageshow", () => {
	for (const field of filters.elements) field.disabled = false;
});
by("bulk")?.addEventListener("click", event => {
	const button = event.target.closest("[data-bulk]");
	if (button) reviewChosen(button.dataset.bulk);
});
by("bulk-delete-form")?.addEventListener("submit", event => {
	event.preventDefault();
	removeChosen(event.target);
});
document.querySelector("#undo button")?.addEventListener("click", undo);
watchEnd();
keys({
	j: () => move(1),
	k: () => move(-1),
	r: () => judge("reviewed"),
	f: () => judge("false_alarm"),
	u: () => judge(null),
	x: () => chooseHere(false),
	X: () => chooseHere(true),
	p: () => preview(document.activeElement?.closest(".card")),
	Escape: none,
	"/": () => filters.elements.text.focus()
});
setInterval(refreshSide, 30000); // hidden too: the count in the tab's title is what a hidden page is for
follow({ alert: took, health: took, camera: refreshSide });
soon();
