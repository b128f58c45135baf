/** One schedule: when it fires next, and what became of the last jobs. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, request } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { mayStop } from "../api/session.js";
import { AskFirst } from "../parts/dialog.js";
import { ago, duration, json, time } from "../parts/format.js";
import { shapeOf } from "../parts/jobs.js";
import { Empty, Failed, Loading, Page, Panel, sentence } from "../parts/page.js";
import { go, Link } from "../parts/router.js";
import { State } from "../parts/states.js";

/** When a schedule fires, in words. */
export function when({ cron, every_s: every, timezone }) {
  return cron ? html`<code>${cron}</code> <span class="muted">${timezone}</span>` : `every ${duration(every)}`;
}

/** The page `/schedules/ID`. */
export function Schedule({ id }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = async () => {
    try {
      setFound(await get(`/v1/schedules/${encodeURIComponent(id)}`));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useLoader(load, { every: 10_000, concerns: (event) => /^(job|schedule)\./.test(event.kind), settle: 500 }, [id]);
  if (!found) return html`<${Page} title="Schedule ${id}"><${Failed} problem=${problem} />${!problem && html`<${Loading} />`}<//>`;
  const { request: asked } = found;
  const facts = [
    ["When", when(asked)],
    ["Next", found.paused ? "paused" : found.next_times.length ? ago(found.next_times[0]) : "–"],
    ["If the last one still runs", asked.overlap],
    ["Missed firings are made up for", duration(asked.catch_up_s)],
    ["Each asks for", shapeOf(asked.job)],
    ["Made", time(found.created_at)],
  ];
  return html`<${Page} title=${asked.job.name} actions=${html`<${Actions} schedule=${found} after=${load} />`}>
    <${Failed} problem=${problem} />
    <p class="lead"><span class="state ${found.paused ? "wait" : "good"}">${found.paused ? "paused" : "active"}</span> <code>${found.id}</code> <span class="muted">${found.user} in ${found.namespace}</span></p>
    ${found.note && html`<div class="note"><strong>${found.paused ? "Paused" : "Resumed"}</strong><p>${sentence(found.note)}</p></div>`}
    <dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <div class="columns">
      <${Panel} title="Last results">
        ${!found.runs.length ? html`<${Empty}>It has not fired yet.<//>` : html`<div class="scroll" tabindex="0" role="group" aria-label="Last results, can be scrolled"><table class="stack">
          <thead><tr><th scope="col">Due</th><th scope="col">Result</th><th scope="col">Job</th></tr></thead>
          <tbody>${found.runs.map((run) => html`<tr key=${run.due_at}><th scope="row">${time(run.due_at)}<small class="muted">${ago(run.due_at)}</small></th>
            <td>${run.state ? html`<${State} of=${run.state} />` : html`<span class="state bad">not submitted</span>`}</td>
            <td class="wide-text">${run.job_id ? html`<${Link} to=${`/jobs/${run.job_id}`}>${run.job_id}<//>` : ""}${run.refusal && html`<p>${sentence(run.refusal)}</p>`}</td></tr>`)}</tbody>
        </table></div>`}
      <//>
      <${Panel} title="Next firings">
        ${found.paused ? html`<${Empty}>It is paused and does not fire.<//>` : html`<ol class="times">${found.next_times.map((at) => html`<li key=${at}>${time(at)} <span class="muted">${ago(at)}</span></li>`)}</ol>`}
      <//>
    </div>
    <details class="panel"><summary>Specification of its jobs</summary><pre tabindex="0">${json(asked.job)}</pre></details>
  <//>`;
}

function Actions({ schedule, after }) {
  const may = mayStop(schedule);
  const why = may ? undefined : `Needs to be the schedule's user, or the role operator in ${schedule.namespace}`;
  const at = `/v1/schedules/${encodeURIComponent(schedule.id)}`;
  const name = schedule.request.job.name;
  const send = (verb) => async (reason) => {
    await request("POST", `${at}/${verb}`, JSON.stringify(verb === "trigger" ? {} : { reason }));
    await after();
  };
  const remove = async () => {
    await request("DELETE", at);
    go("/schedules");
  };
  return html`
    ${schedule.paused
      ? html`<${AskFirst} key="resume" label="Resume" title="Resume ${name}" action=${send("resume")} disabled=${!may} why=${why} explain="It fires again. What was due meanwhile is not made up for." />`
      : html`<${AskFirst} key="pause" label="Pause" title="Pause ${name}" action=${send("pause")} disabled=${!may} why=${why} explain="It fires no more until it is resumed. Jobs that run go on." />`}
    <${AskFirst} label="Fire now" title="Fire ${name} now" noReason action=${send("trigger")} disabled=${!may} why=${why} explain="It submits its job now, also while it is paused." />
    <${AskFirst} label="Delete" danger title="Delete ${name}" noReason action=${remove} disabled=${!may} why=${why} explain="It never fires again. Jobs that run go on." />`;
}
