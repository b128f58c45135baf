/** One array: how many elements are in which state, each element, and why elements failed. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { now } from "../api/clock.js";
import { get, post } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { atLeast, mayStop } from "../api/session.js";
import { AskFirst } from "../parts/dialog.js";
import { CountBar, countsOf, JOB_LETTERS } from "../parts/elements.js";
import { duration, json, number, time, words } from "../parts/format.js";
import { shapeOf } from "../parts/jobs.js";
import { Failed, Loading, Page, Panel, sentence } from "../parts/page.js";
import { go, Link } from "../parts/router.js";
import { ENDED, State } from "../parts/states.js";
import { Elements } from "./array/elements.js";
import { Failures } from "./array/failures.js";

/** The page `/arrays/ID`. */
export function OneArray({ id }) {
  const [array, setArray] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = async () => {
    try {
      setArray(await get(`/v1/arrays/${encodeURIComponent(id)}`));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  const over = ENDED.includes(array?.state);
  useLoader(load, { every: over ? 60_000 : 10_000, concerns: (event) => event.job_id === id || Boolean(event.job_id?.startsWith(`${id}.`)), settle: 1000 }, [id, over]);
  if (!array) return html`<${Page} title="Array ${id}"><${Failed} problem=${problem} />${!problem && html`<${Loading} />`}<//>`;
  const { spec, array: shape, stopped_by: stopped, reason } = array;
  const facts = [
    ["Elements", number(array.size, 0)],
    ["Indices", shape.indices],
    ["Each asks for", shapeOf(spec)],
    ["At once", shape.at_once ?? "no bound"],
    ["After a failure", words(shape.on_failure)],
    ["Parameters", shape.parameters.join(", ") || "none"],
    ["Submitted", time(array.created_at)],
    [over ? "Took" : "Runs for", duration(((array.finished_at ? Date.parse(array.finished_at) : now()) - Date.parse(array.created_at)) / 1000)],
  ];
  return html`<${Page} title=${spec.name} actions=${html`<${Actions} array=${array} over=${over} after=${load} />`}>
    <${Failed} problem=${problem} />
    <p class="lead"><${State} of=${array.state} /> <code>${array.id}</code> <span class="muted">${spec.user} in ${spec.namespace}</span>
      ${shape.repeats && html` <span class="muted">runs elements of <${Link} to=${`/arrays/${shape.repeats}`}>${shape.repeats}<//> again</span>`}</p>
    ${stopped && html`<div class="note"><strong>${stopped.verb} by ${stopped.actor}</strong><p>${stopped.reason || "No reason was given."}</p></div>`}
    ${reason && html`<div class="note wait"><strong>It waits</strong><p>${sentence(reason.message)}</p></div>`}
    <dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
      ${array.workflow_url && html`<div><dt>Workflow</dt><dd><a href=${array.workflow_url} rel="noreferrer">Temporal UI</a></dd></div>`}</dl>
    <${Panel} title="Progress">
      <${CountBar} array=${array} />
      <ul class="legend counts" aria-label="Elements by state">${countsOf(array).map(([state, many]) => html`<li key=${state}><span class="cell job-${state}" aria-hidden="true">${JOB_LETTERS[state]}</span>${number(many, 0)} ${words(state)}</li>`)}</ul>
    <//>
    ${(array.counts.FAILED ?? 0) > 0 && html`<${Failures} array=${array} />`}
    <${Elements} array=${array} />
    <details class="panel"><summary>Specification</summary><pre tabindex="0">${json(spec)}</pre></details>
  <//>`;
}

function Actions({ array, over, after }) {
  const { spec } = array;
  const may = mayStop(spec);
  const why = may ? undefined : `Needs to be the array's user, or the role operator in ${spec.namespace}`;
  const send = (verb) => async (reason) => {
    await post(`/v1/arrays/${array.id}/${verb}`, { reason });
    await after();
  };
  const again = async () => go(`/arrays/${(await post(`/v1/arrays/${array.id}/retry`, {}, { "Idempotency-Key": `${array.id}-${array.finished_at}` })).id}`);
  const failed = (array.counts.FAILED ?? 0) + (array.counts.CANCELLED ?? 0);
  return html`
    ${!over && html`<${AskFirst} label="Cancel" title="Cancel ${spec.name}" action=${send("cancel")} disabled=${!may} why=${why} explain="Its elements get SIGTERM, their grace, then SIGKILL. Elements that have not started never will." />
      <${AskFirst} label="Kill" danger title="Kill ${spec.name}" action=${send("kill")} disabled=${!may} why=${why} explain="Its elements get SIGKILL at once." />
      <${AskFirst} label="Hold" title="Hold ${spec.name}" action=${send("hold")} disabled=${!may} why=${why} explain="Elements that wait, and those to come, do not start until it is released. What runs goes on." />
      <${AskFirst} label="Release" title="Release ${spec.name}" noReason action=${send("release")} disabled=${!may} why=${why} explain="Ends a hold of the array. Elements that are held by themselves stay held." />`}
    ${over && failed > 0 && html`<${AskFirst} label="Retry failed" title="Run ${number(failed, 0)} elements again" noReason action=${again} disabled=${!may && !atLeast("operator", spec.namespace)} why=${why}
      explain="A new array runs the elements again that were not completed, with the same indices and parameters." />`}`;
}
