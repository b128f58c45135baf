/** One job: what happened to it, where it runs, what it wrote, what it used, and what one may do. */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { ago, count, duration, json, number, time } from "../parts/format.js";
import { shapeOf } from "../parts/jobs.js";
import { Failed, Loading, Page, sentence } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { ENDED, HOLDING, State } from "../parts/states.js";
import { Actions } from "./job/actions.js";
import { Checkpoints } from "./job/checkpoints.js";
import { Logs } from "./job/logs.js";
import { Measured } from "./job/measured.js";
import { Placed } from "./job/placed.js";
import { Timeline } from "./job/timeline.js";
import { Used } from "./job/used.js";

/** Events that one answer has at most. */
const MOST_EVENTS = 1000;

/** The page `/jobs/ID`. */
export function Job({ id }) {
  const [job, setJob] = useState(null);
  const [events, setEvents] = useState(/** @type {any[]} */ ([]));
  const [problem, setProblem] = useState(null);
  const load = async () => {
    try {
      const at = `/v1/jobs/${encodeURIComponent(id)}`;
      const [found, all] = await Promise.all([get(at), allEvents(`${at}/events`)]);
      setJob(found);
      setEvents(all);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  const over = job && ENDED.includes(job.state);
  useLoader(load, { every: over ? 60_000 : 5000, concerns: (event) => event.job_id === id, settle: 150 }, [id, over]);
  if (!job) return html`<${Page} title="Job ${id}"><${Failed} problem=${problem} />${!problem && html`<${Loading} />`}<//>`;
  return html`<${Page} title=${job.spec.name} actions=${html`<${Actions} job=${job} after=${load} />`}>
    <${Failed} problem=${problem} />
    <p class="lead"><${State} of=${job.state} /> <code>${job.id}</code> <span class="muted">${job.spec.user} in ${job.spec.namespace}</span>
      ${arrayOf(job.id) && html` <span class="muted">element of <${Link} to=${`/arrays/${arrayOf(job.id)}`}>${arrayOf(job.id)}<//></span>`}</p>
    <${Said} job=${job} />
    <${Facts} job=${job} events=${events} />
    <${Timeline} job=${job} events=${events} />
    ${job.placement && html`<${Placed} job=${job} />`}
    ${job.attempt > 0 && html`<${Logs} job=${job} key=${job.id} />`}
    ${job.attempt > 0 && html`<${Measured} job=${job} />`}
    ${job.attempt > 0 && html`<${Used} job=${job} />`}
    ${job.attempt > 0 && html`<${Checkpoints} job=${job} />`}
    <details class="panel"><summary>Specification</summary><pre tabindex="0">${json(job.spec)}</pre></details>
  <//>`;
}

/** All events of a job, oldest first. */
async function allEvents(path) {
  const events = [];
  for (let after = null; ; ) {
    const page = await get(path, { after, limit: MOST_EVENTS });
    events.push(...page.items);
    after = page.next_cursor;
    if (!after) return events;
  }
}

/** The array whose element the job is, or null. */
function arrayOf(id) {
  return /^(a-[0-9a-z]+)\.\d+$/.exec(id)?.[1] ?? null;
}

/** What somebody who looks at this job should read first. */
function Said({ job }) {
  const { failure, reason, stopped_by: stopped, warnings } = job;
  return html`
    ${failure && html`<div class="note ${job.state === "FAILED" ? "bad" : "wait"}"><strong>${job.state === "FAILED" ? "It failed" : "An earlier attempt failed"}</strong><p>${sentence(failure.message)}</p>
      <p class="muted">${[`kind ${failure.kind}`, failure.host && `host ${failure.host}`, failure.xid && `XID ${failure.xid}`, failure.exit_code !== null && `exit code ${failure.exit_code}`].filter(Boolean).join(" · ")}</p></div>`}
    ${stopped && html`<div class="note"><strong>${stopped.verb} by ${stopped.actor}</strong><p>${stopped.reason || "No reason was given."}</p></div>`}
    ${reason && html`<div class="note wait"><strong>It waits${reason.position ? `, place ${reason.position}` : ""}</strong><p>${sentence(reason.message)}</p>
      ${reason.next_step && html`<p>${sentence(reason.next_step)}</p>`}
      ${(reason.starts_by || reason.estimated_start) && html`<p>${reason.starts_by ? "Promised" : "Estimated"} to start ${ago(reason.starts_by ?? reason.estimated_start)}, at ${time(reason.starts_by ?? reason.estimated_start)}. <${Link} to="/queue">See the queue<//></p>`}</div>`}
    ${job.state === "QUEUED" && job.retry_at && !reason && html`<div class="note wait"><strong>${job.attempt ? "It is tried again" : "It begins"} ${ago(job.retry_at)}</strong><p>At ${time(job.retry_at)}.</p></div>`}
    ${warnings.map((text) => html`<div class="note wait" key=${text}><strong>Warning</strong><p>${sentence(text)}</p></div>`)}`;
}

function Facts({ job, events }) {
  const { spec } = job;
  const [traces, setTraces] = useState(null);
  useEffect(() => {
    get("/v1/cluster").then((cluster) => setTraces(cluster.trace_url), () => {});
  }, []);
  const began = job.started_at && Date.parse(job.started_at);
  const ended = job.finished_at ? Date.parse(job.finished_at) : now();
  const trace = events.find((event) => event.data.trace_id)?.data.trace_id;
  const facts = [
    ["Asks for", shapeOf(spec)],
    ["Attempt", `${job.attempt}${job.hardware_retries ? `, ${count(job.hardware_retries, "fault")}` : ""}${job.preemptions ? `, ${count(job.preemptions, "preemption")}` : ""}`],
    ["Priority", spec.priority],
    ["Kind", spec.kind ?? (job.inferred_kind ? `${job.inferred_kind} (inferred)` : "–")],
    ...(job.retry_of ? [["Retry of", html`<${Link} to=${`/jobs/${job.retry_of}`}>${job.retry_of}<//>`]] : []),
    ["Submitted", time(job.created_at)],
    [HOLDING.includes(job.state) ? "Runs for" : "Ran for", began ? duration((ended - began) / 1000) : "–"],
    ["Time limit", spec.time_limit_s ? duration(spec.time_limit_s) : "none"],
    ["Expected to run", job.run_time ? `${duration(job.run_time.median_s)} (${number(job.run_time.runs)} runs)` : "–"],
    ...(job.exit_code === null ? [] : [["Exit code", job.exit_code]]),
  ];
  return html`<dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    ${job.workflow_url && html`<div><dt>Workflow</dt><dd><a href=${job.workflow_url} rel="noreferrer">Temporal UI</a></dd></div>`}
    ${trace && html`<div><dt>Trace</dt><dd>${traces ? html`<a href=${traces.replaceAll("{trace_id}", trace)} rel="noreferrer" title=${trace}>Show the trace</a>` : html`<code>${trace}</code>`}</dd></div>`}
  </dl>`;
}
