// @ts-check
// The clip of a card plays in its picture while a mouse rests on it, or after `p`. One at a time.
import { by, made } from "./page.js";
const REST_MS = 400;
const quiet = matchMedia("(prefers-reduced-motion: reduce)");
let timer = 0;
/** @type {HTMLVideoElement | null} */
let shown = null;

function stop() {
	clearTimeout(timer);
	if (!shown) return;
	shown.removeAttribute("src"); // what is still on its way is let go
	shown.load();
	shown.remove();
	shown = null;
}

function start(shot) {
	stop();
	const video = made("video", { muted: true, loop: true, playsInline: true, preload: "none", src: shot.dataset.clip });
	video.addEventListener("error", () => video.remove()); // a codec that this browser lacks: the picture stays
	shown = video;
	shot.append(video);
	video.play().catch(() => video.remove());
}

export function preview(card) {
	const shot = card?.querySelector(".shot[data-clip]");
	if (!shot) return false;
	if (shown && shot.contains(shown)) stop();
	else start(shot);
}

const list = by("cards");
list.addEventListener("pointerover", event => {
	const shot = event.target.closest(".card")?.querySelector(".shot[data-clip]");
	if (!shot || event.pointerType !== "mouse" || quiet.matches || navigator.connection?.saveData || (shown && shot.contains(shown))) return;
	stop();
	timer = setTimeout(() => shot.isConnected && start(shot), REST_MS);
});
list.addEventListener("pointerout", event => {
	if (event.pointerType === "mouse" && !event.relatedTarget?.closest?.(".card")?.contains(event.target)) stop();
});
document.addEventListener("visibilitychange", stop);
