/** The four kinds of things that run jobs, beside each other: jobs, arrays, pipelines, schedules. */
import { html } from "htm/preact";
import { Link, path } from "./router.js";

const TABS = { "/jobs": "Jobs", "/arrays": "Arrays", "/pipelines": "Pipelines", "/schedules": "Schedules" };

/** Links to the four lists; the one that is shown is marked. */
export function WorkTabs() {
  return html`<nav class="tabs" aria-label="Lists of work">
    ${Object.entries(TABS).map(([to, name]) => html`<${Link} key=${to} to=${to} aria-current=${path.value === to ? "page" : undefined}>${name}<//>`)}
  </nav>`;
}
