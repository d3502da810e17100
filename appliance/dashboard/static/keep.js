// Keeping an alert as a scenario: the small form on its page.
import { post, say } from "./page.js";
import { t } from "./texts.js";
export function offerKeep(id, refresh) {
	document.addEventListener("submit", async event => {
		const form = event.target.closest("#keep-form");
		if (!form) return;
		event.preventDefault();
		const [button, wrong] = [form.querySelector("button"), form.querySelector(".wrong")];
		button.disabled = true;
		wrong.textContent = "";
		try {
			const kept = await post(`/api/v1/alerts/${encodeURIComponent(id)}/keep`, {
				name: plain(form.elements.name.value),
				note: form.elements.note.value.trim(),
				complete: form.elements.complete.checked
			});
			say(t("Kept as {name}", { name: kept.name }));
			await refresh();
		} catch (error) {
			wrong.textContent = error.message;
		}
		button.disabled = false;
	});
}

// "The postman" becomes the-postman: names are folders on the box.
function plain(name) {
	const letters = name.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "");
	return letters.replace(/[^a-z0-9_]+/g, "-").replace(/^[-_]+|-+$/g, "").slice(0, 64);
}
