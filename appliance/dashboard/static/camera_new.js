// @ts-check
// A camera, found in the network or by its address: asked for its streams, tried, seen, named, added.
import { by, follow, post } from "./page.js";
let onvif = ""; // of the camera that was chosen

function fill() {
	const make = by("vendor").selectedOptions[0].dataset;
	const host = by("host").value.trim();
	if (!host) return;
	const shown = host[0] !== "[" && host.split(":").length > 2 ? `[${host}]` : host;
	const at = text => text.replace("{host}:554", /:\d+$/.test(shown) ? shown : `${shown}:554`).replace("{host}", shown);
	by("url").value = at(make.main);
	by("detect-url").value = at(make.sub);
}

async function attempt(button, wrong, work) {
	const words = button.textContent;
	button.disabled = true;
	button.textContent = button.dataset.busy ?? words;
	by(wrong).textContent = "";
	try {
		await work();
	} catch (error) {
		by(wrong).textContent = error.message;
	} finally {
		button.disabled = false;
		button.textContent = words;
	}
}

const login = () => ({ user: by("user").value, password: by("password").value });
const streams = () => ({ url: by("url").value.trim(), detect_url: by("detect-url").value.trim(), ...login() });
const insert = async (into, path, body) => (by(into).innerHTML = await post(`/fragments/setup/${path}`, body, "POST", "text"));
const submit = (id, wrong, work) =>
	by(id).addEventListener("submit", event => {
		event.preventDefault();
		attempt(event.target.querySelector("[type=submit]"), wrong, work);
	});

by("vendor").addEventListener("change", fill);
by("host").addEventListener("input", () => {
	onvif = "";
	fill();
});
submit("find", "cameras", () => insert("cameras", "discover", {}));
by("cameras").addEventListener("click", ({ target }) => {
	if (!target.dataset.onvif) return;
	({ onvif } = target.dataset);
	by("host").value = target.dataset.host;
	by("name").value = target.dataset.name;
	fill();
	by("streams").textContent = "";
	by("user").focus();
});
const take = select => (by(select.dataset.for).value = select.value);
by("streams").addEventListener("change", ({ target }) => target.dataset.for && take(target));
by("ask").addEventListener("click", () =>
	attempt(by("ask"), "wrong", async () => {
		await insert("streams", "onvif", { address: onvif || by("host").value.trim(), ...login() });
		by("streams").querySelectorAll("select").forEach(take);
		by("address").requestSubmit();
	})
);
submit("address", "wrong", async () => {
	await insert("seen", "probe", { ...streams(), onvif });
	by("found").hidden = false;
	by("found").scrollIntoView({ block: "nearest" });
	by("name").focus();
});
by("seen").addEventListener("click", ({ target }) => {
	if (!target.dataset.second) return;
	by("detect-url").value = target.dataset.second;
	by("address").requestSubmit();
});
submit("add", "wrong-name", async () => {
	const settings = await (await fetch("/api/v1/settings")).json();
	const name = by("name").value.trim();
	const turned = by("ptz")?.checked ? by("ptz").value : "";
	await post("/api/v1/setup/cameras", { base: settings.digest, name, record: by("record").value, onvif: turned, ...streams() });
	location.href = `/cameras/${encodeURIComponent(name)}/edit`;
});
if (!by("url").value) fill(); // typed before this script was there
if ("now" in by("find").dataset) by("find").requestSubmit();
follow({});
