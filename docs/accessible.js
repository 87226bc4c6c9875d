// Faults of the theme that a screen reader or a keyboard meets: tables that scroll could not be
// reached by keyboard, and the bars of buttons on code had no names of their own.
function mend() {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
    else wrap.removeAttribute("tabindex");
  }
  document.querySelectorAll(".md-code__nav").forEach((bar, i) => {
    bar.setAttribute("aria-label", `Code ${i + 1}`);
  });
}

addEventListener("load", mend);
addEventListener("resize", mend);
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
