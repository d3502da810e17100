// @ts-check
// Keeps the numbers fresh while somebody looks.
import { coalesced, follow, reload, swap } from "./page.js";
const refresh = coalesced(async () => {
	const fresh = await reload();
	document.querySelector("[data-armed]") || swap(fresh, "[data-swap]");
}, 1000);
setInterval(() => document.hidden || refresh(), 5000);
follow({});
