"use strict";

// Renews the sections of the page that changed, and keeps what is in view where it is.

const POLL_MS = 2000;
const sections = (page) => [...page.querySelectorAll("main > section")];
const shown = new Map();
let text;
let lost;

function swap(fresh) {
  const anchor = sections(document).find((s) => s.getBoundingClientRect().bottom > 0);
  const top = anchor?.getBoundingClientRect().top;
  for (const section of sections(fresh)) {
    if (shown.get(section.id) === section.innerHTML) continue;
    shown.set(section.id, section.innerHTML);
    const old = document.getElementById(section.id);
    for (const details of old.querySelectorAll("details[open]")) {
      const same = section.querySelector(`#${details.id}`);
      if (same) same.open = true;
    }
    old.replaceWith(document.adoptNode(section));
  }
  document.title = fresh.title;
  if (anchor && window.scrollY > 0) {
    const moved = document.getElementById(anchor.id).getBoundingClientRect().top - top;
    window.scrollBy({ top: moved, behavior: "instant" });
  }
}

async function renew() {
  const notice = document.getElementById("lost");
  try {
    const answer = await fetch(location.pathname, { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.statusText);
    const renewed = await answer.text();
    if (renewed !== text) {
      text = renewed;
      swap(new DOMParser().parseFromString(text, "text/html"));
    }
    lost = undefined;
    notice.hidden = true;
    if (/<body data-ended>/.test(text)) return;
  } catch {
    lost ??= new Date().toLocaleTimeString();
    notice.textContent = `No answer from the follower since ${lost}: what you see is old.`;
    notice.hidden = false;
  }
  setTimeout(renew, POLL_MS);
}

for (const section of sections(document)) shown.set(section.id, section.innerHTML);
renew();
