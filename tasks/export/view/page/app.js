/* Pages by the address behind #, the keyboard, and light or dark. */

const main = document.getElementById("main");
const PAGES = { "": overviewPage, episodes: episodesPage, episode: episodePage, compare: comparePage };
const KEYS = [
  ["o", "overview"], ["e", "episodes"], ["c", "compare"], ["←  →", "previous, next episode"], ["k  j", "previous, next step"],
  ["x", "open or close all that was made of the steps"], ["/", "search"], ["?", "this list"],
];

const route = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);

function show() {
  const [name, ...rest] = route();
  dropCharts();
  main.replaceChildren(...(PAGES[name] ?? overviewPage)(...rest).filter(Boolean));
  for (const a of document.querySelectorAll("header nav a:not(.brand)")) {
    const here = a.hash === `#/${name === "episode" ? "episodes" : name}`;
    if (here) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
}

/** To the step after or before the one that has the focus. */
function toStep(by_) {
  const steps = [...document.querySelectorAll(".step")];
  const here = steps.indexOf(document.activeElement.closest(".step"));
  const target = steps[Math.max(0, here + by_)];
  target?.scrollIntoView({ block: "start" });
  target?.focus({ preventScroll: true });
}

const ACTIONS = {
  o: () => { location.hash = "#/"; },
  e: () => { location.hash = "#/episodes"; },
  c: () => { location.hash = "#/compare"; },
  j: () => toStep(1),
  k: () => toStep(-1),
  x: () => { const all = [...document.querySelectorAll("details.draw")]; const open = all.some((d) => !d.open); all.forEach((d) => { d.open = open; }); },
  "/": () => { location.hash = "#/episodes"; requestAnimationFrame(() => document.getElementById("search")?.focus()); },
  "?": () => document.getElementById("help").showModal(),
  ArrowLeft: () => walk(-1),
  ArrowRight: () => walk(1),
};

function walk(by_) {
  const [name, id] = route();
  const next = name === "episode" ? neighbour(id, by_) : null;
  if (next) location.hash = `#${episodeHash(next)}`;
}

addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !ACTIONS[event.key]) return;
  event.preventDefault();
  ACTIONS[event.key]();
});

const dark = () => (document.documentElement.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const theme = document.getElementById("theme");
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => { document.documentElement.style.colorScheme = dark() ? "light" : "dark"; named(); show(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { named(); show(); });

document.getElementById("keys").addEventListener("click", ACTIONS["?"]);
document.getElementById("help").append(h("h2", {}, "Keyboard"),
  h("dl", {}, ...KEYS.flatMap(([key, said]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, said)])),
  h("button", { type: "button", on: { click: () => document.getElementById("help").close() } }, "Close"));

addEventListener("hashchange", () => { show(); scrollTo(0, 0); main.focus({ preventScroll: true }); });
named();
show();
