// @ts-check
// Shows pushed messages, and a page of its own while the appliance is out of reach. Nothing is kept.
const lang = location.search.slice(1);
if (lang && lang !== "en") importScripts(`/static/texts/${lang}.js`);
const t = text => globalThis.TEXTS?.[text] ?? text;
const OFFLINE = `<!doctype html><html lang="${lang}"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>Vedette</title><style>:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{margin:0;min-height:100vh;display:grid;place-items:center;background:light-dark(#f6f5f1,#111315);color:light-dark(#1b1d1f,#e9e7e2)}
main{max-width:28rem;margin:1rem;padding:1.5rem 1.75rem;border:1px solid light-dark(#e2dfd7,#2c3135);border-radius:14px;background:light-dark(#fff,#1a1d20)}h1{font-size:1.4rem;margin:0 0 .5rem}p{margin:0 0 .75rem}
a{display:inline-block;padding:8px 16px;border-radius:9px;text-decoration:none;font-weight:600;background:light-dark(#0b6b5c,#63d2bb);color:light-dark(#fff,#06231d)}</style>
<body><main><h1>${t("Out of reach")}</h1><p>${t("The appliance does not answer. It may be off, starting again, or out of this device's network.")}</p><p>${t("This page comes back by itself.")}</p><a href="">${t("Try again")}</a></main>
<script>const ask = () => fetch("/healthz", { signal: AbortSignal.timeout(10000) }).then(() => location.reload(), later);
const later = () => setTimeout(ask, 2000);
later()</script>`;
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
	// Where one worker hands over to the next, the browser may forget the request that it made beforehand: ask again.
	const late = new Promise(done => setTimeout(done, 5000));
	const answer = async () => (await Promise.race([event.preloadResponse, late])) ?? fetch(event.request);
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
