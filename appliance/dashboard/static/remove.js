// @ts-check
// Deleting the alert of a page, taking that back, and having it escalated.
import { by, light, onSubmit, post, say } from "./page.js";
import { t } from "./texts.js";
async function change(what, id, body, words, refresh) {
	const answer = await post(`/api/v1/alerts/${what}`, { ids: [id], ...body });
	if (answer.refused.length) throw new Error(t("It was deleted too long ago to be taken back."));
	say(words);
	await refresh();
}

export function offerRemove(id, refresh) {
	onSubmit("remove-form", async ({ elements }) => {
		await change("delete", id, { reason: elements.reason.value.trim() }, t("Deleted"), refresh);
		by("restore")?.focus();
	});
	document.addEventListener("click", event => {
		const ask = event.target.closest("#escalate");
		if (ask) {
			ask.disabled = true;
			post(`/api/v1/alerts/${encodeURIComponent(id)}/escalate`, {}).then(
				() => {
					say(t("Escalated"));
					refresh();
				},
				error => {
					ask.disabled = false;
					by("escalate-wrong").textContent = error.message;
				}
			);
		}
		if (event.target.closest("#restore")) change("restore", id, {}, t("Taken back"), refresh).catch(error => light("lost", error.message));
	});
}
