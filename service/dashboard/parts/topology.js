/**
 * What connects the GPUs of a host, as a drawing: sockets (NUMA nodes) with their PCIe switches, GPUs and network cards,
 * and NVLink between the GPUs.
 */
import { useMemo } from "preact/hooks";
import { html } from "htm/preact";
import { GPU_STATES, shownState } from "./states.js";

const GPU = { width: 64, height: 44, gap: 14 };
const NIC = { width: 64, height: 22 };
const SWITCH = { below: 10, height: 16 };
const PAD = 14;

/**
 * @param {{host: any, gpus: any[], marked?: number[], mark?: string}} props
 *   marked: indices of the GPUs to stress. mark: what they are, for screen readers.
 */
export function Topology({ host, gpus, marked = [], mark = "" }) {
  const drawing = useMemo(() => layout(host, gpus), [host, gpus]);
  const { width, height, sockets, places, switches, nics, links, switchY } = drawing;
  return html`<figure class="topology">
    <div class="scroll" tabindex="0" role="group" aria-label="Topology of ${host.name}, can be scrolled">
      <svg viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${inWords(host, gpus, marked, mark)}>
        ${sockets.map(
          (one) => html`<g key=${`s${one.name}`}>
            <rect class="socket" x=${one.x} y=${one.y} width=${one.width} height=${one.height} rx="6" />
            <text class="small" x=${one.x + 8} y=${one.y + one.height - 7}>${one.name}</text>
          </g>`,
        )}
        ${sockets.length > 1 &&
        html`<path class="socket-link" d="M ${sockets[0].x + sockets[0].width} ${sockets[0].y + sockets[0].height - 12} H ${sockets[1].x}" />`}
        ${switchY !== null
          ? html`<rect class="nvswitch" x=${PAD} y=${switchY} width=${width - 2 * PAD} height="22" rx="4" />
              <text class="small on-accent" x=${width / 2} y=${switchY + 15} text-anchor="middle">${switchName(host)}</text>
              ${[...places.values()].map(
                (place) => html`<line class="nvlink" key=${place.index} x1=${place.x + GPU.width / 2} x2=${place.x + GPU.width / 2}
                  y1=${switchY + 22} y2=${place.y} stroke-width="3" />`,
              )}`
          : links.map((link) => arc(link, places))}
        ${switches.map(
          (one) => html`<g key=${one.name}>
            ${one.gpus.map((place) => html`<line class="pcie" key=${place.index} x1=${place.x + GPU.width / 2} x2=${place.x + GPU.width / 2} y1=${place.y + GPU.height} y2=${one.y} />`)}
            <rect class="pcie-switch" x=${one.x} y=${one.y} width=${one.width} height=${SWITCH.height} rx="3"><title>PCIe switch ${one.name}</title></rect>
            <text class="small" x=${one.x + one.width / 2} y=${one.y + 12} text-anchor="middle">PCIe switch</text>
          </g>`,
        )}
        ${nics.map(
          (nic) => html`<g key=${nic.name}>
            ${nic.from.map(([x, y]) => html`<line class="pcie" key=${x} x1=${x} y1=${y} x2=${nic.x + NIC.width / 2} y2=${nic.y} />`)}
            <title>${nic.kind} ${nic.name}${nic.gpus.length ? `, next to GPU ${nic.gpus.join(", ")}` : ""}</title>
            <rect class="nic" x=${nic.x} y=${nic.y} width=${NIC.width} height=${NIC.height} rx="3" />
            <text class="small" x=${nic.x + NIC.width / 2} y=${nic.y + 15} text-anchor="middle">${nic.name}</text>
          </g>`,
        )}
        ${gpus.map((gpu) => {
          const place = places.get(gpu.info.index);
          const state = shownState(gpu);
          const stressed = marked.includes(gpu.info.index);
          return html`<g key=${gpu.info.uuid} class=${marked.length && !stressed ? "faded" : ""}>
            <title>GPU ${gpu.info.index}: ${GPU_STATES[state][1]}${gpu.info.pcie_switch ? `, PCIe switch ${gpu.info.pcie_switch}` : ""}</title>
            <rect class="gpu gpu-${state} ${stressed ? "stressed" : ""}" x=${place.x} y=${place.y} width=${GPU.width} height=${GPU.height} rx="4" />
            <text class="gpu-text gpu-${state}-text" x=${place.x + GPU.width / 2} y=${place.y + 18} text-anchor="middle">GPU ${gpu.info.index}</text>
            <text class="small gpu-${state}-text" x=${place.x + GPU.width / 2} y=${place.y + 34} text-anchor="middle">
              ${gpu.utilization_percent === null ? GPU_STATES[state][0] : `${GPU_STATES[state][0]} · ${gpu.utilization_percent} %`}
            </text>
          </g>`;
        })}
      </svg>
    </div>
    <figcaption>${inWords(host, gpus, marked, mark)}</figcaption>
  </figure>`;
}

