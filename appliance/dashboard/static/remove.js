// Deleting the alert of a page, taking that back, and having it escalated.
import { by, light, post, say } from "./page.js";
import { t } from "./texts.js";
async function change(what, id, body, words, refresh) {
	const answer = await post(`/api/v1/alerts/${what}`, { ids: [id], ...body });
	if (answer.refused.length) throw new Error(t("It was deleted too long ago to be taken back."));
	say(words);
	await refresh();
}

export function offerRemove(id, refresh) {
	document.addEventListener("submit", event => {
		const form = event.target.closest("#remove-form");
		if (!form) return;
		event.preventDefault();
		const wrong = form.querySelector(".wrong");
		wrong.hidden = true;
		change("delete", id, { reason: form.elements.reason.value.trim() }, t("Deleted"), refresh)
			.then(() => by("restore")?.focus())
			.catch(error => {
				wrong.textContent = error.message;
				wrong.hidden = false;
			});
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
					const wrong = by("escalate-wrong");
					wrong.textContent = error.message;
					wrong.hidden = false;
				}
			);
		}
		if (event.target.closest("#restore")) change("restore", id, {}, t("Taken back"), refresh).catch(error => light("lost", error.message));
	});
}
