// A page's own clock. It stands still until `nlac.pass(ms)` lets time pass, so time is counted in steps, and the same
// actions meet the same page however fast the machine is. Runs before any script of the page.
(() => {
  const frame = window.requestAnimationFrame.bind(window);
  const start = Date.UTC(2020, 0, 1, 12);
  const waiting = new Map();
  let now = 0;
  let last = 0;

  const later = (call, delay, every, given) => {
    const wait = Math.max(1, Number(delay) || 0);
    waiting.set((last += 1), { at: now + wait, every: every ? wait : 0, call, given });
    return last;
  };
  const forget = (id) => void waiting.delete(id);
  const run = ({ call, given }) => {
    try {
      if (typeof call === 'function') call(...given);
      else (0, eval)(call);
    } catch (error) {
      console.error(error);
    }
  };
  const soonest = () => {
    let found = null;
    for (const [id, timer] of waiting) if (!found || timer.at < found[1].at) found = [id, timer];
    return found;
  };

  Object.assign(window, {
    setTimeout: (call, delay, ...given) => later(call, delay, false, given),
    setInterval: (call, delay, ...given) => later(call, delay, true, given),
    requestAnimationFrame: (call) => later(() => call(now), 16, false, []),
    clearTimeout: forget,
    clearInterval: forget,
    cancelAnimationFrame: forget,
    // Nobody would answer a dialogue, and a second window would be out of sight.
    alert: () => undefined,
    confirm: () => true,
    prompt: () => null,
    open: () => null,
  });
  performance.now = () => now;
  Date.now = () => start + now;
  window.Date = new Proxy(Date, {
    construct: (date, given, made) => Reflect.construct(date, given.length ? given : [start + now], made),
    apply: (date) => new date(start + now).toString(),
  });

  // A picture gets its size when it is there. Pictures come from files, so this waits for no clock.
  const pictures = new Set();
  const arePainted = async () => {
    const loading = [];
    for (const element of document.body.querySelectorAll('*')) {
      const style = getComputedStyle(element);
      if (element instanceof HTMLImageElement) loading.push(element);
      for (const [, url] of `${style.content} ${style.backgroundImage}`.matchAll(/url\("([^"]+)"\)/g)) {
        if (pictures.has(url)) continue;
        pictures.add(url);
        const picture = new Image();
        picture.src = url;
        loading.push(picture);
      }
    }
    await Promise.all(loading.map((picture) => picture.decode().catch(() => undefined))); // or it is not there
  };

  // The browser tells a page that it was scrolled when it draws.
  const settle = async () => {
    await arePainted();
    await new Promise(frame);
  };

  window.nlac = {
    settle,
    async pass(ms) {
      const until = now + ms;
      for (let next = soonest(); next && next[1].at <= until; next = soonest()) {
        const [id, timer] = next;
        now = timer.at;
        if (timer.every) timer.at += timer.every;
        else waiting.delete(id);
        run(timer);
        await null; // what the page does when a promise is kept comes before its next timer
      }
      now = until;
      await settle();
    },
  };
})();
