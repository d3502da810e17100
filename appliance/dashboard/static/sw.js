// @ts-check
// Shows pushed messages, and a page of its own while the appliance is out of reach. Nothing is kept.
const lang = location.search.slice(1);
if (lang && lang !== "en") importScripts(`/static/texts/${lang}.js`);
const t = text => globalThis.TEXTS?.[text] ?? text;
const OFFLINE = `<!doctype html><html lang="${lang}"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>Vedette</title><body style="font:1.1rem system-ui;max-width:34rem;margin:12vh auto;padding:0 1.5rem;line-height:1.5;background:Canvas;color:CanvasText"><main><h1>${t("Out of reach")}</h1><p>${t("The appliance does not answer. It may be off, or this device may be in another network.")}<p>${t("This page comes back by itself.")} <a href="">${t("Try again")}</a></main>
<script>setInterval(() => fetch("/healthz").then(() => location.reload(), () => 0), 2000)</script>`;
addEventListener("install", event => {
	skipWaiting();
	// What is no page never comes here: asking would cost each of its requests.
	const routes = ["cors", "no-cors", "same-origin"].map(requestMode => ({ condition: { requestMode }, source: "network" }));
	event.waitUntil(event.addRoutes?.(routes).catch(() => {}));
});
// The page is asked for while this worker starts, not after.
addEventListener("activate", event => event.waitUntil(registration.navigationPreload?.enable()));
addEventListener("fetch", event => {
	if (event.request.mode !== "navigate") return;
	const answer = async () => (await event.preloadResponse) ?? fetch(event.request);
	event.respondWith(answer().catch(() => new Response(OFFLINE, { headers: { "Content-Type": "text/html" } })));
});
addEventListener("push", event => {
	const { title, body, tag, url, snooze } = event.data.json();
	const actions = snooze ? [15, 60].map(minutes => ({ action: `${minutes}`, title: `${t("Snooze")} ${minutes} min` })) : [];
	event.waitUntil(registration.showNotification(title, { body, tag, actions, data: { url, snooze } }));
});
addEventListener("notificationclick", event => {
	const { url, snooze } = event.notification.data;
	event.notification.close();
	const act = { method: "POST", headers: { "Content-Type": "application/json" }, body: `{"minutes":${event.action}}` };
	event.waitUntil(event.action ? fetch(snooze, act) : clients.openWindow(url || "/"));
});
