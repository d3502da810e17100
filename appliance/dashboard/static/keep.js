// @ts-check
// Keeping an alert as a scenario: the small form on its page.
import { by, onSubmit, post, say } from "./page.js";
import { t } from "./texts.js";
export function offerKeep(id, refresh) {
	onSubmit("keep-form", async ({ elements }) => {
		const kept = await post(`/api/v1/alerts/${encodeURIComponent(id)}/keep`, {
			name: plain(elements.name.value),
			note: elements.note.value.trim(),
			complete: elements.complete.checked
		});
		say(t("Kept as {name}", { name: kept.name }));
		await refresh();
		// Its run ends later.
		for (let n = 0; n < 300 && by("keep").dataset.state.endsWith(" "); n++) {
			await new Promise(done => setTimeout(done, 2000));
			await refresh();
		}
	});
}

// "The postman" becomes the-postman: names are folders on the appliance.
function plain(name) {
	const letters = name.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "");
	return letters.replace(/[^a-z0-9_]+/g, "-").replace(/^[-_]+|-+$/g, "").slice(0, 64);
}
