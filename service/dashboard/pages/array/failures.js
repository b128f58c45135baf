/** Why elements of an array failed: those with the same reason together. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { count, words } from "../../parts/format.js";
import { ranges } from "../../parts/jobs.js";
import { Failed, Panel, sentence } from "../../parts/page.js";
import { Link } from "../../parts/router.js";

const MOST = 1000;
/** Indices that a row names. */
const MOST_INDICES = 40;

/** The panel. */
export function Failures({ array }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const failed = array.counts.FAILED ?? 0;
  useLoader(
    async () => {
      try {
        setFound(await get("/v1/jobs", { array: array.id, state: "FAILED", limit: MOST }));
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 60_000 },
    [array.id, failed],
  );
  const groups = found ? grouped(found.items) : [];
  return html`<${Panel} title="Failures by reason">
    <${Failed} problem=${problem} />
    ${found?.next_cursor && html`<p class="muted small-text">Of ${count(MOST, "element")} out of ${failed} that failed.</p>`}
    <div class="scroll" tabindex="0" role="group" aria-label="Failures by reason, can be scrolled"><table class="stack">
      <thead><tr><th scope="col">Reason</th><th scope="col">Kind</th><th scope="col" class="num">Elements</th><th scope="col">Which</th><th scope="col">For example</th></tr></thead>
      <tbody>${groups.map((group) => html`<tr key=${group.key}>
        <th scope="row">${sentence(group.text)}</th><td data-name="Kind">${words(group.kind)}</td><td class="num" data-name="Elements">${group.jobs.length}</td>
        <td class="wide-text" data-name="Which">${ranges(group.jobs.slice(0, MOST_INDICES).map(indexOf))}${group.jobs.length > MOST_INDICES ? ", …" : ""}</td>
        <td data-name="For example"><${Link} to=${`/jobs/${group.jobs[0].id}`}>element ${indexOf(group.jobs[0])}<//></td></tr>`)}</tbody>
    </table></div>
  <//>`;
}

/** Jobs with the same kind of failure, and the same message but for hosts and numbers that differ from element to element. */
function grouped(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    const { kind = "unknown", message = "no reason is known", exit_code: code, xid, host } = job.failure ?? {};
    const text = xid ? `XID ${xid}` : code !== null && code !== undefined ? `exit code ${code}` : message.replaceAll(host ?? "\0", "a host");
    const key = `${kind}\n${text}`;
    if (!groups.has(key)) groups.set(key, { key, kind, text, jobs: [] });
    groups.get(key).jobs.push(job);
  }
  return [...groups.values()].sort((a, b) => b.jobs.length - a.jobs.length);
}

function indexOf(job) {
  return Number(job.id.slice(job.id.lastIndexOf(".") + 1));
}
