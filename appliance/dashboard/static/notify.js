// This browser as a target: asked for leave, subscribed, taken back. Push and service workers want HTTPS, or localhost.
import { again, by, post, say, swap } from "/static/page.js";
import { t } from "/static/texts.js";

const here = by("this-browser");
const wrong = by("wrong");

async function subscribe() {
  if (!("PushManager" in window)) throw new Error(t("This browser takes no push messages here: it wants HTTPS, and on an iPhone the page on the home screen."));
  if ((await Notification.requestPermission()) !== "granted") throw new Error(t("The browser was not allowed to show notifications."));
  const worker = await navigator.serviceWorker.ready;
  const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: here.dataset.key });
  const { endpoint, keys } = made.toJSON();
  const label = navigator.userAgent.match(/(Firefox|Edg|Chrome|Safari)\/\d+/)?.[0] || "";
  await post("/api/v1/push", { endpoint, ...keys, label: `${label} ${navigator.platform}`.trim() });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  const { test, remove, browser } = button?.dataset || {};
  const work =
    button?.id === "subscribe" ? subscribe
    : test ? () => post(`/api/v1/notify/${test}/test`, {})
    : remove ? () => post(`/api/v1/notify/${remove}`, {}, "DELETE")
    : browser ? () => post(`/api/v1/push/${browser}`, {}, "DELETE")
    : null;
  if (!work) return;
  if (remove && !button.dataset.sure) {
    button.dataset.sure = "yes";
    button.textContent = t("Really remove?");
    return;
  }
  button.disabled = true;
  wrong.textContent = "";
  try {
    const done = await work();
    if (test) wrong.textContent = done.message;
    say(t("Done."));
    swap(await again(), "[data-swap]");
  } catch (error) {
    wrong.textContent = error.message;
  }
  button.disabled = false;
});
