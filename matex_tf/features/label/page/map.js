// All images as points on a plane. A frame that is dragged selects what is in it.

import { state, change, onChange, colourOf, NOTHING } from "./state.js";

const canvas = document.getElementById("map"), EDGE = 14;
let frame = null;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function place(image) {
  const box = canvas.getBoundingClientRect(), [x, y] = state.map[image];
  return [EDGE + (x / 1000) * (box.width - 2 * EDGE), EDGE + (y / 1000) * (box.height - 2 * EDGE)];
}

export function draw() {
  if (canvas.parentElement.hidden) return;
  const box = canvas.getBoundingClientRect(), times = window.devicePixelRatio || 1, paint = canvas.getContext("2d");
  canvas.width = box.width * times; canvas.height = box.height * times;
  paint.scale(times, times);
  paint.clearRect(0, 0, box.width, box.height);
  if (!state.map) {
    paint.fillStyle = style("--soft"); paint.font = "14px system-ui, sans-serif"; paint.textAlign = "center";
    paint.fillText("The map comes with the first suggestions.", box.width / 2, box.height / 2);
    return;
  }
  const mark = style("--mark"), size = state.count > 8000 ? 3 : 5;
  for (let image = 0; image < state.count; image++) {
    const [x, y] = place(image), label = state.labels[image], named = label !== NOTHING;
    if (state.colour === "confidence") {
      const sure = state.confidence[image];
      paint.fillStyle = `hsl(${Math.round(2.1 * Math.max(0, sure - 40))} 70% 52%)`;
      paint.globalAlpha = 0.85;
    } else {
      paint.fillStyle = named ? colourOf(label) : colourOf(state.suggested[image]);
      paint.globalAlpha = named ? 1 : 0.3;
    }
    paint.fillRect(x - size / 2, y - size / 2, size, size);
    if (state.selected.has(image)) {
      paint.globalAlpha = 1; paint.strokeStyle = mark; paint.lineWidth = 2;
      paint.strokeRect(x - size / 2 - 2, y - size / 2 - 2, size + 4, size + 4);
    }
  }
  paint.globalAlpha = 1;
  if (frame) { paint.strokeStyle = mark; paint.setLineDash([5, 3]); paint.lineWidth = 1.5; paint.strokeRect(frame.x, frame.y, frame.w, frame.h); paint.setLineDash([]); }
}

const inside = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

canvas.addEventListener("pointerdown", (event) => {
  if (!state.map) return;
  canvas.setPointerCapture(event.pointerId);
  const [x, y] = inside(event);
  frame = { x, y, w: 0, h: 0, more: event.shiftKey || event.ctrlKey || event.metaKey };
});
canvas.addEventListener("pointermove", (event) => {
  if (!frame) return;
  const [x, y] = inside(event);
  frame.w = x - frame.x; frame.h = y - frame.y;
  draw();
});
canvas.addEventListener("pointerup", () => {
  if (!frame) return;
  const near = 4, left = Math.min(frame.x, frame.x + frame.w) - near, right = Math.max(frame.x, frame.x + frame.w) + near;
  const top = Math.min(frame.y, frame.y + frame.h) - near, bottom = Math.max(frame.y, frame.y + frame.h) + near;
  if (!frame.more) state.selected.clear();
  for (let image = 0; image < state.count; image++) {
    const [x, y] = place(image);
    if (x >= left && x <= right && y >= top && y <= bottom) state.selected.add(image);
  }
  frame = null;
  change("selection", "map");
});
// By keys: the arrows move a cross over the points, and Space selects what is near it. Shift selects more.
let cross = { x: 500, y: 500 };
canvas.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-25, 0], ArrowRight: [25, 0], ArrowUp: [0, -25], ArrowDown: [0, 25] }[event.key];
  if (!state.map || (!step && event.key !== " ")) return;
  event.preventDefault(); event.stopPropagation();
  if (step) cross = { x: Math.max(0, Math.min(1000, cross.x + step[0])), y: Math.max(0, Math.min(1000, cross.y + step[1])) };
  else {
    if (!event.shiftKey) state.selected.clear();
    for (let image = 0; image < state.count; image++)
      if (Math.abs(state.map[image][0] - cross.x) <= 50 && Math.abs(state.map[image][1] - cross.y) <= 50) state.selected.add(image);
    change("selection", "map");
  }
  draw();
  const box = canvas.getBoundingClientRect(), paint = canvas.getContext("2d"), unit = (box.width - 2 * EDGE) / 1000, down = (box.height - 2 * EDGE) / 1000;
  paint.strokeStyle = style("--text"); paint.lineWidth = 1.5;
  paint.strokeRect(EDGE + (cross.x - 50) * unit, EDGE + (cross.y - 50) * down, 100 * unit, 100 * down);
});
new ResizeObserver(draw).observe(canvas.parentElement);
onChange((what) => { if (!what.has("training")) draw(); });
