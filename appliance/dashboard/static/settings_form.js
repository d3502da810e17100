// @ts-check
// Forms of settings: a field is a key; only what changed is sent, and what is wrong stands beside its field.
import { follow, get, made, post, reload, say, swap } from "./page.js";
import { t } from "./texts.js";

const COST_AFTER_MS = 500; // nobody who types waits for an answer to each key

const settingsOf = form => [...form.querySelectorAll(".setting")];
const ticked = setting => [...setting.querySelectorAll("input:checked")].map(box => box.value);

// The value as the site file has it; null: the key goes, and the default counts.
function read(setting) {
	const { kind, scale } = setting.dataset;
	const field = setting.querySelector("input, select");
	if (kind === "choices") return ticked(setting);
	if (kind === "switch") return field.checked;
	const text = field.value.trim();
	if (kind === "list") return text.split(",").map(each => each.trim()).filter(Boolean);
	if (!text) return field.validity.badInput ? NaN : null;
	if (kind === "number" || kind === "whole") return Number((Number(text) / Number(scale)).toPrecision(12));
	return kind === "choice" && ["true", "false"].includes(text) ? text === "true" : text;
}

const stateOf = form => JSON.stringify(settingsOf(form).map(read));

// The form as the page brought it: who types before this script runs has changed something, too.
function asBrought(form) {
	const template = document.createElement("template");
	template.innerHTML = form.outerHTML;
	return template.content.firstElementChild;
}

function changesOf(form, before) {
	return settingsOf(form).flatMap((setting, n) => {
		const value = read(setting);
		if (JSON.stringify(value) === JSON.stringify(before[n])) return [];
		const path = setting.dataset.path ? JSON.parse(setting.dataset.path) : setting.dataset.key.split(".");
		return value === null && setting.dataset.null === undefined ? { path, remove: true } : { path, value };
	});
}

// What the appliance found wrong, each beside its field; the rest below. `line 7: storage.keep_hours: must be …`
function blame(form, text) {
	let first;
	const rest = text.split("; ").filter(part => {
		const setting = settingsOf(form).find(each => part.includes(`${each.dataset.key}: `));
		if (!setting) return true;
		setting.querySelector(".wrong").textContent = part.slice(part.indexOf(`${setting.dataset.key}: `) + setting.dataset.key.length + 2);
		first ??= setting;
		return false;
	});
	form.querySelector("[data-general]").textContent = rest.map(part => part.replace(/^line \d+: /, "")).join("; ");
	(first?.querySelector("input, select") ?? form.querySelector("[data-general]")).scrollIntoView({ block: "center" });
	first?.querySelector("input, select").focus();
}

class SettingsForm {
	asks = 0;
	constructor(form) {
		this.form = form;
		this.saved = stateOf(asBrought(form));
		this.button = form.querySelector("[type=submit]");
		for (const kind of ["input", "change"]) form.addEventListener(kind, () => this.changed());
		form.addEventListener("submit", event => {
			event.preventDefault();
			this.save();
		});
		form.querySelector("[data-mine]").onclick = () => this.saveMine();
		form.querySelector("[data-theirs]").onclick = () => this.show();
		this.changed();
	}
	get isChanged() {
		return stateOf(this.form) !== this.saved;
	}
	changed() {
		this.button.disabled = !this.isChanged;
		if (this.isChanged) this.form.querySelector("[data-saved]").textContent = "";
		clearTimeout(this.asking);
		this.asking = setTimeout(() => this.tellCost(), COST_AFTER_MS);
	}
	// What the change deletes at once and what room it takes; what is wrong with it is said when it is saved.
	async tellCost() {
		const changes = this.isChanged ? changesOf(this.form, JSON.parse(this.saved)) : [];
		const list = this.form.querySelector("[data-cost]");
		const ask = ++this.asks;
		let cost = [];
		if (changes.length && !settingsOf(this.form).some(each => Number.isNaN(read(each))))
			cost = await post("/api/v1/settings/check", { base: this.form.dataset.base, changes }).then(found => found.cost, () => []);
		if (ask !== this.asks) return; // of a change that was changed again
		list.replaceChildren(...cost.map(text => made("li", { textContent: text })));
		list.hidden = !cost.length;
	}
	async save() {
		const { form } = this;
		for (const each of form.querySelectorAll(".wrong")) each.textContent = "";
		const broken = settingsOf(form).find(each => Number.isNaN(read(each)));
		if (broken) return blame(form, `${broken.dataset.key}: ${t("That is no number.")}`);
		this.button.disabled = true;
		try {
			const changes = changesOf(form, JSON.parse(this.saved));
			const { digest } = await post("/api/v1/settings", { base: form.dataset.base, changes, why: `settings: ${form.dataset.form}` });
			for (const each of document.querySelectorAll("[data-base]")) each.dataset.base = digest;
			await this.show(t("Saved and in force."));
		} catch (error) {
			if (error.status === 409) form.querySelector("[data-met]").hidden = false;
			else blame(form, error.message);
			this.changed();
		}
	}
	// Take the settings that others saved meanwhile as the base, and put what this form changed on top.
	async saveMine() {
		try {
			this.form.dataset.base = (await get("/api/v1/settings")).digest;
		} catch (error) {
			return blame(this.form, error.message);
		}
		this.form.querySelector("[data-met]").hidden = true;
		await this.save();
	}
	async show(words = "") {
		const { form } = this;
		const name = form.dataset.form;
		this.saved = stateOf(form); // nothing is lost any more
		swap(await reload(), `[data-swap="${form.closest("[data-swap]").dataset.swap}"]`); // another form may hold what was typed
		begin();
		say(words);
		const fresh = document.querySelector(`[data-form="${name}"]`);
		if (fresh) fresh.querySelector("[data-saved]").textContent = words;
	}
}

/** @type {SettingsForm[]} */
let forms = [];
function begin() {
	forms = [...document.querySelectorAll("form.settings")].map(form => forms.find(each => each.form === form) ?? new SettingsForm(form));
}

document.addEventListener("submit", async event => {
	const form = event.target;
	if (!form.dataset.remove) return;
	event.preventDefault();
	try {
		await post("/api/v1/settings", { base: form.dataset.base, changes: [{ path: [form.dataset.remove], remove: true }], why: `settings: ${form.dataset.remove}` });
		swap(await reload(), "[data-swap]");
		begin();
		say(t("Saved and in force."));
	} catch (error) {
		form.querySelector(".wrong").textContent = error.message;
	}
});
addEventListener("beforeunload", event => forms.some(each => each.form.isConnected && each.isChanged) && event.preventDefault());
begin();
follow({});
