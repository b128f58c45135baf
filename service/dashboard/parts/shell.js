/** The frame of every page: menu, connection, theme, and who one is. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { ahead } from "../api/clock.js";
import { get } from "../api/http.js";
import { lateSince, staleBecause, staleSince } from "../api/live.js";
import { useLoader } from "../api/poll.js";
import { me } from "../api/session.js";
import { duration, time } from "./format.js";
import { sentence } from "./page.js";
import { NoRole, Person } from "./person.js";
import { Link, path } from "./router.js";

/** Address, name, which paths belong to it. @type {[string, string, RegExp][]} */
const MENU = [
  ["/", "Cluster", /^\/($|hosts\/)/],
  ["/queue", "Queue", /^\/queue/],
  ["/jobs", "Jobs", /^\/(jobs|arrays|pipelines|schedules)/],
  ["/submit", "Submit", /^\/submit/],
  ["/usage", "Usage and health", /^\/usage/],
  ["/what-if", "What if", /^\/what-if/],
];

/** The page in its frame. */
export function Shell({ children }) {
  const menu = useRef(null);
  useEffect(() => {
    const here = menu.current.querySelector("[aria-current]");
    if (here) menu.current.scrollLeft = here.offsetLeft - menu.current.offsetLeft - 40;
  }, [path.value]);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header>
      <div class="bar">
        <${Link} to="/" class="brand"><${Mark} />gpu-platform<//>
        <nav aria-label="Pages" ref=${menu}>
          ${MENU.map(
            ([to, name, here]) =>
              html`<${Link} to=${to} key=${to} aria-current=${here.test(path.value) ? "page" : undefined}>${name}<//>`,
          )}
        </nav>
        <div class="bar-end">
          <${Connection} />
          <${Theme} />
          <${Person} />
        </div>
      </div>
      <${Stale} />
      <${WrongClock} />
      ${me.value && html`<${Degraded} />`}
      <${NoRole} />
    </header>
    ${children}`;
}

function Mark() {
  return html`<svg width="18" height="18" viewBox="0 0 16 16" aria-hidden="true">
    <rect width="16" height="16" rx="3" fill="#1f6feb" />
    <g fill="#fff"><rect x="3" y="3" width="4" height="4" rx="1" /><rect x="9" y="3" width="4" height="4" rx="1" opacity=".6" />
    <rect x="3" y="9" width="4" height="4" rx="1" opacity=".6" /><rect x="9" y="9" width="4" height="4" rx="1" /></g>
  </svg>`;
}

function Connection() {
  if (!me.value) return null;
  const stale = (staleSince.value ?? lateSince.value) !== null;
  return html`<span class="live ${stale ? "is-stale" : ""}" title=${stale ? "What you see is old" : "What you see is kept up to date"}>
    <i aria-hidden="true"></i>${stale ? "Stale" : "Live"}
  </span>`;
}

function Stale() {
  const since = staleSince.value ?? lateSince.value;
  const why = staleSince.value === null ? "the service takes long to answer. Waiting…" : `${staleBecause.value}. Connecting again…`;
  return html`<div role="status" aria-live="polite">
    ${since !== null &&
    html`<p class="stale">Stale since ${time(since / 1000)}: ${why}</p>`}
  </div>`;
}

/** Far from the service's time, sign-in may fail, and what other programs here show does not agree with this page. */
const WRONG_MS = 60_000;

function WrongClock() {
  if (Math.abs(ahead.value) < WRONG_MS) return null;
  return html`<p class="stale" role="status">The clock of this computer is ${duration(Math.abs(ahead.value) / 1000)} ${ahead.value > 0 ? "ahead of" : "behind"} the service's. Times here are those of the service.</p>`;
}

const HEALTH_EVERY_MS = 5000;

/** What works, but not as it should: for who may read the cluster. Others learn of it from their waiting jobs. */
function Degraded() {
  const [health, setHealth] = useState(null);
  useLoader(async () => setHealth(await get("/readyz")), { every: HEALTH_EVERY_MS });
  if (health?.status !== "degraded") return null;
  return html`<p class="stale" role="status">${sentence(health.warnings[0] ?? "no scheduler leads: nothing is placed")}</p>`;
}

const THEMES = ["auto", "light", "dark"];

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // Storage is off: the choice lasts as long as this page.
    }
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  return html`<label class="theme"><span class="sr">Theme</span>
    <select value=${theme} onChange=${(e) => setTheme(e.target.value)}>
      ${THEMES.map((one) => html`<option value=${one}>${one} theme</option>`)}
    </select>
  </label>`;
}
