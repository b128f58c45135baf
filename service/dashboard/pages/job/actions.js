/** What one may do to a job: stop it, preempt it, submit it again. */
import { html } from "htm/preact";
import { post } from "../../api/http.js";
import { atLeast, mayStop } from "../../api/session.js";
import { AskFirst } from "../../parts/dialog.js";
import { go, Link } from "../../parts/router.js";
import { ENDED, HOLDING } from "../../parts/states.js";

const WAITING = ["PENDING", "QUEUED", "PREEMPTED"];

/** Buttons for one job. `after`: called when something was done. */
export function Actions({ job, after }) {
  const { spec } = job;
  const over = ENDED.includes(job.state);
  const stop = mayStop(spec);
  const operates = atLeast("operator", spec.namespace);
  const send = (verb) => async (reason) => {
    await post(`/v1/jobs/${job.id}/${verb}`, { reason });
    await after();
  };
  const notYours = `Needs to be the job's user, or the role operator in ${spec.namespace}`;
  return html`
    ${!over && html`<${AskFirst} label="Cancel" title="Cancel ${spec.name}" action=${send("cancel")} disabled=${!stop} why=${stop ? undefined : notYours}
      explain="It gets SIGTERM, its grace of ${spec.grace_s} s, then SIGKILL, and ends CANCELLED." />
    <${AskFirst} label="Kill" danger title="Kill ${spec.name}" action=${send("kill")} disabled=${!stop} why=${stop ? undefined : notYours}
      explain="It gets SIGKILL at once, without time for a checkpoint, and ends CANCELLED." />`}
    ${WAITING.includes(job.state) && (job.reason?.code === "held"
      ? html`<${AskFirst} key="release" label="Release" title="Release ${spec.name}" noReason action=${send("release")} disabled=${!stop} why=${stop ? undefined : notYours}
          explain="It may start again. Its place in the queue counts from now on." />`
      : html`<${AskFirst} key="hold" label="Hold" title="Hold ${spec.name}" action=${send("hold")} disabled=${!stop} why=${stop ? undefined : notYours}
          explain="It keeps waiting until it is released, whatever is free." />`)}
    ${HOLDING.includes(job.state) && html`<${AskFirst} label="Preempt" title="Preempt ${spec.name}" action=${send("preempt")} disabled=${!operates}
      why=${operates ? undefined : `Needs the role operator in ${spec.namespace}`}
      explain="It is stopped with its grace to write a checkpoint, and queued again." />`}
    ${over && html`<${AskFirst} label="Retry" title="Run ${spec.name} again" noReason action=${() => again(job)} disabled=${!stop} why=${stop ? undefined : notYours}
      explain=${element(job) ? "A new array runs this element again, with its index and parameters." : `A new job of ${spec.user} with the same specification, also with the values of its environment.`} />`}
    <${Link} class="button" to=${`/submit?from=${job.id}`}>Clone and edit<//>`;
}

const KEYS = new Map();

/** Submit it again. A second try, because no answer came to the first one, makes no second job. */
async function again(job) {
  if (!KEYS.has(job.id)) KEYS.set(job.id, crypto.randomUUID?.() ?? `${job.id}-${Date.now()}`);
  const key = { "Idempotency-Key": KEYS.get(job.id) };
  const one = element(job);
  const made = one
    ? await post(`/v1/arrays/${one[1]}/retry`, { elements: one[2] }, key)
    : await post(`/v1/jobs/${job.id}/retry`, {}, key);
  KEYS.delete(job.id);
  go(`/${one ? "arrays" : "jobs"}/${made.id}`);
}

/** The array and the index of an element. null: the job is none. */
function element(job) {
  return /^(a-[0-9a-z]+)\.([0-9]+)$/.exec(job.id);
}
