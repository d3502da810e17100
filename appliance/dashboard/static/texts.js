// The page's texts: English as it stands in the code, or the translation of it. Values take the place of {names}.
export const t = (text, values = {}) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
