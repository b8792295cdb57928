// What stands around the images: training, the image in focus, the line at the bottom.

import { state, onChange, colourOf, nameOf, VIEWS } from "./state.js";
import { describe } from "./api.js";

const at = (id) => document.getElementById(id);
const make = (kind, text, className) => { const one = document.createElement(kind); if (text !== undefined) one.textContent = text; if (className) one.className = className; return one; };
const percent = (share) => `${(100 * share).toFixed(1)} %`;

const STATES = { none: "No training", off: "Training is off", waiting: "Waiting", reading: "Reading images", starting: "Ranks start", training: "Training", failed: "Training failed" };

function drawTraining() {
  const training = state.training, log = training.log ?? [], last = log.at(-1);
  at("lamp").dataset.state = training.state;
  const detail = training.state === "failed" ? "" : training.text;
  at("state").textContent = (STATES[training.state] ?? training.state) + (["waiting", "reading"].includes(training.state) && detail ? `: ${detail}` : "");
  at("state").title = training.text ?? "";
  const figures = [];
  if (training.round) figures.push(`round ${training.round}`);
  if (last?.loss !== undefined) figures.push(`loss ${last.loss.toFixed(3)}`);
  if (last?.val_accuracy !== undefined) figures.push(`${percent(last.val_accuracy)} of ${training.held_out} held out right`);
  if (training.seconds) figures.push(`suggestions after ${training.seconds} s`);
  at("figures").textContent = figures.join(" · ");
  const curve = at("curve");
  curve.replaceChildren();
  for (const [name, className] of [["loss", ""], ["val_loss", "held"]]) {
    const values = log.map((row) => row[name]).filter((value) => value !== undefined);
    if (values.length < 2) continue;
    const most = Math.max(...log.flatMap((row) => [row.loss ?? 0, row.val_loss ?? 0]), 1e-9);
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", values.map((value, place) => `${(88 * place) / (values.length - 1) + 1},${22 - (20 * value) / most}`).join(" "));
    if (className) line.setAttribute("class", className);
    curve.append(line);
  }
  at("train").checked = training.on !== false && training.state !== "off" && training.state !== "none";
  at("train").disabled = at("semi").disabled = training.state === "none";
  at("semi").checked = state.semi;
}

export function aboutView() { // what is shown, and what the last round has changed
  const view = VIEWS.find((one) => one.id === state.view), news = state.news ?? {};
  if (view.id !== "changed") return view.about;
  if (!news.round) return "Nothing yet: the network has said nothing.";
  const parts = [`Round ${news.round}, ${news.semi ? "with" : "without"} images that have no label.`];
  if (news.changed) parts.push(`${news.changed.length} suggestions are others than in the round before${news.before_semi === news.semi ? "" : `, which was ${news.before_semi ? "with" : "without"} them`}.`);
  for (const [from, to, count] of news.pairs ?? []) parts.push(`${nameOf(from)} → ${nameOf(to)}: ${count}.`);
  parts.push(`It says ${Math.round(100 * news.threshold)} % or more of ${news.sure.toLocaleString("en")} images.`);
  const used = state.training.log?.at(-1)?.used;
  if (news.semi && used !== undefined) parts.push(`While it trained it was that sure of ${percent(used)} of the images that it saw without a label, and learned from these too.`);
  return parts.join(" ");
}

let shown = -1, asked = 0;
async function drawDetail() {
  const image = state.view === "map" ? [...state.selected][0] : state.list[state.focus], box = at("detail");
  if (image === undefined) { box.replaceChildren(make("p", "No image in focus.")); shown = -1; return; }
  const ticket = ++asked;
  const found = await describe(image);
  if (ticket !== asked || !found) return;
  if (shown !== image) {
    const picture = make("img");
    picture.src = `/image/${image}/512.png`; picture.alt = `Image ${image + 1}`;
    box.replaceChildren(picture, make("div"));
    shown = image;
  }
  const rest = make("div");
  rest.append(make("p", found.name));
  if (found.chances.length) {
    rest.append(make("h2", "The network"));
    for (const [id, chance] of found.chances) {
      const line = make("p", undefined, "chance"), meter = document.createElement("meter");
      line.append(make("span", nameOf(id) || "a group that is gone"), make("span", percent(chance)));
      meter.style.setProperty("--own", colourOf(id));
      meter.value = chance; meter.setAttribute("aria-label", `how sure of ${nameOf(id)}`);
      rest.append(line, meter);
    }
  }
  const votes = Object.entries(found.votes);
  if (votes.length) {
    rest.append(make("h2", "People"));
    for (const [who, id] of votes) rest.append(make("p", `${who}: ${nameOf(id)}`));
  }
  if (found.history.length) {
    rest.append(make("h2", "What was done"));
    for (const { at: when, person, kind, group } of found.history.slice(0, 8))
      rest.append(make("p", `${when.slice(0, 16).replace("T", " ")} ${person}: ${kind}${group === null ? "" : ` ${nameOf(group) || "a group that is gone"}`}`));
  }
  box.lastChild.replaceWith(rest);
}
let later = 0;
const detailSoon = () => { clearTimeout(later); later = setTimeout(drawDetail, 90); };

function drawFoot() {
  const many = state.selected.size;
  at("selected").textContent = many ? `${many} selected` : `${(state.view === "map" ? state.count : state.list.length).toLocaleString("en")} images`;
  at("hint").textContent = many ? "1…9 or drag puts them into a group, Esc selects nothing" : "1…9 label, arrows move, Space selects, Ctrl+Z undoes, ? shows all keys";
  at("person").textContent = state.person || "Your name";
  at("title").textContent = state.title;
  document.title = `${state.title}: label`;
}

onChange((what) => {
  if (what.has("all") || what.has("training")) drawTraining();
  if (!what.has("training")) { detailSoon(); drawFoot(); at("about").textContent = aboutView(); }
});
