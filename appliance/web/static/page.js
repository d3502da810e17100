// @ts-check
// What every page does: local times, the event stream, the connection light, signing out.
import { coalescedWork, EventFeed } from "./event_feed.js";
import { refusalOf } from "./problem.js";
import { dress } from "./time.js";
import { t } from "./texts.js";
/** @type {(id: string) => any} the element of this id, which the template of the page promises */
export const by = id => document.getElementById(id);
/** @type {(tag: string, values?: object) => any} */
export const made = (tag, values) => Object.assign(document.createElement(tag), values);

const CLOSER_MAX = 2;

// A session that is over: the password is asked for in place, and what the page holds stays. The form is the sign-in page's.
/** @type {Promise<void> | undefined} */
let signing;
let declined = false; // then no refresh asks again by itself, only what a person does
const signedIn = () => (signing ??= signIn().finally(() => (signing = undefined)));
async function signIn() {
	const page = await (await fetch("/login", { headers: { Accept: "text/html" } })).text();
	const form = new DOMParser().parseFromString(page, "text/html").querySelector("form");
	const dialog = document.body.appendChild(made("dialog", { className: "signin" }));
	for (const each of form.querySelectorAll("[id]")) each.id = `signin-${each.id}`;
	for (const each of form.querySelectorAll("label")) each.htmlFor = `signin-${each.htmlFor}`;
	form.querySelector("h1").after(made("p", { textContent: t("Your session is over. Sign in again: what you changed here stays.") }));
	dialog.append(document.adoptNode(form));
	dialog.showModal();
	await new Promise((resolve, reject) => {
		dialog.addEventListener("cancel", () => {
			declined = true;
			reject(new Error(t("Sign in first.")));
		});
		form.addEventListener("submit", async event => {
			event.preventDefault();
			const wrong = form.querySelector(".wrong");
			try {
				resolve(await post("/login", Object.fromEntries(new FormData(form))));
				declined = false;
			} catch ({ message, type }) {
				wrong.textContent = message;
				if (type === "urn:vedette:code-wanted") for (const each of form.querySelectorAll("#signin-code, [for=signin-code]")) each.hidden = false;
			}
		});
	}).finally(() => dialog.remove());
}

export async function post(url, body, method = "POST", as = "json") {
	const answer = await fetch(url, {
		method,
		headers: { "Content-Type": "application/json" },
		body: body && JSON.stringify(body)
	}).catch(() => {
		throw Object.assign(new Error(t("The appliance does not answer.")), { unanswered: true });
	});
	if (answer.ok) return answer[as]();
	if (answer.status === 401 && !["/login", "/setup"].includes(url)) {
		await signedIn();
		return post(url, body, method, as);
	}
	const problem = await answer.json().catch(() => ({}));
	throw Object.assign(new Error(refusalOf(problem.detail, answer.status)), { type: problem.type, status: answer.status, unanswered: answer.status >= 500 });
}

export function say(text) {
	by("notice").textContent = text;
}

export const get = url => post(url, undefined, "GET");

