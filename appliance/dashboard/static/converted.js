// @ts-check
// Asks for a recording until it is converted for this browser; `report` hears how far it is.
import { problemOf } from "./problem.js";
import { t } from "./texts.js";
// null: it is no longer wanted.
export async function converted(url, report, wanted) {
	for (let ms = 50; wanted(); ms = Math.min(300, 1.3 * ms)) {
		const answer = await fetch(url);
		if (!answer.ok) throw new Error(await problemOf(answer));
		const found = await answer.json();
		if (answer.status !== 202) return found;
		report(t("Converting for this browser: {done} %", { done: Math.round(100 * found.progress) }));
		await new Promise(done => setTimeout(done, ms));
	}
	return null;
}
