// Faults that a screen reader or a keyboard meets: tables and formulas that scroll could not be
// reached by keyboard, and the theme's bars of buttons on code had no names of their own.
function mend() {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]")) {
    if (wide.scrollWidth > wide.clientWidth) wide.setAttribute("tabindex", "0");
    else wide.removeAttribute("tabindex");
  }
  document.querySelectorAll(".md-code__nav").forEach((bar, i) => {
    bar.setAttribute("aria-label", `Code ${i + 1}`);
  });
}

addEventListener("load", mend);
addEventListener("resize", mend);
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
