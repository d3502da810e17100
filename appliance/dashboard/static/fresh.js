// Keeps the numbers fresh while somebody looks.
import { again, coalesced, follow, swap } from "./page.js";
const refresh = coalesced(async () => swap(await again(), "[data-swap]"), 1000);
setInterval(() => document.querySelector("[data-armed]") || document.hidden || refresh(), 5000);
follow({});
