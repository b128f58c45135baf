/** Submit a job. While one types, the page says where and when it would start. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, post } from "../api/http.js";
import { me, submits } from "../api/session.js";
import { Found, useDraft } from "../parts/draft.js";
import { againOf } from "../parts/jobs.js";
import { Failed, Page } from "../parts/page.js";
import { go, params } from "../parts/router.js";
import { EMPTY, formOf, specOf } from "./submit/form.js";
import { Preview } from "./submit/preview.js";

const LEVELS = ["nvlink", "numa", "socket", "host", "leaf", "spine"];

/** The page `/submit`. `?from=JOB` begins with the specification of that job. */
export function Submit() {
  const from = params().get("from");
  const { form, type, begin, found, forget } = useDraft(`submit ${from ?? ""}`, EMPTY);
  const [base, setBase] = useState(/** @type {any} */ ({}));
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [touched, setTouched] = useState(new Set());
  useEffect(() => {
    if (!from) return;
    get(`/v1/jobs/${encodeURIComponent(from)}`).then((job) => {
      const again = againOf(job.spec, me.value);
      setBase(again);
      if (!found) begin(formOf(again));
    }, setProblem);
  }, [from]);
  const hidden = useMemo(() => Object.keys(base.env ?? {}), [base]);
  const { spec, errors } = useMemo(() => specOf(form, base, hidden), [form, base, hidden]);
  const ready = Object.keys(errors).length === 0;
  const text = JSON.stringify(spec);
  // A second click, or a lost answer, makes no second job.
  const key = useRef({ text: "", value: "" });
  if (key.current.text !== text) key.current = { text, value: `dashboard-${Date.now()}-${Math.random().toString(36).slice(2)}` };
  const set = (name) => (event) => {
    const { type: kind, checked, value } = event.target;
    setProblem(null);
    type((before) => ({ ...before, [name]: kind === "checkbox" ? checked : value }));
  };
  const submit = async (event) => {
    event.preventDefault();
    setTouched(new Set(Object.keys(EMPTY)));
    if (!ready) return /** @type {HTMLElement|null} */ (document.querySelector(`[name="${Object.keys(errors)[0]}"]`))?.focus();
    setBusy(true);
    try {
      const job = await post("/v1/jobs", spec, { "Idempotency-Key": key.current.value });
      forget();
      return go(`/jobs/${job.id}`);
    } catch (error) {
      setProblem(error);
      return setBusy(false);
    }
  };
  const of = { form, errors, touched, set, touch: (name) => setTouched((before) => new Set(before).add(name)) };
  const priorities = me.value?.priorities ?? {};
  return html`<${Page} title=${from ? "Clone and edit" : "Submit a job"} wide>
    ${!submits.value && html`<div class="note wait"><strong>You may not submit</strong><p>It needs the role user in some namespace. You can try what would happen only with such a role, too.</p></div>`}
    <div class="submit">
      <form class="panel form" onSubmit=${submit} noValidate>
        ${found && html`<${Found} again=${() => begin(base.command ? formOf(base) : EMPTY)} />`}
        <${Text} ...${of} name="command" label="Command" hint="Program and arguments. Quotes work as in a shell, but no shell reads it: for pipes and variables write sh -c '…'." placeholder="python train.py --epochs 3" mono required />
        <div class="fields">
          <${Text} ...${of} name="name" label="Name" placeholder=${spec.name} />
          <${Text} ...${of} name="namespace" label="Namespace" placeholder="default" list=${Object.keys(me.value?.roles ?? {}).filter((one) => one !== "*")} />
          <${Text} ...${of} name="workdir" label="Working directory" placeholder="/srv/experiment" mono />
        </div>
        <fieldset><legend>GPUs</legend><div class="fields">
          <${Text} ...${of} name="hosts" label="Hosts" number />
          <${Text} ...${of} name="gpus" label="GPUs on each host" number />
          <${Text} ...${of} name="model" label="Model" placeholder="H100|A100" />
          <${Text} ...${of} name="memory" label="Memory of each, at least" placeholder="40GiB" />
          <${Choice} ...${of} name="require" label="All of them in one" values=${["", ...LEVELS]} names=${{ "": "wherever it fits" }} />
          <${Choice} ...${of} name="rank_per" label="One process for each" values=${["host", "gpu"]} names=${{ gpu: "GPU" }} />
        </div></fieldset>
        <fieldset><legend>Time and order</legend><div class="fields">
          <${Text} ...${of} name="time" label="Time limit" placeholder="2h30m" />
          <${Text} ...${of} name="priority" label="Priority" placeholder=${`0 (${Object.entries(priorities).map(([name, level]) => `${name} ${level}`).join(", ")})`} />
          <${Choice} ...${of} name="kind" label="Kind of work" values=${["", ...Object.keys(me.value?.kinds ?? {})]} names=${{ "": "not said" }} />
          <${Text} ...${of} name="retries" label="Retries after a failure" number />
        </div>
        <label class="tick"><input type="checkbox" checked=${form.checkpoints} onChange=${set("checkpoints")} />It goes on from its checkpoints, so it may be moved</label>
        <label class="tick"><input type="checkbox" checked=${form.preemptible} onChange=${set("preemptible")} />It may be stopped for a job of higher priority</label>
        </fieldset>
        <${Area} ...${of} name="env" label="Environment" hint="NAME=VALUE, one on each line. Values are shown to nobody later." />
        <${Failed} problem=${problem} again="What you typed stays here, and a second try makes no second job." />
        <div class="actions"><button type="submit" class="primary" disabled=${busy || !submits.value}>${busy ? "Submitting…" : "Submit"}</button></div>
      </form>
      <${Preview} spec=${spec} ready=${ready && submits.value} />
    </div>
  <//>`;
}

