// A backup is made and downloaded; one that is brought back is sent in pieces, checked, and lies ready for the next start.
import { again, by, post, say, swap } from "./page.js";
import { t } from "./texts.js";
const PIECE = 1024 * 1024;
const wrong = by("wrong");
const sent = by("sent");

async function send(file) {
	for (let at = 0; at < file.size; at += PIECE) {
		sent.textContent = t("{share} % sent", { share: Math.floor((100 * at) / file.size) });
		const answer = await fetch(`/api/v1/restore/upload?at=${at}`, {
			method: "POST",
			headers: { "Content-Type": "application/octet-stream" },
			body: file.slice(at, at + PIECE)
		});
		if (!answer.ok) throw new Error((await answer.json()).detail);
	}
	sent.textContent = t("Being checked …");
}

async function attempt(button, work) {
	button.disabled = true;
	wrong.textContent = "";
	try {
		await work();
		swap(await again(), "[data-swap]");
		say(t("Done."));
	} catch (error) {
		wrong.textContent = error.message;
		wrong.scrollIntoView({ block: "nearest" });
	} finally {
		sent.textContent = "";
		button.disabled = false;
	}
}

document.addEventListener("submit", event => {
	event.preventDefault();
	const { file, passphrase, evidence, other_site } = event.target.elements;
	attempt(event.submitter, async () => {
		if (file) await send(file.files[0]);
		if (file) await post("/api/v1/restore", { passphrase: passphrase.value, other_site: other_site.checked });
		else await post("/api/v1/backups", { passphrase: passphrase.value, evidence: evidence.checked });
		event.target.reset();
	});
});
document.addEventListener("click", event => {
	const { target } = event;
	if (target.dataset.delete) attempt(target, () => post(target.dataset.delete, {}, "DELETE"));
});
