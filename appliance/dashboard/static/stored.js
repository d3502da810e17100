// @ts-check
// What a person chose in this browser. A browser may keep nothing for us and throw, and anybody may edit what it keeps.
/** @type {(key: string, otherwise: any) => any} */
export const stored = (key, otherwise) => {
	try {
		return JSON.parse(localStorage.getItem(key) ?? "null") ?? otherwise;
	} catch {
		return otherwise;
	}
};
/** @type {(key: string, value: any) => void} */
export const store = (key, value) => {
	try {
		localStorage.setItem(key, JSON.stringify(value));
	} catch {} // for this visit it is as it was chosen
};
