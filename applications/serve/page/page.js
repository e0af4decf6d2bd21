"use strict";
// A chat with the server that this page comes from. Text is only ever inserted as text.
const at = (id) => document.getElementById(id);
const state = { turns: [], controller: null, speeds: {} };

const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value)); // JSON leaves undefined out
const headers = () => {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};

function shown(role, text = "") {
  const turn = document.createElement("p");
  turn.className = `turn ${role}`;
  turn.textContent = text;
  at("log").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

function append(turn, text, tokens, steps) {
  const piece = document.createElement("span");
  if (tokens > 1) {
    piece.className = `step${1 + (steps % 2)}`;
    piece.title = `${tokens} tokens in one step`;
  }
  piece.textContent = text;
  const log = at("log"), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  turn.append(piece);
  if (follows) log.scrollTop = log.scrollHeight;
}

function tell(run, drafts) {
  const seconds = (performance.now() - run.start) / 1000;
  const parts = [`${run.tokens} tokens`, `${(run.tokens / Math.max(1, run.steps)).toFixed(2)} per step`];
  if (run.tokens > 1 && seconds > 0) {
    state.speeds[drafts] = (run.tokens - 1) / seconds;
    parts.push(`${state.speeds[drafts].toFixed(1)} tokens/s ${drafts ? "with" : "without"} drafts`);
  }
  const { true: fast, false: plain } = state.speeds;
  if (fast && plain) parts.push(`drafts give ${(fast / plain).toFixed(2)}× the speed`);
  at("figures").textContent = parts.join(" · ");
}

// The data of server-sent events, one JSON object each.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

async function answer(turn, drafts, signal) {
  const body = {
    messages: state.turns, stream: true, lade: { speculation: drafts, steps: true },
    temperature: number("temperature"), top_p: number("top_p"), seed: number("seed"), max_tokens: number("max_tokens"),
  };
  const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const run = { tokens: 0, steps: 0, start: performance.now() };
  for await (const chunk of events(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const tokens = chunk.lade ? chunk.lade.tokens : 0;
    if (!tokens) continue;
    if (!run.tokens) run.start = performance.now();
    run.tokens += tokens;
    run.steps += 1;
    append(turn, chunk.choices[0].delta.content || "", tokens, run.steps);
    tell(run, drafts);
  }
}

async function tellModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.ok) at("model").textContent = (await response.json()).data[0].id;
}

// Without TLS only loopback addresses have navigator.clipboard.
function copySelected(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  at("copy").focus();
}

function busy(is) {
  at("log").setAttribute("aria-busy", is); // a screen reader waits for the whole answer
  at("send").disabled = is;
  at("stop").disabled = !is;
  for (const id of ["again", "copy"]) at(id).disabled = is || !state.turns.length;
  const focused = document.activeElement;
  if (!is && (focused === document.body || focused.disabled)) at("message").focus();
}

// A question without an answer goes back to its field, since the server would refuse it at every turn.
function takeBack(turn, turns) {
  turn.remove();
  const question = turns.pop().content;
  if (!at("message").value) at("message").value = question;
}

async function ask(drafts) {
  const turn = shown("assistant"), turns = state.turns;
  state.controller = new AbortController();
  busy(true);
  try {
    await answer(turn, drafts, state.controller.signal);
  } catch (error) {
    if (error.name !== "AbortError") shown("error", error.message);
  }
  if (turn.textContent) turns.push({ role: "assistant", content: turn.textContent });
  else takeBack(turn, turns);
  if (turns === state.turns) busy(false);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("message").value;
  if (!text.trim() || at("send").disabled) return;
  at("message").value = "";
  state.turns.push({ role: "user", content: text });
  shown("user", text);
  ask(at("drafts").checked);
});
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.controller) state.controller.abort();
});
at("stop").addEventListener("click", () => state.controller.abort());
at("again").addEventListener("click", () => {
  state.turns.pop();
  at("drafts").checked = !at("drafts").checked;
  ask(at("drafts").checked);
});
at("copy").addEventListener("click", async () => {
  const text = state.turns.at(-1).content;
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copySelected(text);
  at("figures").textContent = "The last answer is copied.";
});
at("clear").addEventListener("click", () => {
  if (state.controller) state.controller.abort();
  state.turns = [];
  state.speeds = {};
  at("log").replaceChildren();
  busy(false);
});
document.querySelector("details").addEventListener("invalid", (event) => {
  event.currentTarget.open = true; // else the browser cannot show what is wrong
}, true);
at("key").addEventListener("change", tellModel);
tellModel();