function Text({ form, errors, touched, touch, set, name, label, hint, placeholder, mono, number, required, list }) {
  const wrong = touched.has(name) && errors[name];
  return html`<div class="field ${mono && !number && name === "command" ? "whole" : ""}">
    <label for=${`f-${name}`}>${label}</label>
    <input id=${`f-${name}`} name=${name} type="text" inputmode=${number ? "numeric" : undefined} class=${mono ? "mono" : ""} value=${form[name]} placeholder=${placeholder}
      required=${required} spellcheck=${false} autocomplete="off" list=${list?.length ? `l-${name}` : undefined} aria-invalid=${Boolean(wrong)}
      aria-describedby=${`d-${name}`} onInput=${set(name)} onBlur=${() => touch(name)} />
    ${list?.length > 0 && html`<datalist id=${`l-${name}`}>${list.map((one) => html`<option value=${one} />`)}</datalist>`}
    <small id=${`d-${name}`} class=${wrong ? "wrong" : "muted"}>${wrong || hint}</small>
  </div>`;
}

function Area({ form, errors, touched, touch, set, name, label, hint }) {
  const wrong = touched.has(name) && errors[name];
  return html`<div class="field whole"><label for=${`f-${name}`}>${label}</label>
    <textarea id=${`f-${name}`} name=${name} class="mono" rows="3" spellcheck=${false} aria-invalid=${Boolean(wrong)} aria-describedby=${`d-${name}`}
      onInput=${set(name)} onBlur=${() => touch(name)} value=${form[name]}></textarea>
    <small id=${`d-${name}`} class=${wrong ? "wrong" : "muted"}>${wrong || hint}</small></div>`;
}

function Choice({ form, set, name, label, values, names }) {
  return html`<div class="field"><label for=${`f-${name}`}>${label}</label>
    <select id=${`f-${name}`} name=${name} value=${form[name]} onChange=${set(name)}>${values.map((one) => html`<option value=${one}>${names[one] ?? one}</option>`)}</select></div>`;
}
