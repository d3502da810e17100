// @ts-check
// The page's texts: English as it stands in the code, or the translation of it. Values take the place of {names}.
const texts = globalThis.TEXTS ?? { plural: () => 0 };
const lang = document.documentElement.lang || "en";
export const locale = navigator.languages.find(each => each.split("-")[0] === lang) ?? lang;

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

export const t = (text, values = {}) => fill(texts[text] ?? text, values);

// The form that fits n, which takes the place of {n}.
export function tn(one, many, n, values = {}) {
	const form = texts[one]?.[texts.plural(n)] ?? (n === 1 ? one : many);
	return fill(form, { n: number(n), ...values });
}

export const number = (n, digits = 0) => n.toLocaleString(locale, { maximumFractionDigits: digits });
