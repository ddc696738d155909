/* Elements. Text reaches the document through text nodes alone: no markup is ever parsed. */

/** An element. `properties` are DOM properties, `on` its listeners, `data` its data attributes; null children are left out. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  const { on = {}, data = {}, aria = {}, ...own } = properties;
  for (const [name, value] of Object.entries(own)) if (value != null) element[name] = value;
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  for (const [name, value] of Object.entries(data)) element.dataset[name] = value;
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false).map((child) =>
    child instanceof Node ? child : String(child)));
  return element;
}

const div = (className, ...children) => h("div", { className }, ...children);
const span = (className, ...children) => h("span", { className }, ...children);
const chip = (text, kind = "", title = "") => h("span", { className: `chip ${kind}`, title }, text);
const link = (hash, ...children) => h("a", { href: `#${hash}` }, ...children);

/** A choice among [value, text] pairs; `choose` gets the value. */
function choice(label, options, value, choose) {
  const select = h("select", { on: { change: () => choose(select.value) } },
    ...options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)));
  return h("label", { className: "choice" }, span("", label), select);
}

const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`);
const number = (value, digits = 3) => (value == null ? "–" : Number(value.toPrecision(digits)).toLocaleString("en"));
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const count = (many, one) => `${many.toLocaleString("en")} ${one}${many === 1 ? "" : "s"}`;

/** A colour of the style sheet as rgb(), for a canvas; light or dark as the page is. */
function colour(name, alpha = 1) {
  const probe = h("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g);
  probe.remove();
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}
