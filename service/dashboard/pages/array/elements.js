/** The elements of an array as a grid: a cell for each, with the letter and the colour of its state. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../../api/clock.js";
import { get } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { JOB_LETTERS } from "../../parts/elements.js";
import { duration, number, words } from "../../parts/format.js";
import { Empty, Failed, Loading, Panel } from "../../parts/page.js";
import { Link, params, setParams } from "../../parts/router.js";
import { ENDED } from "../../parts/states.js";

/** Elements of one part of the grid. */
const PART = 1000;

/** The panel. `?state=` and `?after=` in the address say which elements. */
export function Elements({ array }) {
  const [page, setPage] = useState(null);
  const [problem, setProblem] = useState(null);
  const asked = params();
  const [state, cursor] = [asked.get("state"), asked.get("after")];
  const over = ENDED.includes(array.state);
  useLoader(
    async () => {
      try {
        setPage(await get("/v1/jobs", { array: array.id, state, cursor, limit: PART }));
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: over ? 60_000 : 10_000 },
    [array.id, state, cursor, JSON.stringify(array.counts)],
  );
  const actions = html`<label>State <select value=${state ?? ""} onChange=${(e) => setParams({ state: e.target.value, after: null })}>
    <option value="">any</option>${Object.keys(JOB_LETTERS).map((one) => html`<option value=${one}>${words(one)}</option>`)}</select></label>`;
  return html`<${Panel} title="Elements" actions=${actions}>
    <${Failed} problem=${problem} />
    ${!page ? !problem && html`<${Loading} />` : html`
      ${page.items.length ? html`<ol class="elements" aria-label="Elements">${page.items.map((job) => html`<${Element} key=${job.id} job=${job} />`)}</ol>` : html`<${Empty}>${state ? `No element is ${words(state)}.` : "No element has entered the queue yet."}<//>`}
      <p class="muted small-text">Each cell is an element: its letter is the state, its tip the index.${!state && !cursor && !page.next_cursor && page.items.length < array.size ? ` ${number(array.size - page.items.length, 0)} have not entered the queue yet.` : ""}</p>
      ${(cursor || page.next_cursor) && html`<div class="actions">
        <button type="button" disabled=${!cursor} onClick=${() => setParams({ after: null }, { replace: false })}>First elements</button>
        <button type="button" disabled=${!page.next_cursor} onClick=${() => setParams({ after: page.next_cursor }, { replace: false })}>Next ${number(PART, 0)}</button></div>`}`}
  <//>`;
}

function Element({ job }) {
  const index = job.id.slice(job.id.lastIndexOf(".") + 1);
  const ran = job.started_at ? `, ran ${duration(((job.finished_at ? Date.parse(job.finished_at) : now()) - Date.parse(job.started_at)) / 1000)}` : "";
  const said = `Element ${index}: ${words(job.state)}${job.failure ? `, ${job.failure.message}` : ""}${ran}`;
  return html`<li><${Link} to=${`/jobs/${job.id}`} class="cell job-${job.state}" title=${said} aria-label=${said}>${JOB_LETTERS[job.state]}<//></li>`;
}
