// Images in rows. Only those that can be seen are in the page, however many there are.

import { state, change, onChange, colourOf, nameOf, listOf, recent, NOTHING, SKIPPED } from "./state.js";

const scroll = document.getElementById("scroll"), grid = document.getElementById("grid");
const GAP = 6, BEFORE = 2; // pixels between tiles; rows beyond what is seen
const tiles = new Map(); // by place in the list
let columns = 1, side = state.size, keys = false; // side: pixels across a tile, so that a row is full

const step = () => side + GAP, rowOf = (place) => Math.floor(place / columns);

export function refill(keep = true) { // what is shown has changed
  const before = state.list, at = state.focus, focused = before[at], above = rowOf(at) * step() - scroll.scrollTop;
  if (!keep) recent.clear();
  state.list = listOf(state.view, state.group);
  if (keep && focused !== undefined) hold(before.slice(0, at + 1));
  const place = keep && focused !== undefined ? state.list.indexOf(focused) : 0;
  state.focus = Math.max(0, Math.min(place >= 0 ? place : at, state.list.length - 1));
  if (!keep) { scroll.scrollTop = 0; state.anchor = 0; }
  layout();
  if (keep && place >= 0 && above >= 0 && above < scroll.clientHeight) scroll.scrollTop = rowOf(place) * step() - above;
}

function hold(before) { // nothing changes under one's hands: the image in focus stays, and in the queue all before it
  const focused = before.at(-1), free = state.labels[focused] === NOTHING;
  if (state.view === "ask") {
    const known = new Set(before);
    state.list = [...before, ...state.list.filter((image) => !known.has(image))];
  } else if (["suggested", "changed"].includes(state.view) && free && !state.list.includes(focused))
    state.list.splice(Math.min(before.length - 1, state.list.length), 0, focused);
}

function layout() {
  const width = scroll.clientWidth - 24 + GAP;
  columns = Math.max(1, Math.floor(width / (state.size + GAP)));
  side = Math.max(state.size, Math.floor(width / columns) - GAP);
  grid.style.height = `${Math.max(1, Math.ceil(state.list.length / columns)) * step()}px`;
  for (const tile of tiles.values()) tile.remove();
  tiles.clear();
  draw();
}

function draw() {
  const first = Math.max(0, Math.floor(scroll.scrollTop / step()) - BEFORE) * columns;
  const last = Math.min(state.list.length, (Math.ceil((scroll.scrollTop + scroll.clientHeight) / step()) + BEFORE) * columns);
  for (const [place, tile] of tiles) if ((place < first || place >= last) && place !== state.focus) { tile.remove(); tiles.delete(place); }
  for (let place = first; place < last; place++) if (!tiles.has(place)) add(place);
  if (state.list.length && !tiles.has(state.focus)) add(state.focus); // what is in focus must be there for a screen reader
  const focused = tiles.get(state.focus);
  if (focused) grid.setAttribute("aria-activedescendant", focused.id); else grid.removeAttribute("aria-activedescendant");
  if (!state.list.length && !grid.querySelector(".empty")) {
    const text = document.createElement("div");
    text.className = "empty"; text.setAttribute("role", "option"); text.setAttribute("aria-selected", "false");
    text.textContent = emptyText();
    grid.append(text);
  } else if (state.list.length) grid.querySelector(".empty")?.remove();
  else grid.querySelector(".empty").textContent = emptyText();
}

function emptyText() {
  if (state.view === "ask") return "Nothing is left to ask about.";
  if (state.view === "suggested" && !state.suggested) return "Suggestions come once two groups have two images each.";
  return "No images here.";
}

function add(place) {
  const image = state.list[place], tile = document.createElement("div");
  tile.className = "tile"; tile.id = `tile-${place}`; tile.dataset.place = place; tile.dataset.image = image;
  tile.setAttribute("role", "option");
  tile.setAttribute("aria-posinset", place + 1); tile.setAttribute("aria-setsize", state.list.length);
  tile.style.width = tile.style.height = `${side}px`;
  tile.style.transform = `translate(${(place % columns) * step()}px, ${Math.floor(place / columns) * step()}px)`;
  const picture = document.createElement("img");
  picture.alt = ""; picture.decoding = "async"; picture.draggable = false;
  picture.src = `/image/${image}/${side > 128 ? 256 : 128}.png`;
  const tag = document.createElement("div");
  tag.className = "tag";
  tile.append(picture, tag);
  dress(tile, place, image);
  tiles.set(place, tile);
  grid.append(tile);
}

