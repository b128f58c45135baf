/** The address of the page that is shown, and links that change it without loading the document again. */
import { signal } from "@preact/signals";
import { html } from "htm/preact";

/** The path and the query of the page that is shown. */
export const path = signal(location.pathname);
export const search = signal(location.search);

let moved = false;

/** So long a page may take until it is as long as it was. */
const RESTORE_MS = 3000;

addEventListener("popstate", (event) => {
  moved = true;
  shown();
  scrollBack(event.state?.y ?? 0);
});

/** True once after another page was asked for: then it takes the focus, so that a screen reader reads it. */
export function arrived() {
  const answer = moved;
  moved = false;
  return answer;
}

/** Show another page of the dashboard. `replace`: the page before stays the one that "back" leads to. */
export function go(to, { replace = false } = {}) {
  if (!replace) history.replaceState({ y: scrollY }, "");
  history[replace ? "replaceState" : "pushState"](null, "", to);
  moved ||= !replace && location.pathname !== path.value;
  shown();
  if (moved) scrollTo(0, 0);
}

/** Change parameters of the address, e.g. filters. Empty ones are left out. */
export function setParams(changes, options) {
  const params = new URLSearchParams(search.value);
  for (const [name, value] of Object.entries(changes)) {
    params.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (one) params.append(name, one);
  }
  const text = params.toString();
  go(path.value + (text ? `?${text}` : ""), { replace: true, ...options });
}

/** The parameters of the address. */
export function params() {
  return new URLSearchParams(search.value);
}

/** A link to a page of the dashboard. */
export function Link({ to, children, ...rest }) {
  const click = (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${click} ...${rest}>${children}</a>`;
}

/** Where one was on a page that "back" leads to. The browser alone tries it too early: the page asks for its rows first. */
function scrollBack(y) {
  const until = performance.now() + RESTORE_MS;
  const touched = new AbortController();
  for (const kind of ["wheel", "touchstart", "keydown", "popstate"]) addEventListener(kind, () => touched.abort(), { once: true, signal: touched.signal });
  const look = () => {
    if (touched.signal.aborted) return;
    if (document.documentElement.scrollHeight - innerHeight < y && performance.now() < until) return requestAnimationFrame(look);
    touched.abort();
    scrollTo(0, y);
  };
  requestAnimationFrame(look);
}

function shown() {
  path.value = location.pathname;
  search.value = location.search;
}
