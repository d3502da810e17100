// The scripts of pages as the appliance serves them, in one folder, and a stand-in for `page.js`.
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/**
 * Import a script; its `page.js` is what stands in `page`.
 * @param {string} script
 * @param {Record<string, unknown>} page
 */
export async function served(script, page = {}) {
	const folder = mkdtempSync(join(tmpdir(), "served-"));
	process.on("exit", () => rmSync(folder, { recursive: true }));
	for (const each of ["dashboard", "web"]) cpSync(new URL(`../../appliance/${each}/static/`, import.meta.url), folder, { recursive: true });
	globalThis.standIn = page;
	writeFileSync(join(folder, "package.json"), '{"type": "module"}');
	writeFileSync(join(folder, "page.js"), `const page = globalThis.standIn;\nexport const { ${Object.keys(page).join(", ")} } = page;\n`);
	return import(pathToFileURL(join(folder, script)).href);
}
