"use strict";

// Three planes of a volume. The server renders the part of a plane that is in view.

const LEAST_PX = 180;
const place = [0.5, 0.5, 0.5];
let zoom = 1;
let info;
let panels = [];

const make = (tag, className, parent) => {
  const element = document.createElement(tag);
  element.className = className;
  parent?.append(element);
  return element;
};

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// The part in view along an axis: all of it, or a part about the cross-hair.
function range(axis) {
  const side = 1 / zoom;
  const low = clamp(place[axis] - side / 2, 0, 1 - side);
  return [low, low + side];
}

function niceLength(limit) {
  const power = 10 ** Math.floor(Math.log10(limit));
  return power * [5, 2, 1].find((step) => step * power <= limit * (1 + 1e-9));
}

function contrast() {
  const channel = Number(document.querySelector("select").value || 0);
  const [low, high] = info.limits[channel];
  const at = (id) => Number(document.getElementById(id).value) / 1000;
  const span = 4 * (high - low);
  return { channel, black: low + (at("black") - 0.125) * span, white: low + (at("white") - 0.125) * span };
}

class Panel {
  constructor(view, parent) {
    this.view = view;
    this.figure = make("figure", "", parent);
    this.image = make("div", "image", this.figure);
    this.img = make("img", "", this.image);
    this.img.alt = view.name;
    this.img.draggable = false;
    this.across = make("span", "cross across", this.image);
    this.down = make("span", "cross down", this.image);
    for (const side of ["top", "bottom", "left", "right"]) {
      if (view[side]) make("span", `letter ${side}`, this.image).textContent = view[side];
    }
    this.bar = make("span", "bar", this.image);
    const label = make("label", "", this.figure);
    label.append(view.name);
    this.slider = make("input", "", label);
    Object.assign(this.slider, { type: "range", min: 0, max: info.shape[view.axis] - 1 });
    this.slider.setAttribute("aria-label", view.name);
    this.output = make("output", "", label);
    this.slider.addEventListener("input", () => {
      place[view.axis] = (Number(this.slider.value) + 0.5) / info.shape[view.axis];
      show();
    });
    const move = (event) => {
      const box = this.image.getBoundingClientRect();
      const at = (axis, share) => {
        const [low, high] = range(axis);
        return clamp(low + share * (high - low), 0, 1 - 1e-9);
      };
      const column = at(view.columns, (event.clientX - box.left) / box.width);
      const row = at(view.rows, (event.clientY - box.top) / box.height);
      [place[view.columns], place[view.rows]] = [column, row];
      show();
    };
    this.image.addEventListener("pointerdown", move);
    this.image.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey) return setZoom(zoom * 1.15 ** -Math.sign(event.deltaY));
      const step = Math.sign(event.deltaY) / info.shape[view.axis];
      place[view.axis] = clamp(place[view.axis] + step, 0, 1 - 1e-9);
      show();
    }, { passive: false });
  }

  // Panels share one scale, so that the planes fit each other.
  layOut(pxPerUm) {
    this.width = Math.max(40, Math.round(info.size_um[this.view.columns] * pxPerUm));
    this.height = Math.max(40, Math.round(info.size_um[this.view.rows] * pxPerUm));
    this.image.style.width = `${this.width}px`;
    this.image.style.height = `${this.height}px`;
    this.figure.style.width = `${Math.max(this.width, LEAST_PX)}px`;
  }

  show() {
    const { axis, rows, columns } = this.view;
    const [left, right] = range(columns);
    const [top, bottom] = range(rows);
    this.across.style.top = `${(100 * (place[rows] - top)) / (bottom - top)}%`;
    this.down.style.left = `${(100 * (place[columns] - left)) / (right - left)}%`;
    this.slider.value = Math.floor(place[axis] * info.shape[axis]);
    this.output.textContent = `${((place[axis] * info.size_um[axis]) / 1000).toFixed(2)} mm`;
    const width = (right - left) * info.size_um[columns];
    const length = niceLength(width / 4);
    this.bar.style.width = `${(100 * length) / width}%`;
    this.bar.textContent = length >= 1000 ? `${length / 1000} mm` : `${length} µm`;
    this.wanted = { axis, place: place[axis], top, bottom, left, right, ...contrast() };
    this.load();
  }

  // One request at a time: coarse while things move, fine when they rest.
  async load() {
    if (this.loading) return;
    this.loading = true;
    while (this.shown !== this.wanted || !this.fine) {
      const wanted = this.wanted;
      const fine = this.shown === wanted;
      if (!(await this.fetch(wanted, fine))) break;
      [this.shown, this.fine] = [wanted, fine];
    }
    this.loading = false;
  }

  async fetch(wanted, fine) {
    const scale = fine ? Math.min(window.devicePixelRatio || 1, 2) : 0.4;
    const px = (n) => clamp(Math.round(n * scale), 16, 2048);
    const size = { rows: px(this.height), columns: px(this.width) };
    try {
      const answer = await fetch(`plane.png?${new URLSearchParams({ ...wanted, ...size })}`);
      if (!answer.ok) throw new Error((await answer.text()) || answer.statusText);
      const old = this.img.src;
      this.img.src = URL.createObjectURL(await answer.blob());
      if (old) URL.revokeObjectURL(old);
    } catch (error) {
      document.getElementById("state").textContent = `No image: ${error.message}`;
      return false;
    }
    return true;
  }
}

