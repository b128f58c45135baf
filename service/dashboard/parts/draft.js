/**
 * What was typed into a form, kept by this tab until it is sent: a link, "back" or a reload does not lose it. Another
 * person who signs in here gets an empty form.
 */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { me, readDrafts, writeDrafts } from "../api/session.js";

/**
 * The state of a form that is kept under `key`.
 *
 * @template T
 * @param {string} key
 * @param {T} empty
 * @returns {{form: T, type: (change: (before: T) => T) => void, begin: (form: T) => void, found: boolean, forget: () => void}}
 *   type: change what is kept. begin: show something that nobody typed. found: it was typed before. forget: it was sent.
 */
export function useDraft(key, empty) {
  const [found, setFound] = useState(() => draftsOfMe()[key] !== undefined);
  const [form, setForm] = useState(() => ({ ...empty, ...draftsOfMe()[key] }));
  const [typed, setTyped] = useState(false);
  const forget = () => {
    setTyped(false);
    put(key, undefined);
  };
  useEffect(() => {
    if (typed) put(key, form);
  }, [form, typed]);
  return {
    form,
    found,
    forget,
    type: (change) => {
      setTyped(true);
      setForm(change);
    },
    begin: (next) => {
      forget();
      setFound(false);
      setForm(next);
    },
  };
}

/** Says that a form is not empty, and how one gets an empty one. @param {{again: () => void}} props */
export function Found({ again }) {
  return html`<p class="muted" role="status">What you typed before is still here. <button type="button" onClick=${again}>Begin anew</button></p>`;
}

function draftsOfMe() {
  const { person, forms } = readDrafts();
  return person === me.value?.name ? forms : {};
}

function put(key, form) {
  const { [key]: _, ...others } = draftsOfMe();
  writeDrafts({ person: me.value?.name, forms: form === undefined ? others : { ...others, [key]: form } });
}
