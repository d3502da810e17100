// @ts-check
// Users, sessions and tokens: each change is one request, and then the lists are those of the appliance.
import { attempt, by, follow, post, reload, say, swap } from "./page.js";
import { t } from "./texts.js";
const path = (part, name) => `/api/v1/${part}/${encodeURIComponent(name)}`;

const change = (work, words) =>
	attempt(null, async () => {
		const done = await work();
		say(words);
		const answer = await fetch("/users", { headers: { Accept: "text/html" } });
		// The first user was added, or one's own session or rights ended.
		if (answer.redirected || [401, 403].includes(answer.status)) location.reload();
		else swap(await reload("/users"), "[data-swap]");
		return done;
	});

const cameras = form =>
	form.elements.all.checked || form.elements.all.type === "hidden"
		? null
		: [...form.querySelectorAll("[name=camera]:checked")].map(box => box.value);

document.addEventListener("submit", async event => {
	event.preventDefault();
	const form = event.target;
	const value = name => form.elements[name].value;
	if (form.id === "add") {
		const user = { name: value("name").trim(), password: value("password"), role: value("role"), cameras: cameras(form) };
		if (await change(() => post("/api/v1/users", user), t("Added."))) form.reset();
	} else if (form.id === "add-token") {
		await change(async () => {
			const { token } = await post("/api/v1/tokens", { name: value("name").trim(), scope: value("role") });
			form.reset();
			const fresh = by("fresh");
			fresh.querySelector("code").textContent = token; // at once: it is told only here
			fresh.hidden = false;
		}, t("Made."));
	} else if (form.dataset.change) {
		const wanted = { role: value("role"), cameras: cameras(form) };
		if (value("password")) wanted.password = value("password");
		await change(() => post(path("users", form.dataset.change), wanted), t("Saved."));
	}
});

document.addEventListener("change", event => {
	const box = event.target;
	const form = box.closest("form.person");
	if (!form || box.type !== "checkbox") return;
	const each = [...form.querySelectorAll("[name=camera]")];
	if (box.name === "all") for (const other of each) other.checked = box.checked;
	else if (!box.checked) form.elements.all.checked = false;
});

document.addEventListener("click", event => {
	const button = event.target.closest("button");
	const user = button?.closest("[data-user]")?.dataset.user;
	if (button?.dataset.enable !== undefined) {
		change(() => post(path("users", user), { enabled: button.dataset.enable === "yes" }), t("Saved."));
	} else if (button?.dataset.factor !== undefined) {
		change(() => post(path("users", user), { second_factor: false }), t("Saved."));
	} else if (button?.dataset.remove !== undefined) {
		if (button.dataset.sure) change(() => post(path("users", user), {}, "DELETE"), t("Removed."));
		else button.textContent = t("Really remove?");
		button.dataset.sure = "yes";
	} else if (button?.dataset.end) {
		change(() => post(path("sessions", button.dataset.end), {}, "DELETE"), t("Signed out."));
	} else if (button?.dataset.revoke) {
		change(() => post(path("tokens", button.dataset.revoke), {}, "DELETE"), t("Revoked."));
	}
});
follow({});