function show() {
  for (const panel of panels) panel.show();
}

function setZoom(value) {
  zoom = clamp(value, 1, 64);
  document.getElementById("zoom").value = 10 * Math.log2(zoom);
  show();
}

function layOut() {
  const [main, second, third] = info.views;
  const rows = info.size_um[main.rows];
  const wide = info.size_um[main.columns] + info.size_um[third.columns] + info.size_um[second.columns];
  const room = [window.innerWidth - 80, window.innerHeight - 150];
  const widths = info.views.map((view) => info.size_um[view.columns]);
  const highest = Math.max(...info.views.map((view) => info.size_um[view.rows]));
  const widest = Math.max(...widths);
  const fit = Math.min(room[0] / wide, room[1] / highest);
  // A narrow plane leaves room for its slider.
  const spare = widths.reduce((sum, width) => sum + Math.max(0, LEAST_PX - width * fit), 0);
  const beside = Math.min(fit, (room[0] - spare) / wide);
  // Below each other where they would be too small beside each other.
  const scale = beside * rows > 240 ? beside : Math.min((room[0] + 40) / widest, room[1] / highest);
  for (const panel of panels) panel.layOut(scale);
  show();
}

async function start() {
  info = await (await fetch("info.json")).json();
  document.title = info.name;
  document.getElementById("name").textContent = info.name;
  const mm = info.size_um.map((side) => (side / 1000).toFixed(2)).join(" × ");
  const voxel = info.voxel_um.map((side) => Number(side.toPrecision(4))).join(" × ");
  const orientation = info.orientation ? `axes point to ${info.orientation}` : "orientation unknown";
  document.getElementById("facts").textContent = `${mm} mm, voxels of ${voxel} µm, ${orientation}`;
  const select = document.querySelector("select");
  info.channels.forEach((name, number) => select.add(new Option(name || `${number}`, number)));
  document.getElementById("channels").hidden = info.channels.length < 2;
  const reset = () => {
    document.getElementById("black").value = 125;
    document.getElementById("white").value = 500;
    place.fill(0.5);
    setZoom(1);
  };
  panels = info.views.map((view) => new Panel(view, document.getElementById("views")));
  for (const id of ["black", "white"]) document.getElementById(id).addEventListener("input", show);
  select.addEventListener("change", show);
  document.getElementById("zoom").addEventListener("input", (event) => {
    setZoom(2 ** (Number(event.target.value) / 10));
  });
  document.getElementById("reset").addEventListener("click", reset);
  window.addEventListener("resize", layOut);
  for (const panel of panels) [panel.width, panel.height] = [100, 100];
  layOut();
  reset();
}

start();
