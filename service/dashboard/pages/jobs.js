/** The list of jobs, newest first, a page at a time. */
import { Component } from "preact";
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { ago, count, duration, time } from "../parts/format.js";
import { Filter } from "../parts/filter.js";
import { gpusText, ranges } from "../parts/jobs.js";
import { Empty, Failed, Loading, Page } from "../parts/page.js";
import { go, Link, params, setParams } from "../parts/router.js";
import { ENDED, HOLDING, State } from "../parts/states.js";
import { WorkTabs } from "../parts/work_tabs.js";

/** Rows of a page; `?limit=` in the address says another number. */
const PAGE = 100;
const SHOWN = {
  all: [],
  waiting: ["PENDING", "QUEUED", "PREEMPTED"],
  running: HOLDING,
  ended: ENDED,
  completed: ["COMPLETED"],
  failed: ["FAILED"],
  cancelled: ["CANCELLED"],
};
const KINDS = ["training", "inference", "batch", "interactive"];

/** The page `/jobs`. Its filters and its place in the list are in the address. */
export function Jobs() {
  const [page, setPage] = useState(null);
  const [problem, setProblem] = useState(null);
  const asked = params();
  const filters = {
    state: SHOWN[asked.get("show")] ?? [],
    namespace: asked.get("namespace"),
    user: asked.get("user"),
    name: asked.get("name"),
    kind: asked.get("kind"),
    cursor: asked.get("after"),
  };
  const limit = Math.min(1000, Math.max(1, Number(asked.get("limit")) || PAGE));
  const address = asked.toString();
  useLoader(
    async () => {
      try {
        const found = await get("/v1/jobs", { ...filters, limit });
        setPage({ ...found, address });
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 15_000, concerns: (event) => event.kind.startsWith("job."), settle: 700 },
    [address],
  );
  const fresh = page?.address === address;
  return html`<${Page} title="Jobs" wide actions=${html`<${Link} to="/submit" class="button">Submit a job<//>`}>
    <${WorkTabs} />
    <${Failed} problem=${problem} />
    <${Filters} asked=${asked} />
    ${!page && !problem && html`<${Loading} what="Asking for jobs" />`}
    ${page && html`<div class="panel flush" aria-busy=${!fresh}>
      ${page.items.length ? html`<${List} jobs=${page.items} />` : html`<${Empty}>${address ? html`No jobs fit. <${Link} to="/jobs">Show all<//>` : html`There are no jobs yet. <${Link} to="/submit">Submit one<//>`}<//>`}
    </div>
    <div class="actions">
      <button type="button" disabled=${!filters.cursor} onClick=${() => setParams({ after: null }, { replace: false })}>Newest</button>
      <button type="button" disabled=${!page.next_cursor || !fresh} onClick=${() => setParams({ after: page.next_cursor }, { replace: false })}>Older</button>
      <span class="muted">${count(page.items.length, "job")} on this page</span>
    </div>`}
  <//>`;
}

function Filters({ asked }) {
  const set = (name) => (event) => setParams({ [name]: event.target.value.trim(), after: null });
  const find = (event) => {
    event.preventDefault();
    const id = String(new FormData(event.target).get("id") ?? "").trim();
    if (id) go(`/jobs/${encodeURIComponent(id)}`);
  };
  return html`<div class="toolbar">
    <label>Show <select value=${asked.get("show") ?? "all"} onChange=${(e) => setParams({ show: e.target.value === "all" ? null : e.target.value, after: null })}>
      ${Object.keys(SHOWN).map((name) => html`<option value=${name}>${name}</option>`)}
    </select></label>
    <${Filter} name="name" label="Name" /> <${Filter} name="user" label="User" /> <${Filter} name="namespace" label="Namespace" />
    <label>Kind <select value=${asked.get("kind") ?? ""} onChange=${set("kind")}>
      <option value="">any</option>${KINDS.map((kind) => html`<option value=${kind}>${kind}</option>`)}
    </select></label>
    <form onSubmit=${find}><label>Go to <input name="id" type="search" placeholder="j-…" aria-label="Go to the job with this id" /></label></form>
  </div>`;
}

function List({ jobs }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Jobs, can be scrolled">
    <table class="jobs stack">
      <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col">User</th><th scope="col" class="num">GPUs</th>
        <th scope="col">Where, or why not</th><th scope="col" class="num">Submitted</th><th scope="col" class="num">Ran</th></tr></thead>
      <tbody>${jobs.map((job) => html`<${Row} key=${job.id} job=${job} />`)}</tbody>
    </table>
  </div>`;
}

/** A row is drawn again when its job changed, and while it runs, since its time goes on. */
class Row extends Component {
  shouldComponentUpdate({ job }) {
    const before = this.props.job;
    const same = job.state === before.state && job.attempt === before.attempt && job.reason?.message === before.reason?.message;
    return !same || !ENDED.includes(job.state);
  }

  render({ job }) {
    const { spec } = job;
    return html`<tr>
      <th scope="row"><${Link} to=${`/jobs/${job.id}`}>${spec.name}<//><small class="mono muted">${job.id}</small></th>
      <td><${State} of=${job.state} />${job.attempt > 1 && html`<small class="muted">attempt ${job.attempt}</small>`}</td>
      <td data-name="User">${spec.user}<small class="muted">${spec.namespace}</small></td>
      <td class="num" data-name="GPUs">${gpusText(spec)}</td>
      <td class="wide-text"><span class="clip" title=${where(job)}>${where(job)}</span></td>
      <td class="num" data-name="Submitted">${ago(job.created_at)}</td>
      <td class="num" data-name="Ran">${ran(job)}</td>
    </tr>`;
  }
}

function where(job) {
  return whereOf(job);
}

function whereOf(job) {
  if (job.state === "FAILED") return job.failure?.message ?? "";
  if (job.stopped_by && job.state === "CANCELLED") return `${job.stopped_by.verb} by ${job.stopped_by.actor}${job.stopped_by.reason ? `: ${job.stopped_by.reason}` : ""}`;
  if (job.reason) return job.reason.message;
  if (job.state === "QUEUED" && job.retry_at) return `${job.attempt ? "is tried again" : "begins"} ${ago(job.retry_at)}, at ${time(job.retry_at)}`;
  if (!job.placement) return "";
  const hosts = job.placement.slices.map((part) => (part.gpu_indices.length ? `${part.host}:${ranges(part.gpu_indices)}` : part.host));
  return hosts.slice(0, 4).join("  ") + (hosts.length > 4 ? `  and ${hosts.length - 4} more hosts` : "");
}

function ran(job) {
  if (!job.started_at) return "–";
  const end = job.finished_at ? Date.parse(job.finished_at) : now();
  return duration((end - Date.parse(job.started_at)) / 1000);
}
