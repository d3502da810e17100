// @ts-check
// This browser as a target. Push and service workers want HTTPS, or localhost.
import { attempt, by, follow, post, renew } from "./page.js";
import { t } from "./texts.js";

async function subscribe(button) {
	if (!("PushManager" in window)) throw new Error(t("This browser cannot receive push messages here. It needs HTTPS; on an iPhone, add the page to the home screen."));
	if ((await Notification.requestPermission()) !== "granted") throw new Error(t("The browser was not allowed to show notifications."));
	const worker = await navigator.serviceWorker.ready;
	const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: button.dataset.key });
	const { endpoint, keys } = made.toJSON();
	const label = navigator.userAgent.match(/(Firefox|Edg|Chrome|Safari)\/\d+/)?.[0] || "";
	await post("/api/v1/push", { endpoint, ...keys, label: `${label} ${navigator.platform}`.trim() });
	await renew();
}

by("subscribe")?.addEventListener("click", ({ target }) => attempt(target, () => subscribe(target)));
follow({});
