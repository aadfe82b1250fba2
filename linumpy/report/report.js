"use strict";

// --- Tables: click a heading to sort, type to search.

function value(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const number = Number.parseFloat((cell?.dataset.sort ?? text).replace(/[\u202f,]/g, ""));
  return { text, number };
}

function sortBy(table, column, heading) {
  const body = table.tBodies[0];
  const rows = [...body.rows].filter((row) => row.cells[0].tagName === "TD");
  const rising = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const numeric = heading.classList.contains("num");
  const sign = rising ? 1 : -1;
  rows.sort((a, b) => {
    const [x, y] = [value(a.cells[column]), value(b.cells[column])];
    if (!numeric) return sign * x.text.localeCompare(y.text, undefined, { numeric: true });
    // What has no number comes last, whichever way the rest is sorted.
    return Number.isNaN(x.number) - Number.isNaN(y.number) || sign * (x.number - y.number) || 0;
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.data")) {
  const headings = table.querySelectorAll("th");
  headings.forEach((heading, column) => {
    heading.tabIndex = 0;
    heading.title = "Sort";
    heading.addEventListener("click", () => sortBy(table, column, heading));
    heading.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sortBy(table, column, heading);
    });
  });
  if (table.rows.length < 6) continue;
  const search = document.createElement("input");
  search.type = "search";
  search.className = "search";
  search.placeholder = "Search in this table";
  search.setAttribute("aria-label", "Search in this table");
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of [...table.tBodies[0].rows].slice(1)) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
  table.parentElement.before(search);
}

// --- The brain: three planes, moved by sliders or by a click.

for (const brain of document.querySelectorAll(".brain")) {
  const views = [...brain.querySelectorAll(".view")];
  const place = [0.5, 0.5, 0.5];
  const show = () => {
    for (const view of views) {
      const { axis, rows, columns, mm } = view.dataset;
      const frames = Number(view.dataset.frames);
      const style = view.querySelector(".image").style;
      const frame = Math.min(frames - 1, Math.floor(place[axis] * frames));
      style.setProperty("--i", frame);
      style.setProperty("--row", place[rows]);
      style.setProperty("--column", place[columns]);
      const slider = view.querySelector("input");
      slider.value = frame;
      const where = frames > 1 ? (frame / (frames - 1)) * mm : 0;
      view.querySelector("output").textContent = `${where.toFixed(2)} mm`;
    }
  };
  for (const view of views) {
    view.querySelector("input").addEventListener("input", (event) => {
      place[view.dataset.axis] = (Number(event.target.value) + 0.5) / Number(view.dataset.frames);
      show();
    });
    const move = (event) => {
      const box = view.querySelector(".image").getBoundingClientRect();
      const share = (part) => Math.min(0.999, Math.max(0, part));
      place[view.dataset.columns] = share((event.clientX - box.left) / box.width);
      place[view.dataset.rows] = share((event.clientY - box.top) / box.height);
      show();
    };
    const image = view.querySelector(".image");
    image.addEventListener("pointerdown", move);
    image.addEventListener("pointermove", (event) => event.buttons && move(event));
  }
  show();
}

for (const comparison of document.querySelectorAll(".compare figure")) {
  comparison.querySelector("input").addEventListener("input", (event) => {
    comparison.querySelector(".image").style.setProperty("--at", `${event.target.value}%`);
  });
}

// --- Large plots are packed, and unfold at once; those of single slices when they are opened.

async function unpack(place) {
  const bytes = Uint8Array.from(atob(place.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const page = new DOMParser().parseFromString(await new Response(stream).text(), "text/html");
  place.replaceWith(...page.body.childNodes);
}

for (const place of document.querySelectorAll(".packed")) {
  if (!place.closest("details:not([open])")) unpack(place);
}
for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => {
    for (const place of details.querySelectorAll(".packed")) unpack(place);
  });
}

// --- A click enlarges an image or a plot; arrows lead to its neighbours.

const dialog = document.createElement("dialog");
const shown = document.createElement("div");
const caption = document.createElement("p");
const buttons = document.createElement("div");
shown.className = "shown";
buttons.className = "buttons";
let current = null;

function enlarge(figure) {
  current = figure;
  shown.replaceChildren(figure.querySelector(".image, svg").cloneNode(true));
  const told = figure.querySelector("figcaption .title, h3, figcaption");
  caption.textContent = told ? told.textContent.trim().replace(/\s+/g, " ") : "";
  if (!dialog.open) dialog.showModal();
}

function step(by) {
  const all = [...document.querySelectorAll("[data-enlarge]")].filter((f) => f.offsetParent);
  enlarge(all[(all.indexOf(current) + by + all.length) % all.length]);
}

for (const [words, action] of [
  ["◀", () => step(-1)],
  ["▶", () => step(1)],
  ["Close", () => dialog.close()],
]) {
  const button = document.createElement("button");
  button.textContent = words;
  button.addEventListener("click", action);
  buttons.append(button);
}
dialog.append(shown, caption, buttons);
document.body.append(dialog);
shown.addEventListener("click", () => dialog.close());
dialog.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
document.addEventListener("click", (event) => {
  const figure = event.target.closest("[data-enlarge]");
  if (figure && event.target.closest(".image, svg")) enlarge(figure);
});

// --- Light or dark: the system's choice until the button is pressed.

const root = document.documentElement;
const toggle = document.createElement("button");
toggle.textContent = "Light / dark";
toggle.addEventListener("click", () => {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
document.querySelector("header > div").append(toggle);
