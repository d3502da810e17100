// @ts-check
// Sends a form as one JSON request and shows the result. A template marks its forms and fields for this:
// form: data-post is the URL (a form without it is left alone), data-method the HTTP method (POST if absent).
// field: its name is the key of the request. data-json: its value is JSON and is parsed. data-merge: its value (or the
//   attribute's) is a JSON object whose keys join the request; of buttons only the one that was pressed does.
//   data-name: its value is appended to the URL.
// button: data-sure is a question that the first press shows instead of sending; the second press sends.
// result: an <output> in the form shows the message. A form without one closes its <details>, loads the page again, and
//   replaces #arming and all [data-swap]. An error is shown in .wrong, or on the page's status light if there is none.
import { by, light, post, reload, say, swap } from "./page.js";
import { t } from "./texts.js";
const value = field =>
	field.type === "checkbox" ? field.checked : field.dataset.json === undefined ? field.value : JSON.parse(field.value);

function bodyOf(form, button) {
	const body = {};
	for (const field of form.elements) {
		if (field.dataset.merge !== undefined && (field.type !== "submit" || field === button)) {
			Object.assign(body, JSON.parse(field.dataset.merge || field.value));
		} else if (field.name) body[field.name] = value(field);
	}
	return body;
}

// What was typed into the other forms, and is not saved yet, stands in those that take their place, which are as open.
function isTyped(field) {
	if (field.options) return [...field.options].some(each => each.selected !== each.defaultSelected);
	if (field.type === "checkbox") return field.checked !== field.defaultChecked;
	return field.type !== "hidden" && field.matches("input, textarea") && field.value !== field.defaultValue;
}

const asks = ({ dataset, elements }) => [dataset.post, dataset.method, elements.length].join();

function carry(old) {
	const form = !old.isConnected && [...document.querySelectorAll("form[data-post]")].find(each => asks(each) === asks(old));
	if (!form) return;
	const [was, is] = [old, form].map(each => each.closest("details"));
	if (was?.open && is) is.open = true;
	for (const [n, field] of [...old.elements].entries())
		if (isTyped(field)) Object.assign(form.elements[n], { value: field.value, checked: field.checked });
}

document.addEventListener("submit", async event => {
	const form = event.target;
	const { post: path, method } = form.dataset;
	if (!path) return;
	event.preventDefault();
	const button = event.submitter;
	if (button.dataset.sure && !button.dataset.armed) {
		button.dataset.armed = button.textContent; // the label that comes back when something else is pressed
		button.textContent = button.dataset.sure;
		return;
	}
	const wrong = form.querySelector(".wrong");
	if (wrong) wrong.textContent = "";
	button.disabled = true;
	try {
		const done = await post(path + (form.querySelector("[data-name]")?.value || ""), bodyOf(form, button), method);
		say(done.message || t("Done."));
		const output = form.querySelector("output");
		if (output) output.value = done.message;
		else {
			form.closest("details")?.removeAttribute("open");
			const fresh = await reload();
			const others = [...document.querySelectorAll("form[data-post]")].filter(each => each !== form);
			swap(fresh, "#arming, [data-swap]");
			others.forEach(carry);
			if (!button.isConnected) by("main").focus();
		}
	} catch (error) {
		if (wrong) wrong.textContent = error.message;
		else light("lost", error.message);
	} finally {
		button.disabled = false;
	}
});

document.addEventListener("click", ({ target }) => {
	for (const each of document.querySelectorAll("[data-armed]"))
		if (each !== target) {
			each.textContent = each.dataset.armed;
			delete each.dataset.armed;
		}
});
