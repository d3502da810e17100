// @ts-check
// Several cards chosen by mouse, touch or keys, and one thing done with all of them.
import { by, light, post, say } from "./page.js";
import { tn } from "./texts.js";
export const BATCH = 100; // as many as one request may change
const chosen = new Set();
const bar = by("bulk");
const cards = () => [...document.querySelectorAll("#cards .card")];
let anchor = null; // where a range begins

export const some = () => chosen.size > 0;

// A card that was drawn anew is still chosen.
export function mark(card) {
	if (!bar) return;
	card.querySelector(".pick input").checked = chosen.has(card.dataset.id);
	card.classList.toggle("chosen", chosen.has(card.dataset.id));
}

function show() {
	for (const card of cards()) mark(card);
	bar.hidden = !chosen.size;
	by("bulk-count").textContent = tn("{n} chosen", "{n} chosen", chosen.size);
}

function set(card, wanted) {
	if (wanted) chosen.add(card.dataset.id);
	else chosen.delete(card.dataset.id);
}

// With `range`, also all between this card and the one chosen before it.
export function choose(card, range = false, wanted = !chosen.has(card.dataset.id)) {
	if (!bar) return; // who may only look
	const all = cards();
	const from = range ? all.findIndex(each => each.dataset.id === anchor) : -1;
	const to = all.indexOf(card);
	if (from < 0) set(card, wanted);
	else for (const each of all.slice(Math.min(from, to), Math.max(from, to) + 1)) set(each, true);
	anchor = card.dataset.id;
	show();
}

export function none() {
	if (!chosen.size) return false;
	chosen.clear();
	anchor = null;
	show();
	return true;
}

// Send the chosen ones in batches; `took` gets each alert as it now is.
export async function send(url, body, words, took) {
	const ids = [...chosen];
	for (const button of bar.querySelectorAll("button")) button.disabled = true;
	try {
		for (let at = 0; at < ids.length; at += BATCH) {
			const answer = await post(url, { ...body, ids: ids.slice(at, at + BATCH) });
			for (const alert of answer.alerts) {
				chosen.delete(alert.id);
				took(alert);
			}
			for (const id of answer.missing) chosen.delete(id);
		}
		say(`${ids.length} ${words}`);
	} catch (error) {
		light("lost", error.message);
		say(error.message);
	} finally {
		for (const button of bar.querySelectorAll("button")) button.disabled = false;
		show();
	}
}

by("cards").addEventListener("click", event => {
	const box = event.target.closest(".pick input");
	if (box) choose(box.closest(".card"), event.shiftKey, box.checked);
});
by("bulk-none")?.addEventListener("click", none);
