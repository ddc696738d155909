/* The data of the page, and what is looked up in it. */

const DATA = JSON.parse(document.getElementById("data").textContent);
/** By run, iteration, split and number: the order in which they were played. */
const EPISODES = [...DATA.episodes].sort((one, other) => {
  const [left, right] = [one, other].map((row) => [row.run, row.iteration, row.split, row.episode_id]);
  const at = left.findIndex((value, n) => value !== right[n]);
  return at < 0 ? 0 : left[at] < right[at] ? -1 : 1;
});
const ITERATIONS = DATA.overview.iterations;
const RUNS = [...new Set(ITERATIONS.map((row) => row.run))];
const BY_ID = new Map(EPISODES.map((episode) => [episode.episode_id, episode]));

const stepsOf = (episode) => episode.step ?? [];
const drawsOf = (step) => step.draw ?? [];
const refinementsOf = (episode) => stepsOf(episode).flatMap(drawsOf).flatMap((draw) => draw.refinement ?? []);

/** How an episode ended, in one word. */
function outcomeOf(episode) {
  if (episode.status) return episode.status;
  return episode.success ? "success" : episode.done ? "failure" : "truncated";
}

const OUTCOME = { success: "good", failure: "bad", truncated: "muted" };

/** Episodes of the same task, this one included. */
function sameTask(episode) {
  return EPISODES.filter((other) => other.environment === episode.environment && other.task_id === episode.task_id);
}

const nameOf = (episode) =>
  `${episode.run} · iteration ${episode.iteration} · ${episode.split} · ${episode.episode_id.split("/").at(-1)}`;

/** What one row of the table shows. */
const ROWS = EPISODES.map((episode) => {
  const refined = refinementsOf(episode);
  return {
    episode_id: episode.episode_id,
    run: episode.run,
    iteration: episode.iteration,
    split: episode.split,
    task: `${episode.environment} ${episode.task_id}`,
    outcome: outcomeOf(episode),
    reward: episode.reward,
    steps: stepsOf(episode).length,
    invalid: episode.invalid_actions,
    drawn: stepsOf(episode).filter((step) => step.draw).length,
    changed: refined.filter((row) => row.distil && row.changed).length,
    leaked: refined.filter((row) => row.leak_before > 0).length +
      stepsOf(episode).flatMap(drawsOf).flatMap((draw) => draw.target ?? []).filter((row) => row.label?.leak_before > 0).length,
    text: [episode.task_id, ...stepsOf(episode).flatMap((step) => [step.observation, step.raw_action])].join("\n").toLowerCase(),
  };
});
