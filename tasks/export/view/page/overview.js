/* Runs and iterations: curves, and a row for each iteration. */

const AXES = { iteration: "iteration", environment_steps: "environment steps", tokens: "tokens", seconds: "seconds" };
const shownRuns = new Set(RUNS);
let axis = "iteration";

function overviewPage() {
  const runs = h("fieldset", { className: "runs" }, h("legend", {}, "Runs"), ...RUNS.map((run) => {
    const box = h("input", { type: "checkbox", checked: shownRuns.has(run), on: { change: () => {
      if (box.checked) shownRuns.add(run); else shownRuns.delete(run);
      show();
    } } });
    const key = span("key");
    key.style.backgroundColor = shadeOf(run);
    return h("label", {}, box, key, run);
  }));
  const across = choice("against", Object.entries(AXES), axis, (value) => { axis = value; show(); });
  return [
    h("h1", {}, count(RUNS.length, "run"), h("small", {}, `${count(ITERATIONS.length, "iteration")}, ${count(EPISODES.length, "episode")} here`)),
    div("bar", runs, across),
    div("charts", ...curves()),
    h("h2", {}, "Iterations"),
    iterationTable(),
  ];
}

function curves() {
  const known = RUNS.filter((run) => shownRuns.has(run)).map((run) => [run, ITERATIONS.filter((row) => row.run === run)]);
  const of = (x, ...names) => known.flatMap(([run, all]) => {
    const rows = all.filter((row) => row[x] != null && names.some((name) => row[name[0]] != null));
    return names.map(([name, said, dash]) => ({ label: said ? `${run}: ${said}` : run, stroke: shadeOf(run), fill: shadeOf(run, 0.13), dash,
      x: rows.map((row) => row[x]), y: rows.map((row) => row[name] ?? null), rows }));
  });
  const success = of(axis, ["success_rate"]).map((curve) => ({ ...curve,
    low: curve.rows.map((row) => row.success_low ?? null), high: curve.rows.map((row) => row.success_high ?? null) }));
  const baseline = of(axis, ["baseline_success_rate", "without a model", [3, 4]]).filter((curve) => curve.rows.length);
  const share = (name, part, whole) => of("iteration", [part]).map((curve) => ({ ...curve, label: `${curve.label}: ${name}`,
    dash: part === "leaking" ? [3, 4] : undefined,
    y: curve.rows.map((row) => (row[whole] ? row[part] / row[whole] : null)) }));
  const losses = DATA.overview.losses.filter((row) => shownRuns.has(row.run)).map((row) => ({
    label: `${row.run}: ${row.stage}`, stroke: shadeOf(row.run), dash: row.stage === "policy-distillation" ? undefined : [3, 4],
    x: row.step, y: row.loss }));
  const whole = { unit: AXES[axis], range: [0, 1] };
  return [
    chart("Success on the eval tasks, 95% Wilson interval", [...success, ...baseline], whole),
    chart("Loss, nats per token", losses, { unit: "optimizer step", format: (value) => number(value) }),
    chart("AUROC of the verdict", of("iteration", ["auroc"]), { range: [0, 1], format: (value) => number(value, 2) }),
    chart("Distilled actions that changed; thoughts that leaked before correction",
      [...share("changed", "changed", "distilled"), ...share("leaked", "leaking", "thoughts")], { range: [0, 1] }),
  ];
}

const COLUMNS = [
  ["run", "Run"], ["iteration", "Iteration"],
  ["success_rate", "Success", (row) => (row.success_rate == null ? "–" :
    `${percent(row.success_rate)} (${percent(row.success_low)} to ${percent(row.success_high)})`)],
  ["train_success_rate", "In training", (row) => percent(row.train_success_rate)],
  ["train_episodes", "Episodes", (row) => number(row.train_episodes, 6)],
  ["auroc", "AUROC", (row) => number(row.auroc, 2)],
  ["distilled", "Distilled", (row) => number(row.distilled, 6)],
  ["changed", "Changed", (row) => number(row.changed, 6)],
  ["leaking", "Leaked", (row) => number(row.leaking, 6)],
  ["stage_tokens", "Tokens", (row) => number(row.stage_tokens, 9)],
  ["stage_seconds", "Seconds", (row) => number(row.stage_seconds, 4)],
];

function iterationTable() {
  return dataTable({
    name: "iterations", label: "Iterations", rows: ITERATIONS.filter((row) => shownRuns.has(row.run)),
    columns: COLUMNS.map(([id, title, write]) => ({ id, title, write })),
    open: (row) => { setFilters({ run: row.run, iteration: String(row.iteration) }); location.hash = "#/episodes"; },
    note: (row) => (row.stale ? chip("stale", "warn", "something upstream was recomputed since") : null),
  }).element;
}
