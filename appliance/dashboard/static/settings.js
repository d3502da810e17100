// @ts-check
// The site file: an edit by hand is taken, an older version shown and brought back.
import { attempt, coalesced, follow, made, post, reload, renew, say, swap } from "./page.js";
import { t } from "./texts.js";
const reading = () => document.hidden || document.querySelector("details[data-version][open]");
const refresh = coalesced(async () => {
	const fresh = await reload();
	reading() || swap(fresh, "[data-swap]");
});

function paint(pre, text) {
	pre.replaceChildren(
		...(text || t("This is the current text."))
			.split("\n")
			.map(line => made("span", { className: { "+": "new", "-": "gone" }[line[0]] ?? "", textContent: `${line}\n` }))
	);
}

const change = (button, path, body, words) =>
	attempt(button, async () => {
		await post(`/api/v1/settings/${path}`, body);
		say(words);
		await renew();
	});

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
	if (button?.id === "take-edit") change(button, "take-edit", {}, t("The change is in force."));
	if (button?.dataset.restore) {
		const base = document.querySelector("[data-digest]").dataset.digest;
		change(button, `versions/${button.dataset.restore}/restore`, { base }, t("The version is in force."));
	}
});
setInterval(() => reading() || refresh(), 10000);
follow({});
