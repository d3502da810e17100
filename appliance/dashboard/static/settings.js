// @ts-check
// The site file: an edit by hand is taken, an older version shown and brought back.
import { attempt, coalesced, follow, made, post, reload, renew, say, swap } from "./page.js";
import { problemOf } from "./problem.js";
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

// What a version would change and cost, or how it differs from another one.
async function show(details) {
	if (!details?.open) return;
	const against = details.querySelector("[data-against]")?.value;
	const answer = await fetch(`/api/v1/settings/versions/${details.dataset.version}${against ? `?against=${against}` : ""}`);
	const { diff, cost } = answer.ok ? await answer.json() : { diff: await problemOf(answer), cost: [] };
	paint(details.querySelector("pre"), diff);
	details.querySelector("[data-cost]").replaceChildren(...cost.map(textContent => made("li", { textContent })));
	details.querySelector("[data-cost]").hidden = !cost.length;
}

const opened = ({ target }) => show(target.closest?.("details[data-version]"));
document.addEventListener("toggle", opened, true);
document.addEventListener("change", opened);

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
