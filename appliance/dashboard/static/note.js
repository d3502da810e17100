// @ts-check
// The note on an alert's page.
import { by, onSubmit, post, say } from "./page.js";
import { t } from "./texts.js";
const field = () => by("note-text");
const show = () => (field().form.querySelector("button").hidden = !isWriting());

export const isWriting = () => field()?.value !== field()?.defaultValue; // who may only read has no field

export function offerNote(id, refresh) {
	document.addEventListener("input", event => event.target === field() && show());
	document.addEventListener("keydown", event => {
		if (event.target === field() && event.key === "Enter" && (event.ctrlKey || event.metaKey)) field().form.requestSubmit();
	});
	onSubmit("note-form", async () => {
		const note = field().value;
		const alert = await post(`/api/v1/alerts/${encodeURIComponent(id)}/note`, { note });
		field().defaultValue = alert.note;
		if (field().value === note) field().value = alert.note; // else somebody writes on
		show();
		say(alert.note ? t("Note saved") : t("Note removed"));
		await refresh();
	});
	addEventListener("beforeunload", event => isWriting() && event.preventDefault());
}
