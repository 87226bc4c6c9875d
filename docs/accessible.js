// Faults that a screen reader or a keyboard meets: tables and formulas that scroll could not be
// reached by keyboard, and menus and bars of buttons on code had names in common.
function mend() {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]")) {
    if (wide.scrollWidth > wide.clientWidth) wide.setAttribute("tabindex", "0");
    else wide.removeAttribute("tabindex");
  }
  const seen = new Map();  // landmarks of one name: menus below headings that are called alike
  for (const menu of document.querySelectorAll("nav[aria-label]:not(.md-code__nav)")) {
    const name = menu.dataset.name ??= menu.getAttribute("aria-label");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    const label = seen.get(name) > 1 ? `${name} ${seen.get(name)}` : name;
    if (menu.getAttribute("aria-label") !== label) menu.setAttribute("aria-label", label);
  }
  document.querySelectorAll(".md-code__nav").forEach((bar, i) => {
    bar.setAttribute("aria-label", `Code ${i + 1}`);
  });
}

addEventListener("load", mend);
addEventListener("resize", mend);
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
