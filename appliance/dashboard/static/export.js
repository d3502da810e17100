// @ts-check
// A clip that may be handed over: ordered, waited for, downloaded, and a link to it that ends.
import { by, get, made, onSubmit, post, say } from "./page.js";
import { t } from "./texts.js";
const ASK_MS = 1000; // between two looks at how far it is
let made_of = ""; // the export that a link is made to

// order: the URL to order from, and what it is told beside why and what is hidden.
export function offerExport(order) {
	onSubmit("export-form", async ({ elements }) => {
		const { url, ...more } = order();
		by("link-form")?.setAttribute("hidden", "");
		const ready = await done(await post(url, { why: elements.why.value.trim(), hide: elements.hide.value, ...more }));
		made_of = ready.id;
		const link = made("a", { href: ready.download, download: "", textContent: t("Download the export") });
		tell(link);
		link.focus();
		by("link-form")?.removeAttribute("hidden");
		say(t("The export is ready."));
	});
	onSubmit("link-form", async ({ elements }) => {
		const { url } = await post(`/api/v1/exports/${made_of}/link`, { hours: Number(elements.hours.value) });
		const field = by("made-link").querySelector("input");
		by("made-link").hidden = false;
		field.value = url;
		field.select();
	});
}

async function done(item) {
	while (item.state === "making") {
		tell(t("Making the export: {done} %", { done: Math.round(100 * item.progress) }));
		await new Promise(wait => setTimeout(wait, ASK_MS));
		item = await get(`/api/v1/exports/${item.id}`);
	}
	if (item.state === "ready") return item;
	tell("");
	throw new Error(item.problem || t("The export was deleted."));
}

function tell(content) {
	const line = by("export-done");
	line.replaceChildren(content);
	line.hidden = !content;
}
