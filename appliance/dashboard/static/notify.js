// This browser as a target. Push and service workers want HTTPS, or localhost.
import { by, follow, post, renew } from "./page.js";
import { t } from "./texts.js";
const wrong = by("wrong");

by("subscribe")?.addEventListener("click", async ({ target }) => {
	wrong.textContent = "";
	try {
		if (!("PushManager" in window)) throw new Error(t("This browser takes no push messages here: it wants HTTPS, and on an iPhone the page on the home screen."));
		if ((await Notification.requestPermission()) !== "granted") throw new Error(t("The browser was not allowed to show notifications."));
		const worker = await navigator.serviceWorker.ready;
		const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: target.dataset.key });
		const { endpoint, keys } = made.toJSON();
		const label = navigator.userAgent.match(/(Firefox|Edg|Chrome|Safari)\/\d+/)?.[0] || "";
		await post("/api/v1/push", { endpoint, ...keys, label: `${label} ${navigator.platform}`.trim() });
		await renew();
	} catch (error) {
		wrong.textContent = error.message;
	}
});
follow({});