function layout(host, gpus) {
  const bySocket = new Map();
  for (const gpu of gpus) {
    const key = gpu.info.numa_node ?? gpu.info.socket ?? 0;
    if (!bySocket.has(key)) bySocket.set(key, []);
    bySocket.get(key).push(gpu);
  }
  const links = (host.nvlinks ?? []).filter((link) => link.links > 0);
  const switched = host.nvswitches > 0 || isFullMesh(links, gpus.length);
  const top = switched ? 58 : links.length ? 24 + arcHeight(links, gpus) : 24;
  const nicsBelow = host.nics.length > 0;
  const places = new Map();
  const sockets = [];
  const switches = [];
  const nics = [];
  const hasSwitches = [...bySwitch(gpus).values()].some((members) => members.length > 1);
  const below = GPU.height + (hasSwitches ? SWITCH.below + SWITCH.height : 0);
  let x = PAD;
  for (const [key, members] of [...bySocket].sort((a, b) => a[0] - b[0])) {
    const own = host.nics.filter((nic) => (nic.numa_node ?? 0) === key);
    const columns = Math.max(members.length, own.length);
    const width = columns * (GPU.width + GPU.gap) + GPU.gap;
    const height = below + (nicsBelow ? 56 : 14) + 34;
    sockets.push({ name: `NUMA ${key}`, x, y: top - 14, width, height });
    members.sort((a, b) => a.info.index - b.info.index).forEach((gpu, index) => {
      places.set(gpu.info.index, { index: gpu.info.index, x: x + GPU.gap + index * (GPU.width + GPU.gap), y: top });
    });
    for (const [name, behind] of bySwitch(members)) {
      const at = behind.map((gpu) => places.get(gpu.info.index));
      const left = Math.min(...at.map((place) => place.x));
      const right = Math.max(...at.map((place) => place.x)) + GPU.width;
      // Only switches behind which GPUs stand side by side can be drawn as one.
      if (at.length > 1 && right - left === at.length * (GPU.width + GPU.gap) - GPU.gap) {
        switches.push({ name, gpus: at, x: left, width: right - left, y: top + GPU.height + SWITCH.below });
      }
    }
    own.forEach((nic, index) => {
      const near = nic.gpus.map((one) => places.get(one)).filter(Boolean);
      const shared = switches.find((one) => near.length > 0 && near.every((place) => one.gpus.includes(place)));
      const from = shared ? [[shared.x + shared.width / 2, shared.y + SWITCH.height]] : near.map((place) => [place.x + GPU.width / 2, place.y + GPU.height]);
      nics.push({ ...nic, from, x: x + GPU.gap + index * (GPU.width + GPU.gap), y: top + below + 26 });
    });
    x += width + 24;
  }
  const bottom = sockets.reduce((most, one) => Math.max(most, one.y + one.height), top);
  return { width: x - 24 + PAD, height: bottom + 8, sockets, places, switches, nics, links, switchY: switched ? 10 : null };
}

/** PCIe switch -> the GPUs behind it. */
function bySwitch(gpus) {
  const found = new Map();
  for (const gpu of gpus) {
    const name = gpu.info.pcie_switch;
    if (name) found.set(name, [...(found.get(name) ?? []), gpu]);
  }
  return found;
}

/** NVSwitch chips that the host does not see (in another enclosure) still connect all pairs alike. */
function isFullMesh(links, many) {
  return many > 4 && links.length === (many * (many - 1)) / 2 && new Set(links.map((link) => link.links)).size === 1;
}

function switchName(host) {
  const each = host.nvlinks?.[0]?.links;
  const chips = host.nvswitches ? `${host.nvswitches} NVSwitches` : "NVSwitch";
  return each ? `${chips}: ${each} NVLinks for each GPU` : chips;
}

function arcHeight(links, gpus) {
  const farthest = Math.max(...links.map((link) => Math.abs(link.a - link.b)));
  return 12 * Math.min(farthest, gpus.length);
}

function arc(link, places) {
  const [a, b] = [places.get(link.a), places.get(link.b)];
  if (!a || !b) return null;
  const [x1, x2] = [a.x + GPU.width / 2, b.x + GPU.width / 2];
  const rise = 12 * Math.abs(link.a - link.b) + 6;
  return html`<path class="nvlink" key=${`${link.a}-${link.b}`} fill="none" stroke-width=${1 + Math.min(3, link.links)}
    d="M ${x1} ${a.y} C ${x1} ${a.y - rise}, ${x2} ${b.y - rise}, ${x2} ${b.y}"><title>${link.links} NVLinks between GPU ${link.a} and GPU ${link.b}</title></path>`;
}

function inWords(host, gpus, marked, mark) {
  const nodes = new Set(gpus.map((gpu) => gpu.info.numa_node ?? 0)).size;
  const nvlink = host.nvlinks?.length
    ? host.nvswitches || isFullMesh(host.nvlinks, gpus.length)
      ? `all joined by NVSwitch with ${host.nvlinks[0].links} NVLinks each`
      : `${host.nvlinks.length} pairs joined by NVLink`
    : "no NVLink";
  const nics = host.nics.length ? `, ${host.nics.length} network cards` : "";
  const stressed = marked.length ? `. ${mark}: GPU ${marked.join(", ")}` : "";
  return `${host.machine}: ${gpus.length} GPUs on ${nodes} NUMA ${nodes === 1 ? "node" : "nodes"}, ${nvlink}${nics}${stressed}`;
}
