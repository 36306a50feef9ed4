// What the theme's own script leaves open for the keyboard and for screen readers.
"use strict";

function mend() {
  // What is wider than its place scrolls; here it can be scrolled with the keyboard, too.
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .equation")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
  // The buttons of a block of code are no menu of the site.
  for (const buttons of document.querySelectorAll("nav.md-code__nav")) buttons.setAttribute("role", "none");
}

window.addEventListener("load", mend);
window.addEventListener("resize", mend);
document.addEventListener("toggle", mend, true); // a fold that opens
