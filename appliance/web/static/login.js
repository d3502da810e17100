// @ts-check
// Trades name and password (or the token, or the code of the first start) for a cookie; none is kept anywhere.
import { by, post } from "./page.js";
const form = by("login");

form.addEventListener("submit", async event => {
	event.preventDefault();
	const button = form.querySelector("button");
	button.disabled = true;
	try {
		await post(form.dataset.to || "/login", Object.fromEntries(new FormData(form)));
		const next = form.dataset.next; // a page that this account may not see leads to the alerts instead
		const page = next === "/" ? null : await fetch(next, { headers: { Accept: "text/html" } }).catch(() => null);
		return location.replace(page?.status === 403 ? "/" : next);
	} catch ({ message, type }) {
		by("wrong").textContent = message;
		if (type === "urn:vedette:code-wanted") {
			for (const each of document.querySelectorAll("#code, [for=code]")) each.hidden = false;
			form.elements.code.select();
		} else form.querySelector("[type=password]").select();
	}
	button.disabled = false;
});
