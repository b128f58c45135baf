/** The queue: who is next, why each job waits, who holds what it needs, and when it starts. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get, getAll } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { ago, count, duration, time, words } from "../parts/format.js";
import { Filter } from "../parts/filter.js";
import { shapeOf } from "../parts/jobs.js";
import { Empty, Failed, Loading, Page, Panel, sentence } from "../parts/page.js";
import { Link, params, setParams } from "../parts/router.js";
import { HOLDING } from "../parts/states.js";
import { Plan } from "./queue/plan.js";

const PAGE = 100;
const RELEVANT = /^(job|gang|queue|host|gpu|window)\./;
/** Basis of an estimate -> what it means. */
const BASIS = {
  time_limits: "if running jobs and jobs ahead use their time limits",
  run_times: "by how long such jobs ran before",
  no_time_limit: "unknown: it depends on jobs without a time limit",
  repair: "unknown: hosts or GPUs must come back first",
  quota: "unknown: it depends on what its namespace or user holds",
  alone: "without the jobs ahead in the queue",
  parts: "unknown here: the page of the job computes it",
  making_room: "when the jobs that are preempted for it have ended",
  too_far: "unknown: too many jobs are ahead",
  window: "unknown: a maintenance window or a reservation must end or begin first",
};

/** The page `/queue`. */
export function Queue() {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const asked = params();
  const [namespace, cursor, chosen] = ["namespace", "after", "job"].map((name) => asked.get(name));
  useLoader(
    async () => {
      try {
        const [queue, running, hosts, windows] = await Promise.all([
          get("/v1/queue", { namespace, cursor, limit: PAGE }),
          get("/v1/jobs", { state: HOLDING, limit: 1000 }),
          getAll("/v1/hosts", { limit: 1000 }),
          allWindows(),
        ]);
        setFound({ queue, running: running.items, more: running.next_cursor !== null, hosts, windows, now: now() / 1000 });
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 15_000, concerns: (event) => RELEVANT.test(event.kind), settle: 700 },
    [namespace, cursor],
  );
  return html`<${Page} title="Queue" wide>
    <${Failed} problem=${problem} />
    <div class="toolbar"><${Filter} name="namespace" label="Namespace" /></div>
    ${!found ? !problem && html`<${Loading} what="Asking for the queue" />` : html`
      <${Waiting} queue=${found.queue} running=${found.running} chosen=${chosen} cursor=${cursor} />
      <${Plan} ...${found} chosen=${chosen} />`}
  <//>`;
}

let hasWindows = true;

/** Maintenance windows and advance reservations. A service that has none says 404, and is not asked again. */
async function allWindows() {
  if (!hasWindows) return [];
  try {
    return await getAll("/v1/reservations", { limit: 1000 });
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    hasWindows = false;
    return [];
  }
}

function Waiting({ queue, running, chosen, cursor }) {
  const names = new Map(running.map((job) => [job.id, job.spec.name]));
  const { items, next_cursor: next } = queue;
  if (!items.length) return html`<${Panel} title="Waiting jobs"><${Empty}>No job waits.<//><//>`;
  return html`<${Panel} title="Waiting jobs">
    <div class="scroll" tabindex="0" role="group" aria-label="Waiting jobs, can be scrolled"><table class="queue stack">
      <thead><tr><th scope="col" class="num">Place</th><th scope="col">Job</th><th scope="col">Asks for</th><th scope="col" class="num">Waits</th>
        <th scope="col">Why</th><th scope="col">Held by</th><th scope="col">Start</th></tr></thead>
      <tbody>${items.map((entry) => html`<${Entry} key=${entry.job_id} entry=${entry} names=${names} chosen=${entry.job_id === chosen} />`)}</tbody>
    </table></div>
    ${(next || cursor) && html`<div class="actions end">
      <button type="button" disabled=${!cursor} onClick=${() => setParams({ after: null }, { replace: false })}>First</button>
      <button type="button" disabled=${!next} onClick=${() => setParams({ after: next }, { replace: false })}>Next</button></div>`}
  <//>`;
}

function Entry({ entry, names, chosen }) {
  const { spec, reason } = entry;
  const waits = (now() - Date.parse(entry.waiting_since)) / 1000;
  return html`<tr class=${chosen ? "chosen" : ""}>
    <td class="num" data-name="Place">${entry.position}</td>
    <th scope="row"><${Link} to=${`/jobs/${entry.job_id}`}>${spec.name}<//><small class="muted">${spec.user} in ${spec.namespace}${spec.priority ? `, priority ${spec.priority}` : ""}</small></th>
    <td data-name="Asks for">${shapeOf(spec)}<small class="muted">${spec.time_limit_s ? `up to ${duration(spec.time_limit_s)}` : "no time limit"}</small></td>
    <td class="num" data-name="Waits">${duration(waits)}</td>
    <td class="wide-text">${reason ? html`<span class="state wait">${words(reason.code)}</span><span class="why-text">${sentence(reason.message)}${reason.next_step && html` <span class="muted">${sentence(reason.next_step)}</span>`}</span>` : html`<span class="muted">The scheduler has not looked at it yet.</span>`}</td>
    <td data-name="Held by">${reason?.holders.length ? html`${reason.holders.map((one) => html`<${Holder} key=${one.job_id} holder=${one} name=${names.get(one.job_id)} />`)}
        ${reason.more_holders > 0 && html`<small class="muted">and ${count(reason.more_holders, "more job")}</small>`}
        <button type="button" aria-pressed=${chosen} onClick=${() => setParams({ job: chosen ? null : entry.job_id })}>${chosen ? "Unmark" : "Mark below"}</button>` : html`<span class="muted">–</span>`}</td>
    <td data-name="Start"><${Start} reason=${reason} /></td>
  </tr>`;
}

function Holder({ holder, name }) {
  const hidden = holder.job_id === "hidden";
  const text = html`${name ?? holder.job_id} <span class="muted">${count(holder.gpus, "GPU")}${holder.ends_by ? `, until ${time(holder.ends_by)}` : ""}</span>`;
  return html`<div>${hidden ? text : html`<${Link} to=${`/jobs/${holder.job_id}`}>${text}<//>`}</div>`;
}

function Start({ reason }) {
  if (!reason) return "–";
  const { starts_by: promised, estimated_start: estimated, estimate, estimated_between: between } = reason;
  if (promised) return html`<strong>${ago(promised)}</strong><small class="muted">promised: by ${time(promised)}</small>`;
  if (estimated) return html`<strong>${ago(estimated)}</strong><small class="muted">estimated: ${time(estimated)}</small>
    <small class="muted wrap">${between ? `80 % between ${time(between[0])} and ${time(between[1])}` : BASIS[estimate]}</small>`;
  return html`<small class="muted wrap">${BASIS[estimate] ?? "no estimate yet"}</small>`;
}
