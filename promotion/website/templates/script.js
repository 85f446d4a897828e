for (const place of document.querySelectorAll("[data-path]"))
  place.textContent = new URL(place.dataset.path, location.href).href;

for (const block of document.querySelectorAll("pre.command")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", () => {
    // navigator.clipboard is absent on servers without TLS.
    getSelection().selectAllChildren(block.firstElementChild);
    button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  });
  block.after(button);
}

const search = document.querySelector("input[type=search]");
if (search) {
  const links = [...document.querySelectorAll("a.gpu")];
  const chosen = () => document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const link of links) {
      const name = link.parentElement.querySelector("h3").textContent.toLowerCase();
      link.hidden = !words.every((word) => name.includes(word));
    }
    document.querySelector(".none").hidden = links.some((link) => !link.hidden);
  };
  const reveal = () => {
    if (location.hash.startsWith("#gfx")) search.value = chosen() ? "" : location.hash.slice(1);
    filter();
    for (const link of links)
      link.ariaCurrent = link.parentElement.contains(chosen()) ? "true" : null;
  };
  search.closest("p").hidden = false;
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") links.find((link) => !link.hidden)?.click();
  });
  addEventListener("hashchange", reveal);
  reveal();
}
