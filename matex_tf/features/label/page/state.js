// What the page knows: what the server has said, and what is shown, selected and in focus.

export const NOTHING = -2, SKIPPED = -1, NONE = 0;
const COLOURS = ["#4c9be8", "#f2a541", "#5cc48d", "#e06c75", "#b58bea", "#4fc1c9", "#d6c24a", "#e58cc0", "#9aa7b8", "#8ccf4d"];

export const state = {
  count: 0, revision: -1, groups: [], people: [], labels: [], split: {}, suggested: null, confidence: null, map: null,
  queue: [], ask: "margin", asks: [], news: {}, training: {}, semi: false, person: "", title: "", kind: "",
  view: "ask", group: null, // what is shown
  list: [], focus: 0, anchor: 0, selected: new Set(), // places in the list, and numbers of images
  size: 96, colour: "label", changed: 0,
};

const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);
export const change = (...what) => { for (const listener of listeners) listener(new Set(what)); };

export const groupOf = (id) => state.groups.find((group) => group.id === id);
export const colourOf = (id) => {
  const place = state.groups.findIndex((group) => group.id === id);
  return place < 0 ? "#7d8796" : COLOURS[place % COLOURS.length];
};
export const nameOf = (id) => (id === NONE ? "none of these" : id === SKIPPED ? "skipped" : groupOf(id)?.name ?? "");

export const VIEWS = [
  { id: "ask", name: "Ask", key: "Q", about: "What a network would learn most from, no two alike. Label from the top." },
  { id: "suggested", name: "Suggested", key: "W", about: "What the network would put into this group, the surest first." },
  { id: "labelled", name: "Labelled", key: "E", about: "What people have put into this group." },
  { id: "all", name: "All", key: "A", about: "All images, in the order of their files." },
  { id: "split", name: "Disagreements", key: "D", about: "Images that people have put into different groups. What most say counts; a tie counts for nothing." },
  { id: "changed", name: "Changed", key: "C", about: "" },
  { id: "map", name: "Map", key: "V", about: "Images that are alike lie together. Drag a frame to select; labels go to all of it." },
];

const byConfidence = (a, b) => state.confidence[b] - state.confidence[a] || a - b;

export function listOf(view, group) {
  const every = Array.from({ length: state.count }, (_, image) => image);
  const free = (image) => state.labels[image] === NOTHING;
  switch (view) {
    case "ask": return state.queue.filter((image) => free(image) || state.selected.has(image) || recent.has(image));
    case "suggested": return state.suggested ? every.filter((i) => free(i) && (state.suggested[i] === group || state.selected.has(i))).sort(byConfidence) : [];
    case "labelled": return every.filter((image) => state.labels[image] === group);
    case "split": return Object.keys(state.split).map(Number).sort((a, b) => a - b);
    case "changed": return (state.news.changed ?? []).filter(free);
    case "map": return every.filter((image) => state.selected.has(image));
    default: return every;
  }
}

// Images of the queue that were labelled since the view was opened: they stay in their places, so that nothing jumps.
export const recent = new Set();

export function counts() {
  const labelled = new Map(), suggested = new Map();
  for (let image = 0; image < state.count; image++) {
    const label = state.labels[image];
    if (label !== NOTHING) labelled.set(label, (labelled.get(label) ?? 0) + 1);
    else if (state.suggested) suggested.set(state.suggested[image], (suggested.get(state.suggested[image]) ?? 0) + 1);
  }
  return { labelled, suggested };
}

export function chosen() { // images that an action is for: those that are selected, or the one in focus
  if (state.selected.size) return [...state.selected];
  return state.view !== "map" && state.list.length ? [state.list[state.focus]] : [];
}
