// Above a table that is wider than its place, that it scrolls.
function hint() {
  for (const place of document.querySelectorAll(".scroll")) {
    const wider = place.scrollWidth > place.clientWidth + 1;
    let said = place.previousElementSibling;
    if (!said || !said.classList.contains("hint")) {
      if (!wider) continue;
      said = document.createElement("p");
      said.className = "hint";
      said.textContent = "This table scrolls sideways \u2192";
      place.before(said);
    }
    said.hidden = !wider;
  }
}
document.addEventListener("DOMContentLoaded", hint);
window.addEventListener("resize", hint);
document.addEventListener("toggle", hint, true);
