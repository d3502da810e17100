// Trades the token for a cookie; the token is kept nowhere.
const form = document.getElementById("login");
const token = document.getElementById("token");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: token.value }),
    });
    if (answer.ok) {
      location.replace(form.dataset.next);
      return;
    }
    document.getElementById("wrong").textContent = (await answer.json()).detail;
    token.select();
  } catch {
    document.getElementById("wrong").textContent = "The appliance does not answer.";
  }
  button.disabled = false;
});
