// What the page asks of the server, and the news that it hears.

import { state, change, recent, NOTHING, SKIPPED } from "./state.js";
import { toast } from "./dialogs.js";

class Away extends Error {} // the server does not answer

async function post(path, content) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content) });
  } catch { throw new Away("The server does not answer, and this was not done."); }
  const type = answer.headers.get("content-type") ?? "";
  const said = type.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(said.error);
  return said;
}

async function untilAnswered(content) { // a label waits for a server that is away: to give it twice does no harm
  for (;;) {
    try {
      return await post("/api/act", content);
    } catch (error) {
      if (!(error instanceof Away)) throw error;
      toast("The server does not answer. This label waits in the page, and is sent again.", true);
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

let last = Promise.resolve(); // actions reach the server in the order in which they were done
export function act(kind, more = {}) { // gives the news of it, or null where it was refused
  const content = { kind, person: state.person, ...more };
  const done = last.then(() => (kind === "assign" ? untilAnswered(content) : post("/api/act", content)));
  last = done.catch(() => {});
  return done.then((news) => { hear(news); return news; }, (error) => { toast(error.message, true); return null; });
}

export const train = (content) => post("/api/training", content).catch((error) => toast(error.message, true));
export const describe = async (image) => {
  try {
    const answer = await fetch(`/api/image/${image}`);
    return answer.ok ? await answer.json() : null;
  } catch { return null; } // the server is away, and the page says so already
};

export async function load() {
  const answer = await fetch("/api/all");
  if (!answer.ok) throw new Error(await answer.text());
  const said = await answer.json();
  const person = localStorage.getItem("matex-label-person");
  Object.assign(state, said, { person: person || said.person });
  state.labels.forEach((label, image) => { state.labels[image] = own(label, said.skipped[image]); });
  state.changed++;
  change("all");
}

// What an image is in this page: one that this person has skipped is skipped here, and asked of others.
const own = (label, skipped) => (label === NOTHING && skipped?.includes(state.person) ? SKIPPED : label);

function hear(news) {
  if (news.revision <= state.revision) return; // of an action of this page, which has been told already
  if (news.revision > state.revision + 1) { reload(); return; }
  state.revision = news.revision;
  news.images.forEach((image, place) => {
    const label = own(news.labels[place], news.skipped[image]);
    if (state.view === "ask" && label !== NOTHING) recent.add(image);
    state.labels[image] = label;
    if (news.split[image]) state.split[image] = news.split[image]; else delete state.split[image];
  });
  if (news.groups) state.groups = news.groups;
  state.people = news.people;
  change(news.groups ? "groups" : "labels", "labels");
  if (news.by !== state.person && news.images.length) toast(`${news.by}: ${news.kind}, ${news.images.length} images`);
}

let loading = null;
function reload() {
  loading ??= load().catch(() => {}).finally(() => { loading = null; });
}

export function listen() {
  const events = new EventSource("/api/events");
  let lost = false;
  events.addEventListener("hello", (event) => {
    document.body.dataset.server = "here";
    if (lost) toast("The server is back.");
    if (lost || JSON.parse(event.data).revision !== state.revision) reload();
    lost = false;
  });
  events.addEventListener("labels", (event) => hear(JSON.parse(event.data)));
  events.addEventListener("round", reload);
  events.addEventListener("training", (event) => { state.training = { ...state.training, ...JSON.parse(event.data).training }; change("training"); });
  events.addEventListener("note", (event) => toast(JSON.parse(event.data).text, true));
  events.onerror = () => {
    if (!lost) toast("The server does not answer. All that was labelled is kept; it is tried again.", true);
    lost = true;
    document.body.dataset.server = "away";
    if (events.readyState === EventSource.CLOSED) { events.close(); setTimeout(listen, 2000); }
  };
}