// A picture in a list is drawn closer to whom it is about, who would else be a few pixels high.
function closer(image) {
	const [x1, y1, x2, y2] = image.dataset.box.split(" ").map(Number);
	const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
	const reach = (c, size) => (2 * Math.min(c, 1 - c)) / Math.max(size, 0.01); // beyond, the frame would cut the box
	const zoom = Math.min(CLOSER_MAX, reach(x, x2 - x1), reach(y, y2 - y1));
	const place = `${100 * x}% ${100 * y}%`;
	const scale = Math.max(1, zoom);
	Object.assign(image.style, { objectPosition: place, transformOrigin: place, scale });
	// Its box over it. It lies in a shadow, where no comparison of two pages finds it.
	const mark = made("span", { className: "mark" });
	const box = made("div", {});
	Object.assign(box.style, { position: "absolute", border: "2px solid #fff", borderRadius: "4px", boxShadow: "0 0 0 1px rgb(0 0 0 / 55%)" });
	mark.attachShadow({ mode: "open" }).append(box);
	const lay = () => {
		const { offsetWidth: width, offsetHeight: height, naturalWidth, naturalHeight } = image;
		if (!width || !naturalWidth) return;
		const covers = scale * Math.max(width / naturalWidth, height / naturalHeight); // the picture covers its frame
		const left = x * width + (x1 - x) * covers * naturalWidth;
		const top = y * height + (y1 - y) * covers * naturalHeight;
		const size = { width: `${(x2 - x1) * covers * naturalWidth}px`, height: `${(y2 - y1) * covers * naturalHeight}px` };
		Object.assign(box.style, { left: `${left}px`, top: `${top}px`, ...size });
	};
	image.after(mark);
	image.addEventListener("load", lay);
	new ResizeObserver(lay).observe(image);
}

// What the server cannot know: the viewer's time zone, and how its own style rules let a script place a picture.
export function prepare(root = document) {
	dress(root);
	for (const image of root.querySelectorAll(".shot img[data-box]")) closer(image);
}

// The same page again, as the appliance would show it now.
let asks = 0;
export async function reload(url = location.href) {
	const ask = ++asks;
	const answer = await fetch(url, { headers: { Accept: "text/html" } });
	if (new URL(answer.url).pathname === "/login") {
		if (declined) throw new Error(t("Sign in first."));
		await signedIn();
		return reload(url);
	}
	if (!answer.ok) throw new Error(refusalOf("", answer.status));
	const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
	prepare(fresh);
	return Object.assign(fresh, { ask });
}

// Replace the parts of this page that match `selector` by those of the fresh one with the same key, unless one that was
// asked for later stands here. What has the focus keeps it, what is scrolled stays there.
let shown = 0;
const key = part => part.id || part.dataset.swap;
export function swap(fresh, selector) {
	if (fresh.ask < shown) return;
	shown = fresh.ask;
	const parts = new Map([...fresh.querySelectorAll(selector)].map(part => [key(part), part]));
	for (const old of document.querySelectorAll(selector)) {
		const part = parts.get(key(old));
		if (!part || old.isEqualNode(part)) continue;
		const held = document.activeElement;
		const { scrollTop } = old;
		const next = old.contains(held) && [...part.querySelectorAll("*")].find(each => each.isEqualNode(held));
		old.replaceWith(part);
		part.scrollTop = scrollTop;
		if (next) next.focus({ preventScroll: true });
	}
}

export const renew = async () => swap(await reload(), "[data-swap]");

export async function review(id, value) {
	const alert = await post(`/api/v1/alerts/${encodeURIComponent(id)}/review`, { review: value });
	say(value === "reviewed" ? t("Marked reviewed") : value === "false_alarm" ? t("Marked false alarm") : t("Review taken back"));
	return alert;
}

/**
 * At most one run of this work at a time; asked again meanwhile, once more `pauseMs` afterwards.
 * @param {() => unknown} work
 */
export function coalesced(work, pauseMs = 0) {
	let failed = false;
	const tried = async () => {
		await work();
		if (failed) light(streamed); // what was said of the failure is over
		failed = false;
	};
	return coalescedWork(tried, pauseMs, error => {
		failed = true;
		light("lost", error.message);
	});
}

/**
 * Do something that a person asked for. A button takes no second press meanwhile; what is wrong stands where the page says.
 * @template T
 * @param {any} button null if there is none to hold
 * @param {() => Promise<T>} work
 * @returns {Promise<T | undefined>}
 */
export async function attempt(button, work, wrong = by("wrong")) {
	if (button) button.disabled = true;
	wrong.textContent = "";
	try {
		return await work();
	} catch (error) {
		wrong.textContent = error.message;
		wrong.scrollIntoView({ block: "nearest" });
	} finally {
		if (button) button.disabled = false;
	}
}

