// @ts-check
// A camera, found in the network or by its address: asked for its streams, tried, seen, then added, or changed.
import { by, follow, get, post, say } from "./page.js";
import { t } from "./texts.js";
let onvif = ""; // of the camera that was chosen
const { camera = "" } = by("address").dataset; // that is changed; "": a new one

function fill() {
	const make = by("vendor").selectedOptions[0].dataset;
	const host = by("host").value.trim();
	if (!host || !make.main) return;
	const shown = host[0] !== "[" && host.split(":").length > 2 ? `[${host}]` : host;
	const at = text => text.replace("{host}:554", /:\d+$/.test(shown) ? shown : `${shown}:554`).replace("{host}", shown);
	by("url").value = at(make.main);
	by("detect-url").value = at(make.sub);
	by("url").dispatchEvent(new Event("input", { bubbles: true }));
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
function streams() {
	const url = by("url").value.trim();
	const second = by("detect-url").value.trim();
	const wrong = [by("url"), by("detect-url")].find(field => field.value.trim() && !/^rtsps?:\/\/[^/]/.test(field.value.trim()));
	if (wrong || !url) {
		(wrong ?? by("url")).focus();
		throw new Error(t("The address of a stream is like rtsp://192.168.1.20:554/path. A camera found in the network, or its make, fills it in."));
	}
	return { url, detect_url: second, ...login() };
}
function onvifOf() {
	const typed = by("onvif")?.value.trim() ?? onvif;
	return !typed || /^https?:\/\//.test(typed) ? typed : `http://${typed}`;
}
const insert = async (into, path, body) => (by(into).innerHTML = await post(`/fragments/setup/${path}`, body, "POST", "text"));
const submit = (id, wrong, work) =>
	by(id)?.addEventListener("submit", event => {
		event.preventDefault();
		attempt(event.target.querySelector("[type=submit]"), wrong, work);
	});

by("vendor").addEventListener("change", fill);
by("host").addEventListener("input", () => {
	onvif = "";
	fill();
});
submit("find", "wrong", () => insert("cameras", "discover", {}));
by("cameras")?.addEventListener("click", ({ target }) => {
	if (!target.dataset.onvif) return;
	({ onvif } = target.dataset);
	by("host").value = target.dataset.host;
	by("title").value = target.dataset.name;
	fill();
	by("streams").textContent = "";
	by("user").focus();
});
const take = select => (by(select.dataset.for).value = select.value);
by("streams").addEventListener("change", ({ target }) => target.dataset.for && take(target));
by("ask").addEventListener("click", () =>
	attempt(by("ask"), "wrong", async () => {
		await insert("streams", "onvif", { address: onvif || by("host").value.trim() || new URL(by("url").value).hostname, ...login() });
		by("streams").querySelectorAll("select").forEach(take);
		by("address").requestSubmit();
	})
);
submit("address", "wrong", async () => {
	by("found").hidden = true; // the picture of another address
	await insert("seen", "probe", { ...streams(), onvif: onvifOf(), ...(camera && { camera }) });
	by("found").hidden = false;
	by("found").scrollIntoView({ block: "nearest" });
	if (!camera) by("title").focus();
});
by("seen").addEventListener("click", ({ target }) => {
	if (!target.dataset.second) return;
	by("detect-url").value = target.dataset.second;
	by("address").requestSubmit();
});
submit("add", "wrong-name", async () => {
	const settings = await get("/api/v1/settings");
	const turned = by("ptz")?.checked ? by("ptz").value : "";
	const body = { base: settings.digest, title: by("title").value.trim(), record: by("record").value, onvif: turned, ...streams() };
	const added = await post("/api/v1/setup/cameras", body);
	const picture = by("seen").querySelector("img")?.getAttribute("src") ?? "";
	location.href = `/cameras/${encodeURIComponent(added.camera)}/edit?seen=${encodeURIComponent(picture)}`;
});

// -- a camera that is here already
const url = `/api/v1/setup/cameras/${encodeURIComponent(camera)}`;
const sure = button => {
	if (!button.dataset.sure || button.dataset.armed) return true;
	button.dataset.armed = "yes";
	button.textContent = button.dataset.sure;
	return false;
};
async function change(path, body) {
	const forms = [...document.querySelectorAll("[data-base]")];
	try {
		const settings = await post(`${url}${path}`, { base: forms[0].dataset.base, ...body });
		for (const each of forms) each.dataset.base = settings.digest;
		return settings;
	} catch (error) {
		if (error.status !== 409) throw error;
		for (const each of forms) each.dataset.base = (await get("/api/v1/settings")).digest;
		throw new Error(t("Somebody changed the settings meanwhile. Save once more to keep yours, or load the page again to see theirs."));
	}
}
const kept = () => ({ title: by("title").value.trim(), record: by("record").value, audio: by("audio").checked, enabled: Boolean(by("enabled").value) });
async function save(addressed, words) {
	await change("", { ...kept(), ...addressed });
	by(words).textContent = t("Saved and in force.");
	say(t("Saved and in force."));
}
if (camera) {
	const buttons = { keep: by("keep").querySelector("[type=submit]"), address: by("save-address") };
	for (const [id, button] of Object.entries(buttons)) by(id).addEventListener("input", () => (button.disabled = false));
	by("keep").addEventListener("submit", async event => {
		event.preventDefault();
		await attempt(buttons.keep, "wrong-keep", () => save({}, "kept"));
		buttons.keep.disabled = !by("wrong-keep").textContent;
	});
	buttons.address.addEventListener("click", async () => {
		await attempt(buttons.address, "wrong", () => save({ ...streams(), onvif: by("ptz")?.checked ? by("ptz").value : onvifOf() }, "kept-address"));
		buttons.address.disabled = !by("wrong").textContent;
	});
	const asked = (id, wrong, work) =>
		by(id)?.addEventListener("submit", event => {
			event.preventDefault();
			const button = event.target.querySelector("[type=submit]");
			if (sure(button)) attempt(button, wrong, work);
		});
	asked("copy", "wrong-copy", async () => {
		await change("/copy", { to: by("copy-to").value });
		location.href = `/cameras/${encodeURIComponent(by("copy-to").value)}/edit`;
	});
	asked("remove-camera", "wrong-remove", async () => {
		await change("/remove", { recordings: by("remove-camera").elements.recordings.value });
		location.href = "/cameras";
	});
} else {
	if (!by("url").value) fill(); // typed before this script was there
	if ("now" in by("find").dataset) by("find").requestSubmit();
}
follow({});
