/* The same task under two iterations or runs, step beside step, with the words that differ. */

const compareHash = (left, right) => `#/compare/${encodeURIComponent(left)}/${encodeURIComponent(right)}`;

/** Tasks that were played more than once, with their episodes. */
function repeated() {
  const tasks = new Map();
  for (const episode of EPISODES) {
    const key = `${episode.environment} ${episode.task_id}`;
    tasks.set(key, [...(tasks.get(key) ?? []), episode]);
  }
  return [...tasks].filter(([, found]) => found.length > 1);
}

function comparePage(leftId, rightId) {
  const left = BY_ID.get(leftId), right = BY_ID.get(rightId);
  if (!left || !right) {
    const tasks = repeated();
    return [h("h1", {}, "Compare", h("small", {}, "a task that several episodes played: its first and its last one side by side")),
      tasks.length ? h("ul", { className: "tasks" }, ...tasks.map(([task, found]) => h("li", {},
        h("a", { href: compareHash(found[0].episode_id, found.at(-1).episode_id) }, task), span("muted", ` ${count(found.length, "episode")}: `),
        ...found.map((episode) => chip(`${episode.run} ${episode.iteration}`, OUTCOME[outcomeOf(episode)] ?? "warn", outcomeOf(episode))))))
        : h("p", { className: "muted" }, "No task was played twice.")];
  }
  const options = sameTask(left).map((episode) => [episode.episode_id, nameOf(episode)]);
  const side = (episode, choose) => div("", choice("", options, episode.episode_id, choose),
    h("p", { className: "facts" }, chip(outcomeOf(episode), OUTCOME[outcomeOf(episode)] ?? "warn"),
      ` reward ${number(episode.reward)}, ${count(stepsOf(episode).length, "step")}, played by ${episode.policy_version} `, link(episodeHash(episode.episode_id), "open")));
  const steps = Math.max(stepsOf(left).length, stepsOf(right).length);
  const rows = Array.from({ length: steps }, (_, n) => {
    const [one, other] = [stepsOf(left)[n], stepsOf(right)[n]];
    const differs = one && other && one.action !== other.action;
    const after = (text) => (one ? wordDiff(one.action ?? "", text, "action") : pre(text, "action"));
    return h("article", { className: "step", id: `step-${n}`, tabIndex: -1 },
      h("header", {}, h("h2", {}, `Step ${n}`), differs ? chip("another action", "accent") : null),
      div("columns even", one ? spoken(one) : div("ended", "ended before"), other ? spoken(other, after) : div("ended", "ended before")));
  });
  return [
    h("h1", {}, "Compare", h("small", {}, `${left.environment}, task ${left.task_id}`)),
    div("columns even sides", side(left, (id) => { location.hash = compareHash(id, rightId); }), side(right, (id) => { location.hash = compareHash(leftId, id); })),
    ...rows,
  ];
}