function dress(tile, place, image) { // label, suggestion, selection and focus
  const label = state.labels[image], named = label !== NOTHING, guess = state.suggested?.[image];
  const sure = state.confidence?.[image], chosen = state.selected.has(image), tag = tile.lastChild;
  tag.replaceChildren();
  if (named || guess !== undefined) {
    const mark = document.createElement("i"), name = document.createElement("span");
    mark.style.background = colourOf(named ? label : guess);
    name.textContent = named ? nameOf(label) : `${nameOf(guess)}?`;
    tag.append(mark, name);
    if (!named) { const much = document.createElement("b"); much.textContent = `${sure}%`; tag.append(much); }
  }
  tag.hidden = !tag.childNodes.length;
  tile.classList.toggle("labelled", named);
  tile.classList.toggle("focus", place === state.focus);
  tile.classList.toggle("keys", keys && place === state.focus && document.activeElement === grid);
  tile.setAttribute("aria-selected", chosen);
  tile.querySelector(".split-mark")?.remove();
  if (state.split[image]) {
    const mark = document.createElement("span");
    mark.className = "split-mark"; mark.textContent = "≠"; mark.setAttribute("aria-hidden", "true");
    tile.insertBefore(mark, tag);
  }
  const votes = state.split[image] ? `, people disagree: ${Object.entries(state.split[image]).map(([who, id]) => `${who} says ${nameOf(id)}`).join(", ")}` : "";
  const said = named ? (label === SKIPPED ? "skipped" : `labelled ${nameOf(label)}`) : guess !== undefined ? `suggested ${nameOf(guess)}, ${sure} percent` : "no label";
  tile.setAttribute("aria-label", `Image ${image + 1}, ${said}${votes}`);
}

const dressAll = () => { for (const [place, tile] of tiles) if (state.list[place] !== undefined) dress(tile, place, state.list[place]); };

export function focusOn(place, { extend = false, byKey = false } = {}) {
  if (!state.list.length) return;
  keys = byKey;
  state.focus = Math.max(0, Math.min(place, state.list.length - 1));
  if (extend) {
    const [from, to] = [Math.min(state.anchor, state.focus), Math.max(state.anchor, state.focus)];
    for (let here = from; here <= to; here++) state.selected.add(state.list[here]);
  } else state.anchor = state.focus;
  const top = Math.floor(state.focus / columns) * step();
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  else if (top + step() > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + step() - scroll.clientHeight;
  draw();
  change("focus", "selection");
}

export const move = (down, right, extend) => focusOn(state.focus + down * columns + right, { extend, byKey: true });

export function nextFree() { // after a label the focus goes to the next image without one
  for (let place = state.focus + 1; place < state.list.length; place++)
    if (state.labels[state.list[place]] === NOTHING) { focusOn(place, { byKey: true }); return; }
  for (let place = 0; place < state.list.length; place++)
    if (state.labels[state.list[place]] === NOTHING) { focusOn(place, { byKey: true }); return; }
}

export function select(place, { more = false, range = false } = {}) { // as in any list of files
  const image = state.list[place];
  if (image === undefined) return;
  if (range) { if (!more) state.selected.clear(); state.focus = place; focusOn(place, { extend: true }); return; }
  if (more) { if (!state.selected.delete(image)) state.selected.add(image); }
  else { const alone = state.selected.size === 1 && state.selected.has(image); state.selected.clear(); if (!alone) state.selected.add(image); }
  focusOn(place);
}

export function resize(factor) {
  state.size = Math.round(Math.max(48, Math.min(256, state.size * factor)));
  layout();
}

export const placeOf = (target) => { const tile = target.closest?.(".tile"); return tile ? Number(tile.dataset.place) : -1; };

let waiting = false;
scroll.addEventListener("scroll", () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}, { passive: true });
new ResizeObserver(() => { if (state.count) layout(); }).observe(scroll);
grid.addEventListener("focus", dressAll);
grid.addEventListener("blur", dressAll);

onChange((what) => {
  if (what.has("view")) refill(false);
  else if (what.has("all")) refill(true);
  else if (what.has("groups") || what.has("labels")) { if (["ask", "all"].includes(state.view)) dressAll(); else refill(true); }
  else if (what.has("selection") || what.has("focus")) dressAll();
});
