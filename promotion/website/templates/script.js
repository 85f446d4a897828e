for (const place of document.querySelectorAll("[data-path]"))
  place.textContent = new URL(place.dataset.path, location.href).href;
function reveal() {
  const chosen = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (chosen instanceof HTMLDetailsElement) chosen.open = true;
}
addEventListener("hashchange", reveal);
reveal();
