// What a page shows, as a list of elements. An element gets its number when `nlac.look()` first sees it, in the order
// of the document, and keeps it as long as the page lives. Runs after clock.js, before any script of the page.
(() => {
  const elements = new Map();
  const numbers = new WeakMap();
  const NOT_THE_TASK = '#query, #reward-display, #sync-task-cover, #click-canvas, script, style, template';
  const TYPED = ['text', 'password', 'search', 'email', 'number', 'tel', 'url', 'date', 'time'];
  const BUTTONS = ['submit', 'button', 'reset', 'image'];
  const FIELDS = ['textbox', 'textarea'];
  const WHOLE = ['link', 'button', 'select', 'text', ...FIELDS]; // what is in them is no element of its own
  const CONTROLS = [...WHOLE, 'checkbox', 'radio', 'img', 'canvas', 'circle', 'rect', 'polygon', 'ellipse'];

  const LOOKS = /^ui-(button|widget|corner|state|icon|helper|front|resizable|slider-handle)/; // jQuery UI's style
  const listening = new WeakSet();
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...given) {
    if (/^(click|mousedown|mouseup)$/.test(type)) listening.add(this);
    return listen.call(this, type, ...given);
  };

  const tidy = (text) => text.replace(/\s+/g, ' ').replace(/"/g, "'").trim();
  const number = (element) => {
    if (!numbers.has(element)) {
      numbers.set(element, elements.size + 1);
      elements.set(elements.size + 1, element);
    }
    return numbers.get(element);
  };
  const overlap = (a, b) => ({
    left: Math.max(a.left, b.left),
    right: Math.min(a.right, b.right),
    top: Math.max(a.top, b.top),
    bottom: Math.min(a.bottom, b.bottom),
  });
  const isEmpty = (box) => box.right - box.left < 1 || box.bottom - box.top < 1;
  const scrolls = (element, style) =>
    element.scrollHeight > element.clientHeight + 1 &&
    (element.tagName === 'TEXTAREA' || /auto|scroll/.test(style.overflowY));

  const roleOf = (element) => {
    const tag = element.tagName.toLowerCase();
    if (element.isContentEditable) return 'textbox';
    if (tag === 'input' && TYPED.includes(element.type)) return 'textbox';
    if (tag === 'input') return BUTTONS.includes(element.type) ? 'button' : element.type;
    return tag === 'a' ? 'link' : tag;
  };
  const textOf = (element, role) => {
    if (element.labels) {
      const label = [...element.labels].map((one) => one.textContent).join(' ');
      if (role !== 'button') return tidy(label || element.placeholder || '');
    }
    if (element.tagName === 'INPUT') return tidy(element.value);
    if (WHOLE.includes(role)) return tidy(element.textContent);
    return tidy([...element.childNodes].filter((node) => node instanceof Text).map((node) => node.data).join(' '));
  };
  const colour = (element, style) => (element instanceof SVGElement ? style.fill : style.backgroundColor);
  const isPainted = (style) => !/, 0\)$/.test(style.backgroundColor);
  const isMeant = (element, style) =>
    isPainted(style) ||
    (named(element) && (listening.has(element) || style.backgroundImage !== 'none' || style.cursor === 'pointer'));
  const named = (element) => {
    const file = (element.getAttribute('src') || '').replace(/^data:.*/, '').split('/').pop();
    const words = (element.getAttribute('class') || '').split(/\s+/).filter((word) => word && !LOOKS.test(word));
    return tidy(element.alt || file || words.join(' ') || element.id || '').replace(/ /g, '.');
  };

  const describe = (element, role, text, style) => {
    const seen = { ref: number(element), role, text, flags: [] };
    const flag = (name, holds) => void (holds && seen.flags.push(name));
    if (FIELDS.includes(role)) seen.value = tidy(element.isContentEditable ? element.textContent : element.value);
    if (role === 'select') {
      seen.value = [...element.selectedOptions].map((option) => tidy(option.text)).join(', ');
      seen.options = [...element.options].map((option) => tidy(option.text));
    }
    if (!text && role !== 'select' && !FIELDS.includes(role)) seen.named = named(element);
    if (element instanceof SVGElement) {
      const box = element.getBoundingClientRect();
      const area = element.ownerSVGElement.getBoundingClientRect();
      const middle = [box.x + box.width / 2 - area.x, box.y + box.height / 2 - area.y];
      seen.at = middle.map(Math.round);
    }
    if (element instanceof SVGElement || (!text && !CONTROLS.includes(role))) seen.colour = colour(element, style);
    flag('checked', element.checked);
    flag('disabled', element.disabled);
    flag('readonly', element.readOnly);
    flag('focused', element === document.activeElement);
    flag('scrolls-up', scrolls(element, style) && element.scrollTop > 0);
    flag('scrolls-down', scrolls(element, style) && element.scrollTop + element.clientHeight < element.scrollHeight - 1);
    return seen;
  };

  const walk = (element, clip, found) => {
    const style = getComputedStyle(element);
    if (element.matches(NOT_THE_TASK) || style.display === 'none' || style.opacity === '0') return;
    const box = element.getBoundingClientRect();
    const role = roleOf(element);
    const text = textOf(element, role);
    const tells =
      text || CONTROLS.includes(role) || scrolls(element, style) ||
      (!element.childElementCount && isMeant(element, style));
    const isLabel = element.tagName === 'LABEL' && element.control;
    if (tells && !isLabel && style.visibility === 'visible' && !isEmpty(overlap(box, clip))) {
      found.push(describe(element, role, text, style));
    }
    if (WHOLE.includes(role)) return;
    const inner = style.overflowX === 'visible' && style.overflowY === 'visible' ? clip : overlap(box, clip);
    for (const child of element.children) walk(child, inner, found);
  };

  Object.assign(window.nlac, {
    element: (ref) => elements.get(ref),
    look() {
      const found = [];
      const root = document.documentElement;
      const page = { left: 0, top: 0, right: root.scrollWidth, bottom: root.scrollHeight };
      for (const child of document.body.children) walk(child, page, found);
      return {
        task: core.getUtterance(),
        elements: found,
        done: WOB_DONE_GLOBAL,
        reward: WOB_RAW_REWARD_GLOBAL,
        reason: WOB_REWARD_REASON,
      };
    },
  });
})();
