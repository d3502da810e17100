// The site file: an edit by hand is taken, an older version shown and brought back.
import { again, by, coalesced, follow, post, say, swap } from "./page.js";
import { t } from "./texts.js";
const wrong = by("wrong");
const refresh = coalesced(async () => swap(await again(), "[data-swap]"), 500);

function paint(pre, text) {
	pre.replaceChildren(
		...(text || t("It is the text of now.")).split("\n").map(line => {
			const made = document.createElement("span");
			made.className = line.startsWith("+") ? "new" : line.startsWith("-") ? "gone" : "";
			made.textContent = `${line}\n`;
			return made;
		})
	);
}

async function attempt(button, work, words) {
	button.disabled = true;
	wrong.textContent = "";
	try {
		await work();
		say(words);
		await refresh();
	} catch (error) {
		wrong.textContent = error.message;
		wrong.scrollIntoView({ block: "nearest" });
	} finally {
		button.disabled = false;
	}
}

document.addEventListener(
	"toggle",
	async event => {
		const details = event.target.closest?.("details[data-version]");
		if (!details?.open) return;
		const answer = await fetch(`/api/v1/settings/versions/${details.dataset.version}`);
		const found = await answer.json();
		paint(details.querySelector("pre"), answer.ok ? found.diff : found.detail);
	},
	true
);

document.addEventListener("click", event => {
	const button = event.target.closest("button");
	if (button?.id === "take-edit") attempt(button, () => post("/api/v1/settings/take-edit", {}), t("The change is in force."));
	if (button?.dataset.restore) {
		const base = document.querySelector("[data-digest]").dataset.digest;
		attempt(button, () => post(`/api/v1/settings/versions/${button.dataset.restore}/restore`, { base }), t("The version is in force."));
	}
});
setInterval(() => document.hidden || document.querySelector("details[open]") || refresh(), 10000);
follow({});
