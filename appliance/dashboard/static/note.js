// The note on an alert's page.
import { by, post, say } from "./page.js";
import { t } from "./texts.js";
const field = () => by("note-text");

export const isWriting = () => field()?.value !== field()?.defaultValue; // who may only read has no field

export function offerNote(id, refresh) {
	document.addEventListener("input", event => {
		if (event.target === field()) field().form.querySelector("button").hidden = !isWriting();
	});
	document.addEventListener("keydown", event => {
		if (event.target === field() && event.key === "Enter" && (event.ctrlKey || event.metaKey)) field().form.requestSubmit();
	});
	document.addEventListener("submit", async event => {
		const form = event.target.closest("#note-form");
		if (!form) return;
		event.preventDefault();
		const [button, wrong] = [form.querySelector("button"), form.querySelector(".wrong")];
		button.disabled = true;
		wrong.hidden = true;
		try {
			const alert = await post(`/api/v1/alerts/${encodeURIComponent(id)}/note`, { note: field().value });
			field().value = field().defaultValue = alert.note;
			button.hidden = true;
			say(alert.note ? t("Note saved") : t("Note removed"));
			await refresh();
		} catch (error) {
			wrong.textContent = error.message;
			wrong.hidden = false;
		}
		button.disabled = false;
	});
}
