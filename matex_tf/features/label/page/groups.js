// The list of groups: counts, examples, places to drop images on, and what can be done with a group.

import { state, change, onChange, colourOf, nameOf, groupOf, counts, chosen, recent, NONE, SKIPPED, NOTHING } from "./state.js";
import { act } from "./api.js";
import { ask, toast } from "./dialogs.js";
import { nextFree } from "./grid.js";

const list = document.getElementById("groups"), others = document.getElementById("others");
const EXAMPLES = 5;

const make = (kind, className, text) => {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

export async function put(group, images = chosen()) { // null takes labels away
  if (!images.length) { toast("Select an image first: a click, or the arrow keys and Space."); return; }
  const many = state.selected.size > 0, before = images.map((image) => state.labels[image]);
  for (const image of images) { // shown at once: the next key must not wait for the server
    state.labels[image] = group ?? NOTHING;
    if (state.view === "ask") recent.add(image);
  }
  if (many) state.selected.clear();
  change("labels", "selection");
  if (group !== null && ["ask", "all"].includes(state.view)) nextFree();
  const what = images.length === 1 ? `Image ${images[0] + 1}` : `${images.length} images`;
  toast(group === null ? `${what}: no label` : `${what}: ${nameOf(group)}`);
  if (await act("assign", { images, group })) return;
  images.forEach((image, place) => { state.labels[image] = before[place]; });
  change("labels");
}

export async function newGroup() {
  const images = [...state.selected];
  const text = images.length ? `The ${images.length} selected images are put into it.` : "";
  const name = await ask({ title: "New group", text, label: "Name", value: "" });
  if (!name) return;
  if (await act("new group", { name, images })) { state.selected.clear(); change("selection"); }
}

const choices = (but) => state.groups.filter((group) => group.id !== but).map((group) => [group.id, group.name]);
const which = (title, but, text) => ask({ title, text, label: "Group", choices: choices(but) });

export async function rename(group = null) {
  group ??= Number(await which("Rename which group?"));
  if (!groupOf(group)) return;
  const name = await ask({ title: `Rename ${nameOf(group)}`, label: "Name", value: nameOf(group) });
  if (name) await act("rename", { group, name });
}

export async function merge(group = null) {
  if (state.groups.length < 2) { toast("There is no other group to merge with."); return; }
  group ??= Number(await which("Merge which group?"));
  if (!groupOf(group)) return;
  const into = await which(`Merge ${nameOf(group)}`, group, "All its images, whoever put them there, go into this group:");
  if (into && (await act("merge", { group, into: Number(into) })) && state.group === group) { state.group = Number(into); change("view"); }
}

export async function split(group = null) {
  const images = [...state.selected].filter((image) => groupOf(state.labels[image]));
  group ??= images.length ? state.labels[images[0]] : null;
  const own = images.filter((image) => state.labels[image] === group);
  if (!own.length) { toast("To split a group, select some of its images first (view Labelled)."); return; }
  const name = await ask({ title: `Split ${nameOf(group)}`, text: `The ${own.length} selected images of it get a group of their own.`, label: "Name", value: "" });
  if (name && (await act("split", { group, name, images: own }))) { state.selected.clear(); change("selection"); }
}

async function more(group) {
  const what = await ask({ title: nameOf(group), label: "What to do", choices: [["rename", "Rename"], ["merge", "Merge into another group"], ["split", "Split: selected images get a group of their own"]] });
  await { rename, merge, split }[what]?.(group);
}

function row(id, key, sizes) {
  const item = make("li"), top = make("div", "group-top"), button = make("button", "put");
  item.dataset.group = id;
  const swatch = make("span", "swatch");
  swatch.style.background = colourOf(id);
  button.append(swatch, make("span", "name", nameOf(id)));
  if (key !== "") button.append(make("kbd", "", key));
  button.title = "Put what is selected here. Without a selection: show this group.";
  button.onclick = () => (state.selected.size ? put(id) : show(id));
  const labelled = sizes.labelled.get(id) ?? 0, suggested = sizes.suggested.get(id) ?? 0;
  const count = make("span", "count", id > 0 && state.suggested ? `${labelled} + ${suggested}` : `${labelled}`);
  count.title = "labelled by people + suggested by the network";
  top.append(button, count);
  if (id > 0) {
    const menu = make("button", "more", "⋯");
    menu.setAttribute("aria-label", `Rename, merge or split ${nameOf(id)}`);
    menu.onclick = () => more(id);
    top.append(menu);
  }
  item.append(top);
  return item;
}

function show(id) {
  state.group = id;
  if (!["suggested", "labelled"].includes(state.view) || id <= 0) state.view = "labelled";
  change("view");
}

function draw() {
  const sizes = counts();
  list.replaceChildren(...state.groups.map((group, place) => {
    const item = row(group.id, place < 9 ? place + 1 : "", sizes), shown = make("div", "examples");
    let found = 0;
    for (let image = state.count - 1; image >= 0 && found < EXAMPLES; image--) {
      if (state.labels[image] !== group.id) continue;
      const picture = make("img");
      picture.alt = ""; picture.src = `/image/${image}/128.png`; picture.loading = "lazy"; picture.draggable = false;
      shown.append(picture);
      found++;
    }
    if (!found) shown.append(make("span", "count", "drop images here"));
    item.append(shown);
    return item;
  }));
  others.replaceChildren(row(NONE, 0, sizes), row(SKIPPED, "S", sizes));
  const done = state.labels.reduce((sum, label) => sum + (label >= 0), 0);
  document.getElementById("done").textContent = `${done.toLocaleString("en")} of ${state.count.toLocaleString("en")} labelled`;
  document.getElementById("bar").style.width = `${(100 * done) / Math.max(1, state.count)}%`;
  if (state.group === null || (state.group > 0 && !groupOf(state.group))) state.group = state.groups[0]?.id ?? null;
}

document.getElementById("new").onclick = newGroup;
export const targetAt = (x, y) => document.elementFromPoint(x, y)?.closest("li[data-group]") ?? null;
onChange((what) => { if (["all", "groups", "labels"].some((one) => what.has(one))) draw(); });
