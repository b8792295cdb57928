// The page: views, keys, and what begins it all. Start reading here; state.js has what is known.

import { state, change, onChange, VIEWS, chosen, nameOf } from "./state.js";
import { act, listen, load, train } from "./api.js";
import { ask, showKeys, toast } from "./dialogs.js";
import { focusOn, move, resize } from "./grid.js";
import { merge, newGroup, put, rename, split } from "./groups.js";
import "./drag.js";
import "./map.js";
import "./panels.js";

const at = (id) => document.getElementById(id);
const make = (kind, text) => { const one = document.createElement(kind); if (text !== undefined) one.textContent = text; return one; };

function show(view) {
  state.view = view;
  if (view !== "map") state.selected.clear();
  change("view");
}

function drawViews() {
  at("views").replaceChildren(...VIEWS.map((view) => {
    const button = make("button", view.name);
    button.id = `view-${view.id}`;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", view.id === state.view);
    button.setAttribute("aria-controls", "panel");
    button.tabIndex = view.id === state.view ? 0 : -1;
    button.title = `${view.name} (${view.key})`;
    button.onclick = () => { show(view.id); at(`view-${view.id}`).focus(); };
    const count = { split: Object.keys(state.split).length, changed: state.news?.changed?.length }[view.id];
    if (count) { const mark = make("span", count); mark.className = "count"; button.append(mark); }
    return button;
  }));
  at("panel").setAttribute("aria-labelledby", `view-${state.view}`);
  at("scroll").hidden = state.view === "map";
  at("mapbox").hidden = state.view !== "map";
}
at("views").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const place = VIEWS.findIndex((view) => view.id === state.view), next = VIEWS[(place + step + VIEWS.length) % VIEWS.length];
  show(next.id);
  at(`view-${next.id}`).focus();
});

function chooser(name, choices, value, take) {
  const label = make("label", `${name} `), select = make("select");
  select.append(...choices.map(([id, text]) => { const one = make("option", text); one.value = id; return one; }));
  select.value = value;
  select.onchange = () => take(select.value);
  label.append(select);
  return label;
}

function drawControls() {
  const parts = [];
  if (state.view === "ask") parts.push(chooser("Ask by", state.asks.map((name) => [name, name]), state.ask, (name) => train({ ask: name })));
  if (["suggested", "labelled"].includes(state.view)) {
    const groups = state.groups.map((group) => [group.id, group.name]);
    if (state.view === "labelled") groups.push([0, nameOf(0)], [-1, nameOf(-1)]);
    parts.push(chooser("Group", groups, state.group, (id) => { state.group = Number(id); change("view"); }));
  }
  if (state.view === "suggested") {
    const all = make("button", "Accept all that is selected");
    all.onclick = accept;
    parts.push(all);
  }
  if (state.view === "map") parts.push(chooser("Colour", [["label", "by label"], ["confidence", "by confidence"]], state.colour, (name) => { state.colour = name; change("map"); }));
  else {
    const label = make("label", "Size "), slider = make("input");
    Object.assign(slider, { type: "range", min: 48, max: 256, value: state.size });
    slider.oninput = () => resize(slider.value / state.size);
    label.append(slider);
    parts.push(label);
  }
  at("controls").replaceChildren(...parts);
}

onChange((what) => {
  if (["all", "view", "groups", "labels"].some((one) => what.has(one))) drawViews();
  if (["all", "view", "groups"].some((one) => what.has(one))) drawControls();
});

async function accept() { // take what the network suggests, of each selected image
  const images = chosen().filter((image) => state.suggested?.[image] !== undefined);
  const by = new Map();
  for (const image of images) by.set(state.suggested[image], [...(by.get(state.suggested[image]) ?? []), image]);
  for (const [group, some] of by) await put(group, some);
}

const again = (kind) => act(kind).then((news) => { if (news) toast(kind === "undo" ? `Undone: ${news.images.length} images` : `Done again: ${news.images.length} images`); });
async function askPerson() {
  const name = await ask({ title: "Your name", text: "Labels are kept under it. Each person has one label for an image.", label: "Name", value: state.person });
  if (!name) return;
  state.person = name;
  localStorage.setItem("matex-label-person", name);
  change("selection");
  load().catch(() => {}); // what this person has skipped
}

function key(event) {
  if (event.target.closest?.("dialog, select, textarea, input:not([type=checkbox], [type=range])") || event.altKey) return;
  const name = event.key, control = event.ctrlKey || event.metaKey, low = name.toLowerCase();
  const onGrid = event.target === document.body || event.target.id === "grid" || event.target.id === "images";
  let done = true;
  if (control && low === "z") again(event.shiftKey ? "redo" : "undo");
  else if (control && low === "y") again("redo");
  else if (control && low === "a") { for (const image of state.list) state.selected.add(image); change("selection"); }
  else if (control) done = false;
  else if (/^[1-9]$/.test(name)) { const group = state.groups[name - 1]; if (group) put(group.id); else toast(`There is no group ${name} yet: N makes one.`); }
  else if (name === "0") put(0);
  else if (low === "s") put(-1);
  else if (name === "Delete" || name === "Backspace") put(null);
  else if (name === "Escape") { state.selected.clear(); change("selection"); }
  else if (onGrid && name === "ArrowLeft") move(0, -1, event.shiftKey);
  else if (onGrid && name === "ArrowRight") move(0, 1, event.shiftKey);
  else if (onGrid && name === "ArrowUp") move(-1, 0, event.shiftKey);
  else if (onGrid && name === "ArrowDown") move(1, 0, event.shiftKey);
  else if (onGrid && name === "PageDown") move(5, 0, event.shiftKey);
  else if (onGrid && name === "PageUp") move(-5, 0, event.shiftKey);
  else if (onGrid && name === "Home") focusOn(0, { byKey: true });
  else if (onGrid && name === "End") focusOn(state.list.length - 1, { byKey: true });
  else if (onGrid && name === " ") { const image = state.list[state.focus]; if (image !== undefined && !state.selected.delete(image)) state.selected.add(image); change("selection"); }
  else if (onGrid && name === "Enter") accept();
  else if (low === "n") newGroup();
  else if (low === "r") rename();
  else if (low === "m") merge();
  else if (low === "x") split();
  else if (name === "+" || name === "=") resize(1.25);
  else if (name === "-") resize(0.8);
  else if (name === "?") showKeys();
  else { const view = VIEWS.find((one) => one.key.toLowerCase() === low); if (view && !event.shiftKey) show(view.id); else done = false; }
  if (done) event.preventDefault();
}

document.addEventListener("keydown", key);
at("undo").onclick = () => again("undo");
at("redo").onclick = () => again("redo");
at("help").onclick = showKeys;
at("person").onclick = askPerson;
at("train").onchange = () => { state.training.on = at("train").checked; train({ on: at("train").checked }); };
at("semi").onchange = () => { state.semi = at("semi").checked; train({ semi: state.semi }); };
const dark = () => document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
at("theme").onclick = () => { const now = dark() === "dark" ? "light" : "dark"; document.documentElement.dataset.theme = now; localStorage.setItem("matex-label-theme", now); change("map"); };
const kept = localStorage.getItem("matex-label-theme");
if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;

const beginning = load().then(() => {
  change("view");
  listen();
  at("grid").focus({ preventScroll: true });
  if (!localStorage.getItem("matex-label-person")) toast(`You label as ${state.person}. If that is not you, press the name at the top.`);
});
beginning.catch((error) => toast(`${error.message}`, true));
