// Trades name and password (or the token, or the code of the first start) for a cookie; none is kept anywhere.
import { t } from "./texts.js";
const form = document.getElementById("login");

form.addEventListener("submit", async event => {
	event.preventDefault();
	const button = form.querySelector("button");
	button.disabled = true;
	try {
		const answer = await fetch(form.dataset.to || "/login", {
			method: "POST",
			headers: { "Content-Type": "application/json" },
			body: JSON.stringify(Object.fromEntries(new FormData(form)))
		});
		if (answer.ok) {
			location.replace(form.dataset.next);
			return;
		}
		const problem = await answer.json();
		document.getElementById("wrong").textContent = problem.detail;
		if (problem.type === "urn:vedette:code-wanted") {
			for (const each of document.querySelectorAll("#code, [for=code]")) each.hidden = false;
			form.elements.code.select();
		} else form.querySelector("[type=password]").select();
	} catch {
		document.getElementById("wrong").textContent = t("The appliance does not answer.");
	}
	button.disabled = false;
});
