// @ts-check
// Erasing a span of a camera: the times are those of this browser, and the camera's name is typed.
import { by, follow, onSubmit, post, renew, say } from "./page.js";
import { t } from "./texts.js";
const seconds = field => new Date(field.value).getTime() / 1000;

onSubmit("erase-form", async form => {
	const { camera, begin, end, typed } = form.elements;
	const wanted = { begin: seconds(begin), end: seconds(end), typed: typed.value };
	await post(`/api/v1/cameras/${encodeURIComponent(camera.value)}/erase`, wanted);
	say(t("Erased. The receipt says what could not be reached."));
	typed.value = "";
	await renew();
	by("erasures").querySelector("summary")?.click();
});

follow({});
