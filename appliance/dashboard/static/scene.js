// @ts-check
// Zones, lines and rules as values: what the editor does to them, without a page. Points are shares of the frame.
const EDGE_MIN = 3; // corners of the smallest zone

/** @type {(x: number) => number} a share as it is stored: inside the frame, to a thousandth */
export const round = x => Math.round(Math.min(1, Math.max(0, x)) * 1000) / 1000;

/** @type {() => Scene} */
export const emptyScene = () => ({ zones: {}, ignore: [], lines: {}, rules: [] });

const LETTERS = { ä: "ae", ö: "oe", ü: "ue", ß: "ss", æ: "ae", ø: "oe", å: "aa", ł: "l" };
/**
 * The id of a name for people: "Straße, Süd" becomes "strasse-sued". What is an id already stays.
 * @param {string} title
 */
export function idOf(title) {
	if (/^[A-Za-z0-9_-]{1,64}$/.test(title)) return title;
	const plain = title.toLowerCase().replace(/[äöüßæøåł]/g, letter => LETTERS[letter]).normalize("NFD").replace(/\p{M}/gu, "");
	return plain.replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-|-$/g, "") || "rule";
}

/**
 * The first of stem, stem-2, stem-3 … that is not taken.
 * @param {string} stem
 * @param {string[]} taken
 */
export function freeName(stem, taken) {
	for (let n = 1; ; n++) {
		const name = n > 1 ? `${stem}-${n}` : stem;
		if (!taken.includes(name)) return name;
	}
}

/**
 * The key of a rule that names a shape of this kind.
 * @param {ShapeKind} kind
 * @returns {"zone" | "line"}
 */
export const keyOf = kind => (kind === "zones" ? "zone" : "line");

/**
 * Rename a zone or line, in the rules that name it too. Its place among the others stays.
 * @param {Scene} scene
 * @param {ShapeKind} kind
 * @param {string} name
 * @param {string} wanted
 */
export function rename(scene, kind, name, wanted) {
	scene[kind] = Object.fromEntries(Object.entries(scene[kind]).map(([key, value]) => [key === name ? wanted : key, value]));
	for (const rule of scene.rules) if (rule[keyOf(kind)] === name) rule[keyOf(kind)] = wanted;
	if (kind !== "zones") return;
	scene.ignore = scene.ignore.map(each => (each === name ? wanted : each));
	const { [name]: saved = name, ...others } = scene.renamed ?? {};
	scene.renamed = { ...others, [wanted]: saved };
}

/**
 * The changes of what names zones elsewhere in the site file, so that a renamed zone keeps them: zones of other cameras
 * that adjoin, days that its evidence is kept, what is painted over.
 * @param {any} site as it is saved
 * @param {string} camera
 * @param {Scene} now
 * @returns {Change[]}
 */
export function followRenames(site, camera, now) {
	const names = Object.fromEntries(Object.entries(now.renamed ?? {}).filter(([name, saved]) => name !== saved && now.zones[name]).map(pair => pair.reverse()));
	const { quota = {}, privacy = {} } = site.cameras[camera] ?? {};
	const days = quota.zone_days && Object.fromEntries(Object.entries(quota.zone_days).map(([zone, value]) => [names[zone] ?? zone, value]));
	const place = each => names[each.slice(camera.length + 1)] ?? each.slice(camera.length + 1);
	const moved = each => (each.startsWith(`${camera}/`) ? `${camera}/${place(each)}` : each);
	const borders = site.alerts?.adjoining?.map(border => ({ ...border, zones: border.zones.map(moved) }));
	return [
		{ path: ["alerts", "adjoining"], before: site.alerts?.adjoining, value: borders },
		{ path: ["cameras", camera, "quota", "zone_days"], before: quota.zone_days, value: days },
		{ path: ["cameras", camera, "privacy", "mask"], before: privacy.mask, value: privacy.mask?.map(each => names[each] ?? each) }
	]
		.filter(({ before, value }) => JSON.stringify(before) !== JSON.stringify(value))
		.map(({ path, value }) => ({ path, value }));
}

/**
 * The names of the rules that a shape cannot be removed without.
 * @param {Scene} scene
 * @param {string} name
 */
export const rulesOn = (scene, name) => scene.rules.filter(rule => rule.zone === name || rule.line === name).map(rule => rule.name);

/**
 * Give a rule another kind: the keys that only the old one has go.
 * @param {Rule} rule
 * @param {Rule["kind"]} kind
 * @param {Scene} scene
 */
export function setKind(rule, kind, scene) {
	const kept = kind === "line" ? "line" : "zone";
	rule.kind = kind;
	for (const key of ["zone", "line", "seconds", "direction"]) if (key !== kept) delete rule[key];
	rule[kept] ??= Object.keys(scene[`${kept}s`])[0] ?? "";
	if (kind === "dwell") rule.seconds = 20;
}

/**
 * The changes of the site file that make one scene of the other.
 * @param {string} camera
 * @param {Scene} before
 * @param {Scene} now
 * @returns {Change[]}
 */
export function changesOf(camera, before, now) {
	return ["zones", "ignore", "lines", "rules"]
		.filter(key => JSON.stringify(before[key]) !== JSON.stringify(now[key]))
		.map(key => ({ path: ["cameras", camera, key], ...(Object.keys(now[key]).length ? { value: now[key] } : { remove: true }) }));
}

/**
 * The point between a corner and the next one; the last corner's next is the first.
 * @param {Point[]} points
 * @param {number} corner
 * @returns {Point}
 */
export function between(points, corner) {
	const [a, b] = [points[corner], points[(corner + 1) % points.length]];
	return [round((a[0] + b[0]) / 2), round((a[1] + b[1]) / 2)];
}

/** @type {(points: Point[]) => boolean} */
export const canLoseCorner = points => points.length > EDGE_MIN;

/** @type {(points: Point[]) => Point} the corner at the top left, where the name of a zone stands */
export const topLeft = points => points.reduce((a, b) => (a[0] + a[1] < b[0] + b[1] ? a : b));

/**
 * A point moved by an arrow key; undefined if it is another key.
 * @param {Point} point
 * @param {string} key
 * @param {boolean} shift
 * @returns {Point | undefined}
 */
export function stepped([x, y], key, shift) {
	const step = shift ? 0.05 : 0.005;
	const way = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[key];
	return way && [round(x + way[0]), round(y + way[1])];
}

/**
 * The arrow across a line from a to b that shows `left_to_right`: its shaft and head, in the unit of a, b and dot.
 * @param {Point} a
 * @param {Point} b
 * @param {number} dot
 */
export function arrowOf([x1, y1], [x2, y2], dot) {
	const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
	const long = Math.hypot(x2 - x1, y2 - y1) || 1;
	const [nx, ny] = [-(y2 - y1) / long, (x2 - x1) / long];
	const [hx, hy] = [mx + nx * dot * 4, my + ny * dot * 4];
	const wing = turn => [hx - nx * dot * 1.4 + turn * ny * dot * 1.1, hy - ny * dot * 1.4 - turn * nx * dot * 1.1];
	return { tail: [mx - nx * dot * 4, my - ny * dot * 4], tip: [hx, hy], head: [[hx, hy], wing(1), wing(-1)] };
}

/**
 * A zone around the feet of a bounding box: its last quarter and a little below.
 * @param {Box} box
 * @returns {Point[]}
 */
export function feetOf([x1, y1, x2, y2]) {
	const [top, floor] = [round(y2 - (y2 - y1) / 4), round(y2 + (y2 - y1) / 8)];
	return [[x1, top], [x2, top], [x2, floor], [x1, floor]];
}
