// @ts-check
// A backup is made and downloaded; one brought back is sent in pieces, checked, and ready for the next start.
import { attempt, by, post, renew, say } from "./page.js";
import { problemOf } from "./problem.js";
import { t } from "./texts.js";
const PIECE = 1024 * 1024;
const sent = by("sent");

async function send(file) {
	// An empty file is a piece, too: it takes the place of what was sent before.
	for (let at = 0; at === 0 || at < file.size; at += PIECE) {
		sent.textContent = t("{share} % sent", { share: at && Math.floor((100 * at) / file.size) });
		const answer = await fetch(`/api/v1/restore/upload?at=${at}`, {
			method: "POST",
			headers: { "Content-Type": "application/octet-stream" },
			body: file.slice(at, at + PIECE)
		});
		if (!answer.ok) throw new Error(await problemOf(answer));
	}
	sent.textContent = t("Being checked …");
}

const change = (button, work) =>
	attempt(button, async () => {
		await work();
		await renew();
		say(t("Done."));
	}).then(() => (sent.textContent = ""));

document.addEventListener("submit", event => {
	event.preventDefault();
	const { file, passphrase, evidence, other_site } = event.target.elements;
	change(event.submitter, async () => {
		if (file) await send(file.files[0]);
		if (file) await post("/api/v1/restore", { passphrase: passphrase.value, other_site: other_site.checked });
		else await post("/api/v1/backups", { passphrase: passphrase.value, evidence: evidence.checked });
		event.target.reset();
	});
});
document.addEventListener("click", ({ target }) => target.dataset.delete && change(target, () => post(target.dataset.delete, {}, "DELETE")));
