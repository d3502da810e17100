// Shows pushed messages, and a page of its own while the appliance is out of reach. Nothing of the site is kept.
const OFFLINE = "/static/offline.html";
addEventListener("install", (event) => event.waitUntil(caches.open("1").then((kept) => kept.addAll([OFFLINE, "/static/style.css"]))));
addEventListener("fetch", (event) => {
  if (event.request.mode === "navigate") event.respondWith(fetch(event.request).catch(() => caches.match(OFFLINE)));
});
addEventListener("push", (event) => {
  const { title, body, tag, url, snooze } = event.data.json();
  const actions = snooze ? [15, 60].map((minutes) => ({ action: `${minutes}`, title: `Snooze ${minutes} min` })) : [];
  event.waitUntil(registration.showNotification(title, { body, tag, actions, data: { url, snooze }, icon: "/static/icons/192.png" }));
});
addEventListener("notificationclick", (event) => {
  const { url, snooze } = event.notification.data;
  event.notification.close();
  const body = JSON.stringify({ minutes: Number(event.action) });
  event.waitUntil(
    event.action
      ? fetch(snooze, { method: "POST", headers: { "Content-Type": "application/json" }, body })
      : clients.openWindow(url || "/"),
  );
});
