// Forms that are one request: each field under its name; what holds JSON is parsed, or merged into the request.
import { again, light, post, say, swap } from "/static/page.js";
import { t } from "/static/texts.js";

const value = (field) =>
  field.type === "checkbox" ? field.checked : field.dataset.json === undefined ? field.value : JSON.parse(field.value);

function bodyOf(form, button) {
  const body = {};
  for (const field of form.elements) {
    if (field.dataset.merge !== undefined && (field.type !== "submit" || field === button)) {
      Object.assign(body, JSON.parse(field.dataset.merge || field.value));
    } else if (field.name) body[field.name] = value(field);
  }
  return body;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.post) return;
  event.preventDefault();
  const wrong = form.querySelector(".wrong");
  const button = event.submitter;
  if (wrong) wrong.textContent = "";
  button.disabled = true;
  try {
    await post(form.dataset.post + (form.querySelector("[data-name]")?.value || ""), bodyOf(form, button));
    say(t("Done."));
    const open = form.closest("details");
    if (open) open.open = false;
    swap(await again(), "#arming, [data-swap]");
  } catch (error) {
    if (wrong) wrong.textContent = error.message;
    else light("lost", error.message);
  } finally {
    button.disabled = false;
  }
});
