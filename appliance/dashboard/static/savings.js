// @ts-check
// Keeps the numbers fresh while somebody looks; an admin's prices go into the site file and count at once.
import { coalesced, follow, post, reload, renew, say, swap } from "./page.js";
import { t } from "./texts.js";
const refresh = coalesced(renew, 1000);
document.addEventListener("submit", async event => {
	event.preventDefault();
	const form = event.target;
	const changed = [...form.elements].filter(field => field.name && field.value !== field.defaultValue);
	const changes = changed.map(({ name, value, type }) => {
		const path = name.split(".");
		return value === "" ? { path, remove: true } : { path, value: type === "number" ? Number(value) : value };
	});
	if (!changes.length) return;
	try {
		await post("/api/v1/settings", { base: form.dataset.base, changes, why: "prices" });
		swap(await reload(), "[data-swap], #prices");
		say(t("Saved."));
	} catch (error) {
		form.querySelector(".wrong").textContent = error.message;
	}
});
setInterval(() => document.hidden || refresh(), 5000);
follow({ alert: refresh });
