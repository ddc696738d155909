/* Texts as they were written, and what is marked in them. */

const pre = (text, kind = "") => h("div", { className: `text ${kind}` }, text);

/** A titled text; nothing where there is none. */
const titled = (title, body, ...after) => (body == null ? null : div("part", h("h4", {}, title, ...after), body));

/** Who wrote a text: model version, tokens, temperature. */
function by(made) {
  if (!made) return null;
  const [version, temperature, read, written, finish] = made;
  const cut = finish === "length" ? ", cut by its limit" : finish === "error" ? ", failed" : "";
  return span("by", `${version} · read ${count(read, "token")}, wrote ${written} · temperature ${number(temperature)}${cut}`);
}

/** A text with its leaking passages marked. */
function leaky(pieces) {
  if (!pieces) return null;
  return pre(pieces.map(([text, leaks]) => (leaks ? h("mark", { className: "leak", title: "says what the student can't see" }, text) : text)));
}

const whole = (pieces) => (pieces ?? []).map(([text]) => text).join("");

/** Sampled tokens, the darker the less probable. */
function shaded(tokens) {
  return h("div", { className: "text tokens" }, tokens.map(([text, logprob]) => {
    const token = h("span", { title: `p ${number(Math.exp(logprob), 3)}, log p ${logprob}` }, text);
    token.style.setProperty("--surprise", Math.min(1, -logprob / 4).toFixed(3));
    return token;
  }));
}

/** What a word diff leaves, takes and adds. */
function wordDiff(before, after, kind) {
  if (before === after) return pre(after, kind);
  return pre(Diff.diffWordsWithSpace(before, after).map(({ value, added, removed }) =>
    added ? h("ins", {}, value) : removed ? h("del", {}, value) : value), `${kind} diff`);
}

const hiddenThought = (text, title = "Hidden chain of thought") =>
  text ? h("details", { className: "part" }, h("summary", {}, title), pre(text, "thought")) : null;

/** The adapters that a row helped to train. */
const trained = (rows) => (rows ?? []).map((row) => chip(`trained ${row.adapter_version}`, "accent",
  `${row.stage}: a row of role ${row.role}, weight ${number(row.weight)}, in ${count(row.uses, "step")}`));

const fault = (row) => (row.status ? h("p", { className: "fault" }, chip(row.status, "warn"), ` ${row.error ?? ""}`) : null);

/** An id, which `nlac show` takes. */
const shownBy = (id) => h("code", { className: "id", title: "the prompts behind it" }, `nlac show ${id}`);
