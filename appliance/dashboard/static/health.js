// @ts-check
// "Seen" beside a health event, wherever it stands; the stream brings what came of it.
import { light, post } from "./page.js";
document.addEventListener("click", async event => {
	const button = event.target.closest("button.seen");
	if (!button) return;
	button.disabled = true;
	try {
		await post(button.dataset.url, {});
	} catch (error) {
		button.disabled = false;
		light("lost", error.message);
	}
});
