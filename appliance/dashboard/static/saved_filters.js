// @ts-check
// Filters of the list of alerts that a person keeps under a name, in this browser.
import { by, made } from "./page.js";
import { store, stored } from "./stored.js";
import { t } from "./texts.js";
const KEY = "filters";
const KEPT_MAX = 20; // a menu that still fits on a phone
/** @type {() => {name: string, query: string}[]} */
const kept = () => stored(KEY, []);

function show() {
	const list = by("saved-list");
	list.replaceChildren(
		...kept().map(({ name, query }) => {
			const row = made("li");
			const link = made("a", { href: `/?${query}`, textContent: name });
			if (location.search === `?${query}`) link.setAttribute("aria-current", "page");
			row.append(link, made("button", { type: "button", className: "plain", textContent: t("Remove"), onclick: () => keep(name, null) }));
			return row;
		})
	);
	by("saved-none").hidden = kept().length > 0;
	by("saved-form").hidden = location.search.length < 2;
}

// query null: forget it.
function keep(name, query) {
	const others = kept().filter(each => each.name !== name);
	store(KEY, (query === null ? others : [...others, { name, query }]).slice(-KEPT_MAX));
	show();
}

by("saved-form").addEventListener("submit", event => {
	event.preventDefault();
	const form = event.target;
	const name = form.elements.name.value.trim();
	if (name) keep(name, location.search.slice(1));
	form.reset();
});
show();
