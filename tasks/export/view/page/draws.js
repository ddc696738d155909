/* What was made of a step that replay has drawn: the critic's label, and the improvement of an action at its state. */

function verdictOf(critique) {
  const sure = critique.yes_probability == null ? "" : `, p(optimal) ${number(critique.yes_probability, 2)}`;
  if (critique.optimal == null) return chip(`no verdict${sure}`, "warn");
  return critique.optimal ? chip(`optimal${sure}`, "good") : chip(`not optimal${sure}`, "bad");
}

/** A draw, closed to one line. */
function drawView(draw, open) {
  const critiques = draw.critique ?? [], refinements = draw.refinement ?? [];
  const last = refinements.find((row) => row.distil) ?? refinements.at(-1);
  const said = last && (last.distil ? (last.changed ? "distilled another action" : "distilled the same action") : "nothing distilled");
  const details = h("details", { className: "draw", open },
    h("summary", {}, `Drawn in iteration ${draw.iteration}`, critiques[0] && verdictOf(critiques[0]),
      said && chip(said, last.distil && last.changed ? "accent" : "muted"), (draw.target ?? []).map(leakOf)),
    ...critiques.length || refinements.length ? improvement(critiques, refinements) : [],
    ...(draw.target ?? []).map(targetView),
    h("p", { className: "facts" }, `priority ${number(draw.priority)}, drawn with probability ${number(draw.probability)}, weight ${number(draw.weight)} `, shownBy(draw.sample_id)));
  return details;
}

const leakOf = (row) => (row.label?.leak_before > 0 ? chip("leaked", "warn", "the backup's thought, before correction") : null);

/** Round by round; a proposal is compared with the action judged before it. */
function improvement(critiques, refinements) {
  const rounds = [...new Set([...critiques, ...refinements].map((row) => row.round))].sort((a, b) => a - b);
  let before = critiques[0]?.action_text ?? "";
  return rounds.map((round) => {
    const proposed = refinements.filter((row) => row.round === round);
    const judged = critiques.filter((row) => row.round === round);
    const views = [...proposed.map((row) => refinementView(row, before)), ...judged.map((row) => critiqueView(row, !proposed.length))];
    if (round > 0 && judged.length) before = judged.at(-1).action_text ?? "";
    return h("section", { className: "round" }, h("h3", {}, round === 0 ? "Action to improve" : `Round ${round}`), ...views);
  });
}

function critiqueView(row, withAction) {
  const futures = (row.future ?? []).map((future) => h("li", {},
    future.thought ? pre(future.thought, "thought") : null, pre(future.description ?? ""),
    future.malformed && chip("malformed", "warn"), future.source === "rollout" && chip("played", "muted"), fault(future)));
  const version = row.future?.find((future) => future.by)?.by;
  return div("critique",
    withAction && titled(capital(`${row.action_source} action`), pre(row.action_text ?? "", "action"), by(row.action_by)),
    futures.length > 0 && titled("Predicted futures", h("ol", { className: "futures" }, ...futures), version && span("by", version[0])),
    titled("Critique", pre(row.critique ?? "", "critic"), verdictOf(row), by(row.by)),
    hiddenThought(row.reasoning, "The evaluator's hidden chain of thought"), fault(row));
}

const REASONS = {
  kept: "called optimal as it was", refined: "another action, not judged again", optimal: "called optimal when judged again",
  chosen: "picked among different actions", gain: "more probably optimal than the original", not_final: "an earlier proposal",
  failed: "see its status", unchanged: "the action that was called not optimal", no_gain: "no gain", surplus: "enough rows of this action",
};

function refinementView(row, before) {
  const distilled = row.distil ? chip("distilled", "accent") : chip("not distilled", "muted");
  const why = REASONS[row.distil_reason] ?? row.distil_reason;
  const text = row.action_text ?? "";
  const leaks = row.leak_before > 0;
  const thought = row.thought ?? "";
  return div("refinement",
    titled(capital(`${row.kind} action`), wordDiff(before, text, "action"),
      distilled, why && span("muted", why), !row.valid && chip("not valid", "bad"), by(row.by)),
    leaks && titled("Its thought, as written", leaky(row.thought_before), chip(`${percent(row.leak_before)} leaks`, "warn")),
    leaks && titled("Corrected", thought ? wordDiff(whole(row.thought_before), thought, "corrected") : h("p", { className: "muted" }, "the thought was dropped"),
      chip(`${percent(row.leak_after)} leaks`, row.leak_after > 0 ? "warn" : "good"), by(row.correction_by)),
    row.distil && titled("Trained on", pre([thought, row.action].filter(Boolean).join("\n"), "label"), ...trained(row.trained)),
    hiddenThought(row.label_reasoning, "Hidden chain of thought of the label"), hiddenThought(row.reasoning, "The refiner's hidden chain of thought"),
    fault(row));
}

function targetView(row) {
  const label = row.label;
  const rewritten = label?.verdict === "rewritten";
  return h("section", { className: "round" }, h("h3", {}, "Backup: what the critic is taught of the action that was played"),
    row.terminal && h("p", { className: "muted" }, "The episode ended here: there is no next action."),
    titled("Next action a′", row.next_action_text && pre(row.next_action_text, "action"), by(row.next_action_by)),
    titled("Its predicted future d′", row.next_future && pre(row.next_future), row.next_future_malformed && chip("malformed", "warn"), by(row.next_future_by)),
    titled("The backup's thought", leaky(row.thought), label?.leak_before > 0 ? chip(`${percent(label.leak_before)} leaks`, "warn") : null, by(row.by)),
    rewritten && titled("Corrected", wordDiff(whole(row.thought), label.thought ?? "", "corrected"), chip(`${percent(label.leak_after)} leaks`, label.leak_after > 0 ? "warn" : "good"), by(label.by)),
    label?.verdict === "thought_dropped" && h("p", { className: "muted" }, "No rewrite passed: the thought was dropped."),
    titled(label ? "Label: the future seen from here" : "The future seen from here", row.description && pre([label?.thought, row.description].filter(Boolean).join("\n"), "label"),
      row.malformed && chip("malformed", "warn"), ...trained(label?.trained)),
    hiddenThought(row.reasoning, "The backup's hidden chain of thought"), fault(row), label && fault(label));
}
