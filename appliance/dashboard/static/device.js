// @ts-check
// This device as a target of messages, by one button: allowed, subscribed and tried at once.
import { attempt, by, made, post, renew, say } from "./page.js";
import { t } from "./texts.js";

const LOCAL = ["localhost", "127.0.0.1", "[::1]"]; // an address that leads nowhere from elsewhere

async function subscribe(button) {
	if (!("PushManager" in window)) throw new Error(t("This browser cannot receive push messages here. It needs HTTPS; on an iPhone, add the page to the home screen."));
	if ((await Notification.requestPermission()) !== "granted") throw new Error(t("The browser was not allowed to show notifications."));
	let known = await post("/api/v1/push", undefined, "GET");
	if (!known.key) {
		const address = LOCAL.includes(location.hostname) ? "" : location.origin;
		known = await post("/api/v1/push/target", { public_url: address });
	}
	const { pushManager } = await navigator.serviceWorker.ready;
	const how = { userVisibleOnly: true, applicationServerKey: known.key };
	// A subscription to another key, of before a restore on another machine, stands in the way.
	const subscription = await pushManager.subscribe(how).catch(async error => {
		if (error.name !== "InvalidStateError") throw error;
		await (await pushManager.getSubscription())?.unsubscribe();
		return pushManager.subscribe(how);
	});
	const { endpoint, keys } = subscription.toJSON();
	const label = navigator.userAgent.match(/(Firefox|Edg|Chrome|Safari)\/\d+/)?.[0] || "";
	const { browsers } = await post("/api/v1/push", { endpoint, ...keys, label: `${label} ${navigator.platform}`.trim() });
	const tried = await post(`/api/v1/push/${browsers.at(-1).id}/test`, {});
	const text = tried.ok ? t("This device is notified. A test message is on its way to it.") : t("This device is notified, but the test did not arrive: {why}", { why: tried.message });
	const done = by("device-done") ?? button.after(made("output", { id: "device-done" })) ?? by("device-done");
	done.value = text;
	say(text);
	await renew();
	if (tried.ok) button.hidden = true;
}

const button = by("subscribe");
button?.addEventListener("click", () => attempt(button, () => subscribe(button), button.closest("section").querySelector(".wrong")));

// On the first page it stands only where it would do something.
const panel = by("device");
if (panel && "PushManager" in window && Notification.permission !== "denied")
	navigator.serviceWorker.ready.then(async worker => (panel.hidden = Boolean(await worker.pushManager.getSubscription())));
