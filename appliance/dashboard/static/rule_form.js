// @ts-check
// The form of one rule in the editor.
import { t } from "./texts.js";
import { labelOf } from "./draw.js";
import { element } from "./drawing.js";
import { freeName, idOf, setKind } from "./scene.js";
const KINDS = { enter: t("enters"), exit: t("leaves"), dwell: t("stays in"), line: t("crosses") };
const DIRECTIONS = { both: t("either way"), left_to_right: t("along the arrow"), right_to_left: t("against the arrow") };
const SEVERITIES = { info: t("an info"), warning: t("a warning"), alert: t("an alert") };
const STARTS = { moving: t("after it moved off"), report: t("at once"), ignore: t("not at all") };
const DAYS = { mon: t("Mon"), tue: t("Tue"), wed: t("Wed"), thu: t("Thu"), fri: t("Fri"), sat: t("Sat"), sun: t("Sun") };
const VERDICTS = { confirmed: t("when confirmed"), rechecked: t("when found again"), rejected: t("when rejected") };

/**
 * A field to tick: whether a name is in a list.
 * @param {(names: string[]) => void} take the list with the name, or without
 */
export function tick(parent, text, names, name, take) {
	const label = element("label", {}, parent);
	const on = names.includes(name);
	const field = element("input", on ? { type: "checkbox", checked: "" } : { type: "checkbox" }, label);
	field.addEventListener("change", () => take(on ? names.filter(each => each !== name) : [...names, name]));
	label.append(` ${text}`);
}

