// Dragging images to a group, with a mouse, a pen or a finger; and clicks, which are drags that went nowhere.

import { state } from "./state.js";
import { placeOf, select } from "./grid.js";
import { put, targetAt } from "./groups.js";

const grid = document.getElementById("grid"), FAR = 5; // pixels, from which on it is a drag
let drag = null;

function ghostOf(images) {
  const ghost = document.createElement("div");
  ghost.className = "ghost";
  images.slice(0, 3).reverse().forEach((image, place) => {
    const picture = document.createElement("img");
    picture.src = `/image/${image}/128.png`; picture.alt = "";
    picture.style.left = picture.style.top = `${place * 4}px`;
    ghost.append(picture);
  });
  const count = document.createElement("b");
  count.textContent = images.length;
  if (images.length > 1) ghost.append(count);
  document.body.append(ghost);
  return ghost;
}

function mark(target) {
  document.querySelectorAll("li.over").forEach((one) => one.classList.toggle("over", one === target));
  target?.classList.add("over");
}

function end() {
  drag?.ghost?.remove();
  mark(null);
  drag = null;
}

grid.addEventListener("pointerdown", (event) => {
  const place = placeOf(event.target);
  if (event.button || place < 0) return;
  grid.focus({ preventScroll: true });
  drag = { image: state.list[place], x: event.clientX, y: event.clientY, id: event.pointerId, more: event.ctrlKey || event.metaKey, range: event.shiftKey };
});

window.addEventListener("pointermove", (event) => {
  if (!drag || event.pointerId !== drag.id) return;
  if (!drag.ghost) {
    if (Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < FAR) return;
    drag.images = state.selected.has(drag.image) ? [...state.selected] : [drag.image];
    drag.ghost = ghostOf(drag.images);
  }
  drag.ghost.style.left = `${event.clientX + 8}px`;
  drag.ghost.style.top = `${event.clientY + 8}px`;
  mark(targetAt(event.clientX, event.clientY));
});

window.addEventListener("pointerup", (event) => {
  if (!drag || event.pointerId !== drag.id) return;
  const { ghost, images, image, more, range } = drag, target = targetAt(event.clientX, event.clientY);
  end();
  if (!ghost) select(state.list.indexOf(image), { more, range }); // not by its place, which news may have changed
  else if (target) put(Number(target.dataset.group), images);
});
window.addEventListener("pointercancel", end);
window.addEventListener("keydown", (event) => { if (event.key === "Escape") end(); });
