// @ts-check
// Turns a camera while a button or key is held.
import { post } from "./page.js";
import { problemOf } from "./problem.js";
const pad = document.querySelector("[data-ptz]");
const [list, wrong] = pad.querySelectorAll("select, .wrong");
let held = null;
let line = Promise.resolve();

const tell = text => (wrong.textContent = text);
const send = body => (line = line.then(() => post(pad.dataset.ptz, body)).then(() => tell(""), error => tell(error.message)));

async function hold(button) {
	if (held || !button?.dataset.key) return;
	const mine = { action: "move", seconds: 2, ...JSON.parse(button.value) };
	held = mine;
	while (held === mine) {
		await send(mine);
		await new Promise(done => setTimeout(done, 900));
	}
}

function release() {
	if (held) send({ action: "stop" });
	held = null;
}

pad.addEventListener("pointerdown", event => hold(event.target));
pad.addEventListener("keydown", event => {
	const { key, target } = event;
	const button = " Enter".includes(key) ? target : [...pad.children].find(each => each.dataset.key === key);
	if (target === list || !button) return;
	event.preventDefault();
	hold(button);
});
for (const end of ["pointerup", "pointercancel", "keyup", "blur", "pagehide"]) addEventListener(end, release);
list.addEventListener("change", () => {
	send(JSON.parse(list.value));
	list.value = "";
});
const answer = await fetch(pad.dataset.ptz);
tell(answer.ok ? "" : await problemOf(answer));
for (const { token, name } of answer.ok ? (await answer.json()).presets : []) list.add(new Option(name, JSON.stringify({ action: "preset", preset: token })));
