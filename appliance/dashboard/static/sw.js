// Shows pushed messages, and a page of its own while the appliance is out of reach. Nothing is kept.
const OFFLINE = `<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>Vedette</title><body style="font:1.1rem system-ui;margin:3rem 1.5rem"><h1>Out of reach</h1><p>The appliance does not answer. It watches on; this device has no way to it now.<p><a href="">Try again</a>`;
addEventListener("fetch", event => {
	const html = { headers: { "Content-Type": "text/html" } };
	if (event.request.mode === "navigate") event.respondWith(fetch(event.request).catch(() => new Response(OFFLINE, html)));
});
addEventListener("push", event => {
	const { title, body, tag, url, snooze } = event.data.json();
	const actions = snooze ? [15, 60].map(minutes => ({ action: `${minutes}`, title: `Snooze ${minutes} min` })) : [];
	event.waitUntil(registration.showNotification(title, { body, tag, actions, data: { url, snooze } }));
});
addEventListener("notificationclick", event => {
	const { url, snooze } = event.notification.data;
	event.notification.close();
	const act = { method: "POST", headers: { "Content-Type": "application/json" }, body: `{"minutes":${event.action}}` };
	event.waitUntil(event.action ? fetch(snooze, act) : clients.openWindow(url || "/"));
});
