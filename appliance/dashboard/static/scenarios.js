// The kept scenarios: deleting one takes two clicks, as nothing brings it back.
import { again, by, coalesced, follow, light, post, say, swap } from "./page.js";
import { t } from "./texts.js";
const refresh = coalesced(async () => swap(await again(), ".head, #kept", part => part.id || part.className));

function disarm(button) {
	button.removeAttribute("data-armed");
	button.textContent = t("Delete");
}

async function remove(button) {
	button.disabled = true;
	try {
		await post(`/api/v1/scenarios/${encodeURIComponent(button.dataset.delete)}`, {}, "DELETE");
		say(t("Deleted {name}", { name: button.dataset.delete }));
		await refresh();
		by("main").focus();
	} catch (error) {
		light("lost", error.message);
		say(error.message);
		disarm(button);
		button.disabled = false;
	}
}

document.addEventListener("click", event => {
	const button = event.target.closest("button[data-delete]");
	for (const other of document.querySelectorAll("button[data-armed]")) if (other !== button) disarm(other);
	if (!button) return;
	if (button.hasAttribute("data-armed")) return remove(button);
	button.setAttribute("data-armed", "");
	button.textContent = t("Delete for good");
});
follow({});
