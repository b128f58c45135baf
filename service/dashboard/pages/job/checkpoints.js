/** The checkpoints of a job, as the hosts that see them report them. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get, post } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { mayStop } from "../../api/session.js";
import { mib, time } from "../../parts/format.js";
import { Empty, Failed, Panel } from "../../parts/page.js";

/** The panel. */
export function Checkpoints({ job }) {
  const [items, setItems] = useState(null);
  const [problem, setProblem] = useState(null);
  const [said, setSaid] = useState("");
  const load = async () => {
    try {
      setItems((await get(`/v1/jobs/${job.id}/checkpoints`)).items);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useLoader(load, { every: job.state === "RUNNING" ? 30_000 : 600_000 }, [job.id, job.attempt, job.state]);
  const ask = async () => {
    try {
      const { signalled } = await post(`/v1/jobs/${job.id}/checkpoints`);
      setSaid(`The program was asked for a checkpoint${signalled ? `, ${signalled} processes by a signal` : ""}.`);
      await load();
    } catch (error) {
      setProblem(error);
    }
  };
  const actions = job.state === "RUNNING" && html`<button type="button" disabled=${!mayStop(job.spec)} title=${mayStop(job.spec) ? undefined : `Needs to be the job's user, or the role operator in ${job.spec.namespace}`} onClick=${ask}>Ask for one now</button>`;
  return html`<${Panel} title="Checkpoints" actions=${actions}>
    <${Failed} problem=${problem} />
    <p role="status">${said}</p>
    ${items?.length === 0 && html`<${Empty}>No checkpoint yet. A program that is asked writes one into <code>$GPU_PLATFORM_CHECKPOINT_DIR</code>.<//>`}
    ${items?.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="Checkpoints, can be scrolled"><table>
      <thead><tr><th scope="col">Checkpoint</th><th scope="col" class="num">Step</th><th scope="col">Written</th><th scope="col" class="num">Size</th><th scope="col">Complete</th><th scope="col">Where</th></tr></thead>
      <tbody>${items.map((one) => html`<tr key=${`${one.attempt}/${one.name}`}><th scope="row">${one.attempt}${one.name && `/${one.name}`}${one.kept ? " (kept)" : ""}</th>
        <td class="num">${one.step ?? "–"}</td><td>${time(one.written_at)}</td><td class="num">${one.size_bytes === null ? "–" : mib(one.size_bytes / 2 ** 20)}</td>
        <td>${one.problem ?? one.verified ?? "yes"}</td><td class="wide-text"><code>${one.path}</code> <span class="muted">${one.hosts.join(", ")}</span></td></tr>`)}</tbody>
    </table></div>`}
  <//>`;
}
