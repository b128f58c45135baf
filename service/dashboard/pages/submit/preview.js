/** What would happen: the dry run of what is typed, what it would take, and the same job as texts. */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, request } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { ago, duration, number, time } from "../../parts/format.js";
import { gpusOf, ranges } from "../../parts/jobs.js";
import { Failed, Panel, sentence } from "../../parts/page.js";
import { Link } from "../../parts/router.js";
import { commandLine, yaml } from "./texts.js";

/** So long nothing is typed before the service is asked. */
const PAUSE_MS = 400;
/** So old an answer may be, and so long one waits after none. */
const [OLD_MS, AGAIN_MS] = [30_000, 2000];

/** The panels beside the form. `ready`: nothing is wrong with the form itself. */
export function Preview({ spec, ready }) {
  const text = JSON.stringify(spec);
  const { answer, problem, busy } = useDryRun(text, ready);
  return html`<div class="preview">
    <${Panel} title="Dry run">
      <div aria-live="polite" aria-busy=${busy}>
        ${!ready && html`<p class="muted">Once the form is complete, this says where and when the job would start.</p>`}
        ${ready && problem && html`<${Failed} problem=${problem} />`}
        ${ready && problem?.errors.map((one) => html`<p key=${one.field}><code>${one.field}</code> ${one.message}</p>`)}
        ${ready && answer && html`<${Answer} answer=${answer} />`}
        ${ready && !answer && !problem && html`<p class="muted">Asking…</p>`}
      </div>
    <//>
    ${ready && html`<${Cost} spec=${spec} />`}
    <${Copied} title="Command line" text=${ready ? commandLine(spec) : "gpu-platform submit …"} />
    <${Copied} title="YAML" text=${yaml(spec)} note="gpu-platform submit -f job.yaml" />
  </div>`;
}

function useDryRun(text, ready) {
  const [found, setFound] = useState(/** @type {{answer: any, problem: any, busy: boolean}} */ ({ answer: null, problem: null, busy: false }));
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (!ready) return undefined;
    let later = 0;
    const again = (ms) => (later = setTimeout(() => (document.hidden ? again(ms) : setTries((before) => before + 1)), ms));
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      setFound((before) => ({ ...before, busy: true }));
      try {
        const answer = await (await request("POST", "/v1/jobs:dry-run", text, { signal: stop.signal })).json();
        setFound({ answer, problem: null, busy: false });
        again(OLD_MS);
      } catch (problem) {
        if (stop.signal.aborted) return;
        setFound({ answer: null, problem, busy: false });
        if (problem.retryable) again(AGAIN_MS);
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      clearTimeout(later);
      stop.abort();
    };
  }, [text, ready, tries]);
  return found;
}

function Answer({ answer }) {
  const { accepted, placement, reason, preempts, message, warnings, waits_for: first } = answer;
  if (!accepted) return html`<div class="note bad"><strong>It would be refused</strong><p>${sentence(message)}</p></div>`;
  const start = reason?.starts_by ?? reason?.estimated_start;
  return html`
    ${placement
      ? html`<div class="note good"><strong>It would start now</strong><p>${sentence(placement.why)}</p>
          <ul>${placement.slices.map((part) => html`<li key=${part.host}><${Link} to=${`/hosts/${encodeURIComponent(part.host)}`}>${part.host}<//> ${part.gpu_indices.length > 0 && `GPU ${ranges(part.gpu_indices)}`}</li>`)}</ul></div>`
      : html`<div class="note wait"><strong>It would wait${start ? `, and start ${ago(start)}` : ""}</strong>
          <p>${sentence(reason?.message ?? message)}</p>
          ${start && html`<p>${reason.starts_by ? "By a promise" : "By estimate"}: ${time(start)}.</p>`}
          ${reason?.position && html`<p>Place ${reason.position} in the queue.</p>`}
          ${reason?.next_step && html`<p>${sentence(reason.next_step)}</p>`}</div>`}
    ${preempts.length > 0 && html`<p>It would preempt ${preempts.map((id) => html`<${Link} key=${id} to=${`/jobs/${id}`}>${id}<//> `)}</p>`}
    ${first && html`<p>First: ${sentence(first)}</p>`}
    ${warnings.map((text) => html`<div class="note wait" key=${text}><p>${sentence(text)}</p></div>`)}`;
}

/** What it takes of the quota: GPUs while it runs, and GPU hours at most. */
function Cost({ spec }) {
  const [quotas, setQuotas] = useState(null);
  const namespace = spec.namespace ?? "default";
  // Without an answer nothing is said about limits: "no limit" might not be true.
  useLoader(async () => setQuotas((await get("/v1/quotas")).items), { every: 15_000 });
  const gpus = gpusOf({ gpus: { hosts: 1, gpus_per_host: 1, ...spec.gpus }, groups: spec.groups });
  const found = quotas?.find((one) => one.namespace === namespace);
  const held = found?.held_gpus ?? 0;
  const facts = [
    ["GPUs while it runs", gpus],
    ["GPU hours at most", spec.time_limit_s ? number((gpus * spec.time_limit_s) / 3600) : "no time limit"],
    [`${namespace} holds now`, quotas ? `${number(held, 2)} ${held === 1 ? "GPU" : "GPUs"}` : "…"],
    ["and with it", !quotas ? "…" : found?.limit_gpus ? `${number(held + gpus, 2)} of ${number(found.limit_gpus)}` : `${number(held + gpus, 2)}, no limit`],
    ...(found?.guaranteed_gpus ? [["of which guaranteed", found.guaranteed_gpus]] : []),
    ...(found?.max_job_duration_s ? [["Longest time limit", duration(found.max_job_duration_s)]] : []),
  ];
  return html`<${Panel} title="What it takes"><dl class="facts small plain">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><//>`;
}

function Copied({ title, text, note }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Select it and copy it: the browser lets pages copy only over https or on localhost");
    }
  };
  return html`<${Panel} title=${title} actions=${html`<span class="muted" role="status">${said}</span><button type="button" onClick=${copy}>Copy</button>`}>
    <pre tabindex="0" class="wrapped">${text}</pre>
    ${note && html`<p class="muted small-text">Save it as job.yaml: <code>${note}</code></p>`}
  <//>`;
}