export class RuleForm {
	/**
	 * @param {import("./editor.js").Editor} editor
	 * @param {Rule} rule
	 * @param {boolean} isOpen whether *More* is
	 */
	constructor(editor, rule, isOpen) {
		this.editor = editor;
		this.rule = rule;
		/** @type {any} */
		this.form = document.createElement("fieldset");
		this.form.dataset.rule = rule.name;
		element("legend", {}, this.form, rule.title || rule.name);
		this.input(t("Name"), { value: rule.title || rule.name, maxlength: 64 }, ({ value }) => this.rename(value.trim()));
		this.labels();
		this.condition();
		this.select(t("raise"), SEVERITIES, rule.severity ?? "warning", severity => (rule.severity = severity));
		this.share(t("score at least"), { value: rule.score_min ?? 0.5 }, value => {
			rule.score_min = value ? Number(value) : undefined;
		});
		for (const [key, text] of [["height_min", t("height at least")], ["height_max", t("height at most")]])
			this.share(text, { value: rule[key] ?? "", placeholder: t("any") }, value => this.set(key, value && Number(value)));
		const hours = (rule.schedule?.hours ?? []).join(", ");
		this.input(t("only at"), { value: hours, placeholder: t("always, or 22:00-06:00") }, ({ value }) => {
			const spans = value.split(",").map(each => each.trim()).filter(Boolean);
			const { hours: _, ...days } = rule.schedule ?? {};
			const schedule = spans.length ? { ...days, hours: spans } : days;
			this.set("schedule", Object.keys(schedule).length && schedule);
		});
		this.more(isOpen);
		const remove = element("button", { type: "button", class: "plain" }, this.form, t("Remove {name}", { name: rule.title || rule.name }));
		remove.onclick = () => editor.change(() => editor.scene.rules.splice(editor.scene.rules.indexOf(rule), 1));
	}
	// A rule that was saved keeps its id, and with it its history: only its name for people changes.
	rename(title) {
		const { rule, editor } = this;
		if (!title) return;
		const others = editor.scene.rules.filter(each => each !== rule).map(each => each.name);
		if (!editor.isSaved(rule)) rule.name = freeName(idOf(title), others);
		this.form.dataset.rule = rule.name;
		this.set("title", title !== rule.name && title);
	}
	// A new rule that nobody named yet is called after what it watches.
	retitled(work) {
		const { rule, editor } = this;
		const isOwn = !editor.isSaved(rule) && rule.title === editor.titleOf(rule);
		work();
		if (isOwn) this.rename(editor.titleOf(rule));
	}
	more(isOpen) {
		const { rule } = this;
		const whole = this.form;
		this.form = element("details", isOpen ? { class: "more", open: "" } : { class: "more" }, whole);
		element("summary", {}, this.form, t("More"));
		const number = { type: "number", min: 0, max: 86400 };
		this.input(t("silent after an alert, in seconds"), { ...number, value: rule.cooldown_s ?? 0 }, ({ value }) => this.set("cooldown_s", Number(value)));
		if (["enter", "dwell"].includes(rule.kind))
			this.select(t("what is there at the start is reported"), STARTS, rule.at_start ?? (rule.kind === "enter" ? "moving" : "report"), way => (rule.at_start = way));
		const days = rule.schedule?.days ?? Object.keys(DAYS);
		const group = element("div", { class: "labels", role: "group", "aria-label": t("On these days") }, this.form);
		for (const [day, text] of Object.entries(DAYS))
			tick(group, text, days, day, found => this.editor.change(() => this.set("schedule", { ...rule.schedule, days: Object.keys(DAYS).filter(each => found.includes(each)) })));
		const asks = element("div", { class: "labels" }, this.form);
		tick(asks, t("may be sent to the cloud for a verdict"), rule.escalate === false ? [] : ["cloud"], "cloud", found =>
			this.editor.change(() => {
				rule.escalate = found.length ? undefined : false;
			}));
		this.input(t("question for the cloud"), { value: rule.ask ?? "", maxlength: 500, placeholder: t("made from the rule") }, ({ value }) => this.set("ask", value.trim()));
		for (const [verdict, text] of Object.entries(VERDICTS))
			this.select(text, { "": t("as for all rules"), ...SEVERITIES }, rule.severity_on_verdict?.[verdict] ?? "", severity => {
				const { [verdict]: _, ...others } = rule.severity_on_verdict ?? {};
				const found = severity ? { ...others, [verdict]: severity } : others;
				this.set("severity_on_verdict", Object.keys(found).length && found);
			});
		this.form = whole;
	}
	set(key, value) {
		if (value) this.rule[key] = value;
		else delete this.rule[key];
	}
	labels() {
		const { editor, rule } = this;
		const group = element("div", { class: "labels", role: "group", "aria-label": t("What it watches for") }, this.form);
		const wanted = rule.labels ?? ["person"];
		for (const name of new Set([...editor.labels, ...wanted]))
			tick(group, name, wanted, labelOf(name), found => editor.change(() => (rule.labels = found)));
	}
	condition() {
		const { editor, rule } = this;
		this.select(t("when it"), KINDS, rule.kind, kind => this.retitled(() => setKind(rule, kind, editor.scene)));
		const key = rule.kind === "line" ? "line" : "zone";
		const names = new Set([rule[key] ?? "", ...Object.keys(editor.scene[`${key}s`])]);
		const choices = Object.fromEntries([...names].map(name => [name, name || t("(none: add one)")]));
		this.select(key === "line" ? t("the line") : t("the zone"), choices, rule[key] ?? "", name => this.retitled(() => (rule[key] = name)));
		if (rule.kind === "dwell")
			this.input(t("for seconds"), { type: "number", min: 1, max: 86400, value: rule.seconds }, ({ value }) => (rule.seconds = Number(value)));
		if (rule.kind === "line") this.select(t("going"), DIRECTIONS, rule.direction ?? "both", way => (rule.direction = way));
	}
	select(text, choices, chosen, take) {
		const label = element("label", {}, this.form, `${text} `);
		const field = element("select", {}, label);
		for (const [value, shown] of Object.entries(choices)) element("option", value === chosen ? { value, selected: "" } : { value }, field, shown);
		field.onchange = () => this.editor.change(() => take(field.value));
	}
	input(text, attributes, take) {
		const field = element("input", attributes, element("label", {}, this.form, `${text} `));
		field.onchange = () => this.editor.change(() => take(field));
	}
	share(text, attributes, take) {
		this.input(text, { type: "number", min: 0, max: 1, step: 0.01, ...attributes }, ({ value }) => take(value));
	}
}
