// Trades name and password (or the token) for a cookie; neither is kept anywhere.
const form = document.getElementById("login");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(Object.fromEntries(new FormData(form))),
    });
    if (answer.ok) {
      location.replace(form.dataset.next);
      return;
    }
    document.getElementById("wrong").textContent = (await answer.json()).detail;
    form.querySelector("[type=password]").select();
  } catch {
    document.getElementById("wrong").textContent = "The appliance does not answer.";
  }
  button.disabled = false;
});
