/** One pipeline: the graph of its steps, and the jobs of each. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get, post } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { mayStop } from "../api/session.js";
import { AskFirst } from "../parts/dialog.js";
import { duration, time } from "../parts/format.js";
import { Failed, Loading, Page, Panel, sentence } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { ENDED, State } from "../parts/states.js";
import { StepGraph } from "../parts/step_graph.js";

/** Jobs of a step that are named; the page of its array shows all. */
const MOST_JOBS = 12;

/** The page `/pipelines/ID`. */
export function Pipeline({ id }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = async () => {
    try {
      setFound(await get(`/v1/pipelines/${encodeURIComponent(id)}`));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  const over = ENDED.includes(found?.state);
  useLoader(load, { every: over ? 60_000 : 5000, concerns: (event) => /^(job|array|pipeline)\./.test(event.kind), settle: 500 }, [id, over]);
  if (!found) return html`<${Page} title="Pipeline ${id}"><${Failed} problem=${problem} />${!problem && html`<${Loading} />`}<//>`;
  const { stopped_by: stopped, parameters } = found;
  const end = found.finished_at ? Date.parse(found.finished_at) : now();
  const facts = [
    ["Steps", found.steps.length],
    ["Completed", found.steps.filter((step) => step.state === "COMPLETED").length],
    ["Submitted", time(found.created_at)],
    [over ? "Took" : "Runs for", duration((end - Date.parse(found.created_at)) / 1000)],
    ...Object.entries(parameters).map(([name, value]) => [`Parameter ${name}`, JSON.stringify(value)]),
  ];
  return html`<${Page} title=${found.name} actions=${html`<${Actions} pipeline=${found} over=${over} after=${load} />`}>
    <${Failed} problem=${problem} />
    <p class="lead"><${State} of=${found.state} /> <code>${found.id}</code> <span class="muted">${found.user} in ${found.namespace}</span></p>
    ${stopped && html`<div class="note"><strong>${stopped.verb} by ${stopped.actor}</strong><p>${stopped.reason || "No reason was given."}</p></div>`}
    <dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Panel} title="Graph"><${StepGraph} steps=${found.steps} /><//>
    <${Panel} title="Steps">
      <div class="scroll" tabindex="0" role="group" aria-label="Steps, can be scrolled"><table class="stack">
        <thead><tr><th scope="col">Step</th><th scope="col">State</th><th scope="col">After</th><th scope="col">When</th><th scope="col" class="num">Jobs</th><th scope="col">Why, and which jobs</th></tr></thead>
        <tbody>${found.steps.map((step) => html`<${Row} key=${step.name} step=${step} />`)}</tbody>
      </table></div>
    <//>
  <//>`;
}

function Row({ step }) {
  const array = step.jobs.length > 1 ? step.jobs[0].job_id?.split(".")[0] : null;
  const shown = step.jobs.slice(0, MOST_JOBS);
  return html`<tr><th scope="row">${step.name}</th><td><${State} of=${step.state} /></td>
    <td data-name="After">${step.after.join(", ") || "–"}</td><td data-name="When">${step.when ? html`<code>${step.when}</code>` : "–"}</td>
    <td class="num" data-name="Jobs">${step.total === null ? "–" : `${step.completed} of ${step.total}`}</td>
    <td class="wide-text">${step.message && html`<p>${sentence(step.message)}</p>`}
      ${array && html`<p><${Link} to=${`/arrays/${array}`}>Array ${array}<//></p>`}
      ${shown.map((job) => html`<span key=${job.index} class="step-job">${job.job_id ? html`<${Link} to=${`/jobs/${job.job_id}`}>${array ? job.index : job.job_id}<//>` : job.refusal} ${job.state && html`<${State} of=${job.state} />`}${job.cached && html`<span class="muted"> cached</span>`}</span> `)}
      ${step.jobs.length > MOST_JOBS && html`<span class="muted">and ${step.jobs.length - MOST_JOBS} more</span>`}</td></tr>`;
}

function Actions({ pipeline, over, after }) {
  const may = mayStop(pipeline);
  const why = may ? undefined : `Needs to be the pipeline's user, or the role operator in ${pipeline.namespace}`;
  const send = (verb) => async (reason) => {
    await post(`/v1/pipelines/${pipeline.id}/${verb}`, verb === "cancel" ? { reason } : {});
    await after();
  };
  return html`
    ${!over && html`<${AskFirst} label="Cancel" danger title="Cancel ${pipeline.name}" action=${send("cancel")} disabled=${!may} why=${why} explain="Its jobs that run or wait are cancelled, and no more are submitted." />`}
    ${over && pipeline.state !== "COMPLETED" && html`<${AskFirst} label="Retry" title="Retry ${pipeline.name}" noReason action=${send("retry")} disabled=${!may} why=${why} explain="What was not completed runs again. What was stays." />`}`;
}
