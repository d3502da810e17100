// @ts-check
// A span explained: the video, a needle through all rows of the strip, boxes on it, and a job that decides it again.
import { attempt, by, follow, get, post } from "./page.js";
import { t } from "./texts.js";
const { camera, from, to, job, state, recorded } = by("why").dataset;
const [t0, t1] = [Number(from), Number(to)];
const api = `/api/v1/cameras/${encodeURIComponent(camera)}`;
const video = by("video");
let wanted = t0;
let start = t0; // the camera's time at the video's beginning
let found = [];

const wrong = error => (by("wrong").textContent = error.message);

function note(words) {
	by("note").hidden = false;
	by("note").textContent = words;
}

function show() {
	const at = start + video.currentTime;
	const x = `${(100 * (at - t0)) / (t1 - t0)}%`;
	for (const line of document.querySelectorAll(".needle")) for (const end of ["x1", "x2"]) line.setAttribute(end, x);
	const near = found.findLast(each => each.t <= at + 0.05)?.t;
	by("found").replaceChildren(
		...found.filter(each => each.t === near && at - near < 1).map(({ box: [x1, y1, x2, y2], use }) => {
			const rect = document.createElementNS(by("found").namespaceURI, "rect");
			const looks = { x: x1, y: y1, width: x2 - x1, height: y2 - y1, class: use };
			for (const key in looks) rect.setAttribute(key, looks[key]);
			return rect;
		})
	);
}

function seek(at) {
	wanted = at;
	video.currentTime = Math.max(0, at - start);
}

async function load() {
	const cut = await get(`${api}/recording?from=${t0}&to=${t1}`);
	start = cut.t_start;
	video.src = cut.url;
	video.onloadeddata = () => seek(wanted);
	video.onerror = () => note(t("This browser cannot play this recording."));
	if (job && state === "done") found = (await get(`${api}/why/replay/${job}`)).replay.detections;
	show();
}

async function watch(id) {
	by("share").hidden = by("cancel").hidden = false;
	by("cancel").onclick = () => post(`${api}/jobs/${id}`, {}, "DELETE").catch(wrong);
	for (;;) {
		const now = await get(`${api}/jobs/${id}`);
		by("share").value = now.share;
		if (now.state !== "running") return location.replace(now.page);
		await new Promise(done => setTimeout(done, 700));
	}
}

async function run() {
	const begun = await post(`${api}/why/replay`, { t_start: t0, t_end: t1 });
	history.replaceState(null, "", begun.page);
	await watch(begun.id);
}

by("run")?.addEventListener("click", ({ target }) => attempt(target, run));
by("rows").onclick = event => {
	const row = event.target.closest("svg")?.getBoundingClientRect();
	if (row) seek(t0 + ((event.clientX - row.left) / row.width) * (t1 - t0));
};
for (const button of document.querySelectorAll("[data-t]")) button.onclick = () => seek(Number(button.dataset.t));
video.ontimeupdate = video.onseeked = show;
if (by("run") && state === "running") attempt(by("run"), () => watch(job));
if (recorded !== undefined) load().catch(error => note(error.message));
follow({});
