/* An episode as a conversation, with what was made of each step beside it. */

const neighbour = (id, by_) => { const at = order.indexOf(id); return at < 0 ? null : order[at + by_] ?? null; };
const episodeHash = (id) => `/episode/${encodeURIComponent(id)}`;

function episodePage(id) {
  const episode = BY_ID.get(id);
  if (!episode) return [h("h1", {}, "No such episode here"), h("p", {}, "The page holds a sample: ", shownBy(id))];
  const others = sameTask(episode).filter((other) => other !== episode);
  const previous = neighbour(id, -1), next = neighbour(id, 1), at = order.indexOf(id);
  const step = (hash, text) => (hash ? link(episodeHash(hash), text) : span("muted", text));
  const compared = choice("Same task beside", [["", others.length ? "choose" : "no other episode here"], ...others.map((other) => [other.episode_id, `${nameOf(other)}: ${outcomeOf(other)}`])],
    "", (value) => { if (value) location.hash = compareHash(id, value); });
  return [
    div("bar", div("walk", step(previous, "← Previous"), span("muted", at < 0 ? "" : `${at + 1} of ${order.length}`), step(next, "Next →")), compared),
    h("h1", {}, nameOf(episode), chip(outcomeOf(episode), OUTCOME[outcomeOf(episode)] ?? "warn")),
    h("p", { className: "facts" }, `${episode.environment}, task ${episode.task_id}, reward ${number(episode.reward)}, played by ${episode.policy_version} · `, shownBy(id)),
    fault(episode),
    ...stepsOf(episode).map(stepView),
  ];
}

const endOf = (step) => (step.success ? chip("success", "good") : step.done ? chip("done", "muted") : step.truncated ? chip("truncated", "muted") : null);

/** What was seen, thought, done and seen after the last step. */
function spoken(step, act = (text) => pre(text, "action")) {
  const more = step.tokens || step.raw_action !== step.action;
  return div("spoken",
    step.observation && titled("Observation", pre(step.observation, "observation")),
    hiddenThought(step.reasoning), titled("Thought", step.thought && pre(step.thought, "thought")),
    titled("Action", act(step.action ?? ""), step.action_valid ? null : chip("not valid", "bad"), endOf(step),
      step.reward ? chip(`reward ${number(step.reward)}`, step.reward > 0 ? "good" : "bad") : null),
    more && step.raw_action && h("details", { className: "part", open: Boolean(step.tokens) },
      h("summary", {}, "As written", step.mean_logprob != null && span("by", `mean log p ${step.mean_logprob}`)),
      step.tokens ? shaded(step.tokens) : pre(step.raw_action)),
    titled("What came of it", step.next_observation && pre(step.next_observation, "observation")), fault(step));
}

function stepView(step, n) {
  const draws = drawsOf(step);
  const open = draws.findIndex((draw) => draw.critique);
  return h("article", { className: "step", id: `step-${n}`, tabIndex: -1, aria: { label: `Step ${n}` } },
    h("header", {}, h("h2", {}, `Step ${n}`), by(step.by), !step.by && span("by", step.policy_version),
      step.value != null && chip(`V(s) ${number(step.value)}`, "muted"), step.advantage != null && chip(`A ${number(step.advantage)}`, step.advantage > 0 ? "good" : "bad"), ...trained(step.trained)),
    div(draws.length ? "columns" : "", spoken(step),
      draws.length > 0 && div("made", ...draws.map((draw, i) => drawView(draw, i === open)))));
}
