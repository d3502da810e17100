// @ts-check
// One's own password, sessions and second factor.
import { attempt, by, follow, post } from "./page.js";

const send = (path, body, method) => attempt(null, () => post(`/api/v1/me/${path}`, body, method));

document.addEventListener("submit", async event => {
	event.preventDefault();
	const form = event.target;
	const done = await send(form.dataset.post, Object.fromEntries(new FormData(form)));
	if (done?.secret) {
		form.hidden = true;
		by("begun").hidden = false;
		by("qr").src = `${done.qr}?${Date.now()}`;
		by("secret").textContent = done.secret;
		by("begun").elements.code.focus();
	} else if (done?.codes) {
		form.hidden = true;
		by("codes").hidden = false;
		by("codes").querySelector("pre").textContent = done.codes.join("\n");
	} else if (done) location.reload();
});

document.addEventListener("click", async ({ target }) => {
	if (target.dataset.end && (await send(`sessions/${target.dataset.end}`, {}, "DELETE"))) target.closest("li").remove();
});
follow({});
