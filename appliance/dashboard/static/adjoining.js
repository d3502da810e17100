// @ts-check
// Pairs of zones through which people walk from one camera to another; all of them are one value of the site file.
import { by, follow, post, reload, say, swap } from "./page.js";
import { t } from "./texts.js";

async function save(pairs) {
	const { dataset } = by("adjoining");
	const wrong = by("adjoining").querySelector(".wrong");
	wrong.textContent = "";
	try {
		await post("/api/v1/settings", { base: dataset.base, changes: [{ path: ["alerts", "adjoining"], value: pairs }], why: "adjoining zones" });
		swap(await reload(), "[data-swap]");
		say(t("Saved and in force."));
	} catch (error) {
		wrong.textContent = error.message;
	}
}

const pairs = () => JSON.parse(by("adjoining").dataset.pairs);

document.addEventListener("submit", event => {
	if (event.target.id !== "pair") return;
	event.preventDefault();
	const { a, b, seconds } = event.target.elements;
	save([...pairs(), { zones: [a.value, b.value], seconds: Number(seconds.value) }]);
});

document.addEventListener("click", ({ target }) => {
	if (target.dataset.away) save(pairs().filter((_, n) => n !== Number(target.dataset.away)));
});
follow({});
