// A camera by its address: tried, seen, named, added.
import { post, follow } from "/static/page.js";
import { number, t } from "/static/texts.js";

const by = (id) => document.getElementById(id);

function fill() {
  const make = by("vendor").selectedOptions[0].dataset;
  const host = by("host").value.trim();
  if (!host) return;
  const shown = host.includes(":") && !host.startsWith("[") && host.split(":").length > 2 ? `[${host}]` : host;
  by("url").value = make.main.replace("{host}:554", /:\d+$/.test(shown) ? shown : `${shown}:554`).replace("{host}", shown);
  by("detect-url").value = make.sub.replace("{host}:554", /:\d+$/.test(shown) ? shown : `${shown}:554`);
}

async function attempt(form, wrong, work) {
  const button = form.querySelector("button[type=submit]");
  const words = button.textContent;
  button.disabled = true;
  by(wrong).textContent = "";
  try {
    await work(button);
  } catch (error) {
    by(wrong).textContent = error.message;
  } finally {
    button.disabled = false;
    button.textContent = words;
  }
}

const login = () => ({ user: by("user").value, password: by("password").value });

function show(found) {
  by("picture").src = found.picture;
  by("picture").parentElement.style.aspectRatio = `${found.width} / ${found.height}`;
  const key = found.keyframe_s ? t(", a key frame every {n} s", { n: number(found.keyframe_s, 1) }) : "";
  const rate = t("{n} pictures a second", { n: number(found.fps, 1) });
  by("facts").textContent = `${found.codec} ${found.width} × ${found.height}, ${rate}, ${number(found.kbit_s)} kbit/s${key}.`;
  by("advice").replaceChildren(
    ...found.advice.map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }),
  );
  by("found").hidden = false;
  by("found").scrollIntoView({ block: "nearest" });
  by("name").focus();
}

by("vendor").addEventListener("change", fill);
by("host").addEventListener("input", fill);
by("address").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(event.target, "wrong", async (button) => {
    button.textContent = t("Looking, some seconds…");
    const second = by("detect-url").value.trim();
    if (second) await post("/api/v1/setup/probe", { url: second, ...login() });
    show(await post("/api/v1/setup/probe", { url: by("url").value.trim(), ...login() }));
  });
});
by("add").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(event.target, "wrong-name", async () => {
    const settings = await (await fetch("/api/v1/settings")).json();
    const name = by("name").value.trim();
    const camera = { base: settings.digest, name, url: by("url").value.trim(), detect_url: by("detect-url").value.trim(), record: by("record").value };
    await post("/api/v1/setup/cameras", { ...camera, ...login() });
    location.href = `/cameras/${encodeURIComponent(name)}/edit`;
  });
});
if (!by("url").value) fill(); // typed before this script was there
follow({});
