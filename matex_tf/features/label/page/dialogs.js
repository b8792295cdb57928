// Messages, and questions to people.

const at = (id) => document.getElementById(id);
let timer = 0;

export function toast(text, bad = false) {
  const box = at("toast");
  box.textContent = text;
  box.className = bad ? "on bad" : "on";
  clearTimeout(timer);
  timer = setTimeout(() => { box.className = ""; }, bad ? 6000 : 2200);
}

// Asks for a text, for one of some choices ([value, name]), or for both; null where it is cancelled.
export function ask({ title, text = "", label = "", value = null, choices = null, yes = "OK" }) {
  const box = at("ask"), input = at("askinput"), select = at("askselect");
  at("asktitle").textContent = title;
  at("asktext").textContent = text;
  at("asktext").hidden = !text;
  at("asklabel").textContent = label;
  at("askyes").textContent = yes;
  at("asklabel").htmlFor = choices ? "askselect" : "askinput";
  input.hidden = value === null;
  input.value = value ?? "";
  select.hidden = !choices;
  select.replaceChildren(...(choices ?? []).map(([id, name]) => { const one = document.createElement("option"); one.value = id; one.textContent = name; return one; }));
  box.showModal();
  (choices ? select : input).focus();
  input.select();
  // Not by the event `close`, which comes later: the next question may be open by then.
  return new Promise((done) => {
    const finish = (answer) => { box.close(); done(answer); };
    const accept = (event) => { event.preventDefault(); finish(choices ? select.value : input.value.trim() || null); };
    box.querySelector("form").onsubmit = accept;
    select.onkeydown = (event) => { if (event.key === "Enter") accept(event); };
    at("askno").onclick = () => finish(null);
    box.oncancel = (event) => { event.preventDefault(); finish(null); };
  });
}

const KEYS = [
  ["1 … 9", "put into this group"], ["0", "none of these"], ["S", "skip"], ["Delete", "take your label away"],
  ["← → ↑ ↓", "move; with Shift select on the way"], ["Space", "select"], ["Ctrl+A", "select all that is shown"], ["Esc", "select nothing"],
  ["Ctrl+Z", "undo"], ["Ctrl+Shift+Z", "redo"], ["N", "new group, of what is selected"], ["R", "rename a group"], ["M", "merge two groups"],
  ["X", "split: what is selected gets a group of its own"], ["Enter", "accept what is suggested"],
  ["Q W E A D C V", "views: ask, suggested, labelled, all, disagreements, changed, map"], ["+ −", "larger and smaller images"], ["?", "this list"],
];
export function showKeys() {
  const rows = KEYS.flatMap(([keys, what]) => {
    const term = document.createElement("dt"), meaning = document.createElement("dd"), key = document.createElement("kbd");
    key.textContent = keys; term.append(key); meaning.textContent = what;
    return [term, meaning];
  });
  at("keylist").replaceChildren(...rows);
  at("keys").showModal();
}
