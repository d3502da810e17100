// @ts-check
// The page of notifications: this device, and a form that asks for what its kind of target needs.
import { by, follow } from "./page.js";
import "./device.js";

function showFields(form) {
	const kind = form.elements.kind.value;
	for (const field of form.querySelectorAll("[data-kinds]")) field.hidden = !field.dataset.kinds.split(" ").includes(kind);
	const address = form.elements.url;
	if (address) address.placeholder = { ntfy: "https://ntfy.sh", webhook: "https://…", apprise: "tgram://…" }[kind] ?? "";
}

document.addEventListener("change", ({ target }) => target.name === "kind" && showFields(target.form));
document.addEventListener("toggle", () => by("adding-form") && showFields(by("adding-form")), true);
if (by("adding-form")) showFields(by("adding-form"));
follow({});