export function onSubmit(id, work) {
	document.addEventListener("submit", event => {
		const form = event.target;
		if (form.id !== id) return;
		event.preventDefault();
		attempt(form.querySelector("[type=submit]"), () => work(form), form.querySelector(".wrong"));
	});
}

const WORDS = { live: t("Live"), connecting: t("Connecting to the appliance"), lost: t("The appliance does not answer; trying again") };

let streamed = "connecting"; // how the stream of changes does
export function light(state, detail = "") {
	const pulse = by("pulse");
	if (!pulse) return;
	pulse.dataset.state = state;
	pulse.title = detail || WORDS[state];
	pulse.setAttribute("aria-label", WORDS[state]);
}

// "Seen" beside a health event, wherever it stands; the stream brings what came of it.
document.addEventListener("click", async event => {
	const button = event.target.closest("button.seen");
	if (!button) return;
	button.disabled = true;
	try {
		await post(button.dataset.url, {});
	} catch (error) {
		button.disabled = false;
		light("lost", error.message);
	}
});

// What is wrong now, on every page: it says so within a second, and keeps open what was opened.
const renewTroubles = coalesced(async () => {
	const old = by("troubles");
	if (!old) return;
	const holder = made("template", { innerHTML: await post("/fragments/troubles", undefined, "GET", "text") });
	prepare(holder.content);
	const fresh = holder.content.querySelector("#troubles");
	fresh.open = old.open || (location.pathname === "/" && old.hidden);
	if (!old.isEqualNode(fresh) && !old.contains(document.activeElement)) old.replaceWith(fresh);
}, 1000);

/**
 * Follow what changes from when this page was made.
 * @param {Record<string, (row: any) => void>} handlers by kind of change
 */
export function follow(handlers) {
	const health = row => {
		renewTroubles();
		handlers.health?.(row);
	};
	const stream = state => {
		streamed = state;
		light(state);
	};
	new EventFeed(Number(document.body.dataset.rev), { ...handlers, health, trouble: renewTroubles }, stream).listen();
}

// `j` and friends, unless the person is typing or holds a modifier.
export function keys(actions) {
	document.addEventListener("keydown", event => {
		if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), select, textarea")) return;
		const action = actions[event.key];
		if (action && action() !== false) event.preventDefault();
	});
}

// The menu closes as menus do: by a click elsewhere, by Escape, and when the focus leaves it.
const menu = by("menu");
for (const kind of ["click", "focusin"])
	addEventListener(kind, ({ target }) => {
		if (menu && !menu.contains(target)) menu.open = false;
	});
menu?.addEventListener("keydown", event => {
	if (event.key !== "Escape" || !menu.open) return;
	event.stopPropagation();
	menu.open = false;
	menu.firstElementChild.focus();
});

// What an address names gets the focus, or the first field or button in it. The browser scrolls there first.
function focusNamed() {
	const named = by(decodeURIComponent(location.hash.slice(1)));
	const part = named?.matches("h2") ? named.closest("section") : named;
	if (part?.matches("li")) for (const each of part.querySelectorAll("details")) each.open = true;
	const field = named?.matches("input, select, button") ? named : (part?.querySelector("input:not([type=hidden]), select, a.button") ?? part);
	if (field?.tabIndex < 0) field.tabIndex = -1;
	field?.focus();
}
if (location.hash) addEventListener("load", () => setTimeout(focusNamed));

prepare();
if (menu) navigator.serviceWorker?.register(`/sw.js?${document.documentElement.lang}`, { updateViaCache: "none" }).catch(() => {}); // a certificate that the browser does not trust
setInterval(dress, 15000);
by("language")?.addEventListener("change", async ({ target }) => {
	await post("/language", { language: target.value });
	location.reload();
});
by("leave")?.addEventListener("click", async () => {
	await post("/logout", {});
	location.href = "/login";
});
