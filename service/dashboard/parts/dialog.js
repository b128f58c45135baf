/** A question before something is changed, with a reason that goes to the event log. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { Failed } from "./page.js";

/**
 * A button that asks first.
 *
 * @param {{label: string, title: string, explain: string, action: (reason: string, force: boolean) => Promise<any>,
 *   danger?: boolean, force?: string, noReason?: boolean, disabled?: boolean, why?: string}} options
 *   force: the text of a box to tick. noReason: none is asked for. why: why one may not. Such a button says so when it is
 *   pressed: a tip is for those only who have a mouse.
 */
export function AskFirst({ label, title, explain, action, danger, force, noReason, disabled, why }) {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  return html`<button type="button" class=${danger ? "danger" : ""} aria-disabled=${disabled ? "true" : undefined} title=${why}
      onClick=${() => setOpen(true)}>${label}</button>
    ${open && (disabled ? html`<${Refusal} title=${title} why=${why} close=${close} />` : html`<${Question} ...${{ label, title, explain, action, danger, force, noReason, close }} />`)}`;
}

function Refusal({ title, why, close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="refusal" onClose=${close}>
    <h2 id="refusal">${title}</h2>
    <p>You may not do this. ${why}.</p>
    <div class="actions end"><button type="button" onClick=${() => dialog.current.close()}>Back</button></div>
  </dialog>`;
}

function Question({ label, title, explain, action, danger, force, noReason, close }) {
  const dialog = useRef(null);
  const [reason, setReason] = useState("");
  const [forced, setForced] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    dialog.current.showModal();
    // What was done may have taken the button away that had the focus.
    return () => {
      setTimeout(() => document.activeElement === document.body && document.getElementById("main")?.focus({ preventScroll: true }));
    };
  }, []);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await action(reason, forced);
      // A dialog that closes gives the focus back; one that is removed does not.
      dialog.current?.close();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="question" onClose=${close}>
    <form onSubmit=${send}>
      <h2 id="question">${title}</h2>
      <p>${explain}</p>
      ${!noReason && html`<label>Reason <span class="muted">(goes to the event log)</span>
        <input type="text" value=${reason} maxlength="500" autofocus onInput=${(e) => setReason(e.target.value)} />
      </label>`}
      ${force &&
      html`<label class="tick"><input type="checkbox" checked=${forced} onChange=${(e) => setForced(e.target.checked)} />${force}</label>`}
      <${Failed} problem=${problem} again="Try again in a moment." />
      <div class="actions end">
        <button type="button" onClick=${() => dialog.current.close()}>Back</button>
        <button type="submit" class=${danger ? "danger solid" : "primary"} disabled=${busy}>${label}</button>
      </div>
    </form>
  </dialog>`;
}
