// The search page: state is in the address (?id= or ?code=, k, radius, label, by, or view and page), so Back, reload
// and links work.

import { $, ask, draw, make, megabytes, number, plural } from "./dom.js";
import { beginMarks, keepMarks, markButtons, markByKey, showFolder, showJob, stopJob } from "./folder.js";

const VIEWS = ["duplicates", "groups"]; // besides the search
const SIGNS = { right: "M2 9l4 4.5L14 3", wrong: "M3 3l10 10M3 13L13 3" };
const uploads = new Map(); // code -> {url, name} of images that were given on this page
let info = null;
let answer = null; // the last one
let retry = null; // what "Try again" does
let running = null; // to stop a search that nobody waits for any more
let chosen = 0; // the result that Tab leads to

// ---- state in the address

function readState() {
  const given = new URLSearchParams(location.search);
  const whole = (name) => (/^\d{1,15}$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  return { id: whole("id"), code: given.get("code"), k: Math.min(whole("k") || 20, info?.limits.max_k ?? Infinity), radius: whole("radius"), label: given.get("label"), by: ["first", "both", "second"].includes(given.get("by")) ? given.get("by") : null, view: VIEWS.includes(given.get("view")) ? given.get("view") : null, page: whole("page") };
}

function address(state) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== null && value !== "" && !(name === "k" && value === 20) && !(name === "page" && value === 1)) given.set(name, value);
  }
  const text = given.toString();
  return text ? `?${text}` : location.pathname;
}

function go(changes) {
  const state = { ...readState(), ...changes };
  history.pushState(null, "", address(state));
  return run();
}

function searchFor(id) {
  return go({ id, code: null, view: null, page: null });
}

// ---- asking the server

/** The code of a query as a link keeps it: the second code follows the first. */
const bothCodes = (query) => query.code + (query.second ?? "");

/** Ask, and show the answer or the error; what was there stays, dimmed, until then. */
async function search(options, after) {
  running?.abort();
  const own = (running = new AbortController());
  clearError();
  $("hits").classList.add("waiting");
  $("results").setAttribute("aria-busy", "true");
  const slow = setTimeout(() => ($("status").textContent = "Searching …"), 300);
  const start = performance.now();
  try {
    const found = await ask("v1/search", { method: "POST", signal: own.signal, ...options });
    answer = found;
    after?.(found);
    clearTimeout(slow);
    show(found, performance.now() - start);
    void count(found, own.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    clearTimeout(slow);
    $("status").textContent = answer ? "These are the results of the previous search." : "";
    showError(error.message, () => search(options, after));
  } finally {
    clearTimeout(slow);
    if (running === own) {
      $("hits").classList.remove("waiting");
      $("results").setAttribute("aria-busy", "false");
    }
  }
}

/** Count the images at each distance, which takes longer than to find the nearest, when these are shown. */
async function count(found, signal) {
  const { label } = readState();
  const body = JSON.stringify({ code: bothCodes(found.query), k: 1, histogram: true, by: found.by, ...(label && { label }) });
  const options = { method: "POST", signal, body, headers: { "Content-Type": "application/json" } };
  const counted = await ask("v1/search", options).catch(() => ({ histogram: null })); // the results are there without it
  if (answer !== found) return;
  found.histogram = counted.histogram;
  if (!found.hits.length) $("status").textContent = nothing(found);
  showTies(found);
  showDistances(found);
}

/** Do what the address says. */
async function run() {
  const state = readState();
  showView(state.view);
  if (state.view) return showJob(state.view, searchFor);
  $("k").value = String(state.k);
  if (!$("k").value) $("k").add(make("option", { textContent: state.k, selected: true }));
  if (![...$("radius").options].some((option) => option.value === String(state.radius ?? "")))
    $("radius").add(make("option", { textContent: state.radius, value: state.radius }));
  $("radius").value = state.radius ?? "";
  $("label").value = state.label ?? "";
  $("by").value = state.by ?? "both";
  if (state.id === null && !state.code) return showNothing(state.page ?? 1);
  const body = { k: state.k };
  if (state.code) body.code = state.code;
  else body.id = state.id;
  if (state.radius !== null) body.radius = state.radius;
  if (state.label) body.label = state.label;
  if (state.by) body.by = state.by;
  return search({ body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

function searchWithFile(files) {
  const file = files[0];
  if (!file) return undefined;
  if (info && !info.takes_images) return showError("This server has no model, so it cannot encode images; click an image of the index.");
  if (info && file.size > info.limits.max_upload)
    return showError(`${megabytes(file.size)}: the limit is ${megabytes(info.limits.max_upload)} (server option --max-upload).`);
  const { k, radius, label, by } = readState();
  const form = new FormData();
  for (const [name, value] of Object.entries({ k, radius, label, by })) if (value !== null) form.append(name, value);
  form.append("image", file);
  return search({ body: form }, (found) => {
    uploads.set(found.query.code, { url: URL.createObjectURL(file), name: file.name });
    history.pushState(null, "", address({ code: bothCodes(found.query), k, radius, label, by }));
    if (files.length > 1) found.note = `One image at a time: using the first, ‘${file.name}’. `;
  });
}

// ---- showing

function clearError() {
  $("error").textContent = "";
  $("again").hidden = true;
}

function showError(text, again = null) {
  $("error").textContent = text;
  retry = again;
  $("again").hidden = !again || !text.startsWith("Cannot reach");
  $("error").focus();
}

/** The tab that is shown: the search, or what is found in the whole index. */
function showView(view) {
  for (const link of document.querySelectorAll("#views a")) {
    if ((link.dataset.view || null) === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  $("search").hidden = Boolean(view);
  $("whole").hidden = !view;
  if (!view) stopJob();
}

function showNothing(page) {
  running?.abort();
  answer = null;
  clearError();
  for (const id of ["query-image", "query-facts", "distances", "legend", "unknown", "share", "controls"]) $(id).hidden = true;
  $("query-none").hidden = false;
  $("hits").replaceChildren();
  $("ties").textContent = "";
  beginMarks(null);
  $("results-title").textContent = "All images";
  $("status").textContent = "No query yet. Click an image, or choose, drop or paste one.";
  document.title = "hashlens";
  if (info && info.n === 0) $("status").textContent = "This index has no images. Add some: hashlens index add INDEX CODES";
  else if (info) return showFolder(page, { search: searchFor, turn: (next) => go({ page: next }), error: showError });
}

function show(found, milliseconds) {
  const { query, hits, index } = found;
  $("folder").hidden = true;
  $("results-title").textContent = "Results";
  $("controls").hidden = false;
  beginMarks(query, info?.clicks);
  showQuery(query, index.n_bits);
  const known = Boolean(query.labels?.length);
  const marks = hits.map((hit) => mark(query, hit));
  $("legend").hidden = !known || !hits.length;
  $("unknown").hidden = known || !hits.some((hit) => hit.labels?.length);
  chosen = 0;
  $("hits").replaceChildren(...hits.map((hit, rank) => showHit(hit, rank, marks[rank], query, found.n_bits)));
  const same = marks.filter((found) => found.kind === "right").length;
  const time = `in ${number(Math.round(milliseconds))} milliseconds`;
  $("status").textContent = hits.length
    ? `${found.note ?? ""}${plural(hits.length, "result", "results")} ${time}${known ? `, ${same} ${query.labels.length > 1 ? "that share a label" : "with the same label"}` : ""}`
    : nothing(found);
  showTies(found);
  $("share").hidden = false;
  document.title = `${title(query)} · hashlens`;
}

const title = (query) => uploads.get(query.code)?.name ?? query.path?.split("/").pop() ?? "a code";

function showQuery(query, nBits) {
  const upload = uploads.get(query.code);
  const source = query.id !== undefined ? `v1/items/${query.id}/thumb?size=large` : upload?.url;
  $("query-image").hidden = !source;
  $("query-none").hidden = Boolean(source);
  if (source) $("query-image").src = source;
  else $("query-none").textContent = "This search is for a code; its image is not on this page.";
  const words = [title(query), query.labels?.join(", ")].filter(Boolean).join(" · ");
  const size = query.width ? ` (${query.width} × ${query.height})` : "";
  $("query-name").textContent = words + size;
  $("query-code").replaceChildren(barcode(query.code, nBits));
  const start = query.code.length > 32 ? `${query.code.slice(0, 16)}…` : query.code; // the start is enough of a long one
  $("query-hex").textContent = start.replace(/([0-9a-f]{4})(?=.)/g, "$1 ");
  $("query-facts").hidden = false;
}

/** Whether a result is right: it shares a label with the query. */
function mark(query, hit) {
  if (!query.labels?.length) return { kind: "", words: "" };
  const shared = query.labels.filter((label) => hit.labels?.includes(label)).length;
  if (query.labels.length === 1) return shared ? { kind: "right", words: "same label" } : { kind: "wrong", words: "other label" };
  return { kind: shared ? "right" : "wrong", words: `${shared} of ${query.labels.length} labels shared` };
}

const sign = (kind) => draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, draw("path", { d: SIGNS[kind] }));

function showHit(hit, rank, { kind, words }, query, nBits) {
  const several = (query.labels?.length ?? 0) > 1;
  const image = make("img", { src: hit.thumb, alt: "", loading: "lazy", decoding: "async" });
  const button = make("button", { type: "button", className: "hit", tabIndex: rank === 0 ? 0 : -1 },
    make("span", { className: "frame" }, image),
    make("span", {},
      make("span", { className: "hidden", textContent: `Rank ${rank + 1}, ` }),
      kind ? make("span", { className: "sign" }, sign(kind)) : null,
      ` ${hit.distance} of ${nBits} bits differ`),
    hit.second_distance === undefined ? null : make("span", { className: "words", textContent: `${hit.second_distance} of ${info?.second_bits} of the second code` }),
    words ? make("span", { className: several ? "words" : "hidden", textContent: words }) : null,
    hit.labels?.length ? make("span", { className: "words", textContent: hit.labels.join(", ") }) : null,
    make("span", { className: "path", textContent: hit.path.split("/").pop() }),
    hit.id === query.id ? make("span", { className: "badge", textContent: "the query itself" }) : null);
  button.title = hit.path;
  button.addEventListener("click", () => searchFor(hit.id));
  button.addEventListener("focus", () => choose(rank));
  const more = make("button", { type: "button", className: "more", tabIndex: -1, textContent: "…" });
  more.setAttribute("aria-label", `Details of rank ${rank + 1}`);
  more.addEventListener("click", () => showDetails(rank));
  return make("li", { className: kind }, button, markButtons(hit, rank), more);
}

const bits = (code) => [...code].flatMap((digit) => [8, 4, 2, 1].map((bit) => Number((parseInt(digit, 16) & bit) > 0)));

/** One cell a bit, dark for 1; bits that differ from `other` have a notch below. */
function barcode(code, nBits, other = null) {
  const own = bits(code).slice(0, nBits);
  const theirs = other === null ? own : bits(other);
  const differing = own.flatMap((bit, place) => (bit === theirs[place] ? [] : [place]));
  const cells = (places, y, height) => places.map((place) => `M${place} ${y}h1v${height}h-1z`).join("");
  const text = other === null
    ? `Code ${code}`
    : !differing.length ? "Same code as the query" : `Differs in ${differing.length === 1 ? "bit" : "bits"} ${listed(differing.map((place) => place + 1))}`;
  return draw("svg", { class: "barcode", viewBox: `0 0 ${nBits} 12`, preserveAspectRatio: "none", role: "img", "aria-label": text, "shape-rendering": "crispEdges" },
    draw("title", {}, text),
    draw("rect", { class: "ground", width: nBits, height: 8 }),
    draw("path", { d: cells(own.flatMap((bit, place) => (bit ? [place] : [])), 0, 8) }),
    draw("path", { class: "notch", d: cells(differing, 9, 3) }));
}

const listed = (values) => (values.length < 2 ? values.join("") : `${values.slice(0, -1).join(", ")} and ${values.at(-1)}`);

function nothing(found) {
  if (!found.histogram) return "Nothing found; try a larger radius, or any label.";
  const nearest = found.histogram.findIndex((n) => n > 0);
  if (nearest < 0) return `No image has the label ‘${readState().label}’.`;
  return `No image within ${plural(readState().radius, "bit", "bits")}. The nearest is ${plural(nearest, "bit", "bits")} away.`;
}

function showTies(found) {
  const { hits, ties, histogram, index } = found;
  const exact = index.exact ? "exact" : "approximate";
  $("ties").replaceChildren();
  const offer = (text, radius, k) => {
    const button = make("button", { type: "button", className: "link", textContent: text });
    button.addEventListener("click", () => go({ radius, k: k ?? readState().k }));
    return button;
  };
  if (!histogram) return $("ties").append(`${number(hits.length)} shown · ${exact}`); // an engine tells of what it finds only
  const nearest = histogram.findIndex((n) => n > 0);
  if (!hits.length && nearest >= 0) $("ties").append(offer("Show it", nearest));
  if (!hits.length) return;
  const within = histogram.slice(0, ties.distance + 1).reduce((sum, n) => sum + n, 0);
  const shown = hits.length < within ? `${number(hits.length)} shown of ${number(within)}` : `all ${number(within)}`;
  $("ties").append(`${shown} at ≤ ${plural(ties.distance, "bit", "bits")} · ${exact}`);
  const most = info?.limits.max_k ?? 1000;
  if (within > hits.length && within <= most) $("ties").append(" ", offer("Show all", ties.distance, within));
  else if (within > hits.length && hits.length < most) $("ties").append(" ", offer(`Show ${number(most)}`, ties.distance, most));
}

function showDistances(found) {
  const { histogram, ties, timing_ms: timing } = found;
  $("distances").hidden = !histogram;
  if (!histogram) return;
  const total = histogram.reduce((sum, n) => sum + n, 0);
  const scale = $("logarithmic").checked ? (n) => Math.log10(1 + n) : (n) => n;
  const highest = Math.max(...histogram.map(scale), 1e-9);
  const width = Math.min(Math.max($("histogram").clientWidth, 260), 900); // drawn as large as it is shown: text stays readable
  const [height, left, bottom] = [190, 8, 24];
  const step = (width - 2 * left) / histogram.length;
  const top = (n) => height - bottom - (scale(n) / highest) * (height - bottom - 22);
  const bars = histogram.map((n, d) =>
    draw("rect", {
      class: ties && d <= ties.distance ? "bar near" : "bar", x: left + d * step + step * 0.1, width: step * 0.8,
      y: n ? Math.min(top(n), height - bottom - 1.5) : height - bottom, height: n ? Math.max(height - bottom - top(n), 1.5) : 0,
    }, draw("title", {}, `${d} bits: ${plural(n, "image", "images")}`)));
  const every = [1, 2, 4, 5, 8, 10, 16, 20, 32, 64, 128, 256, 1024].find((n) => histogram.length / n <= width / 40) ?? 4096;
  const labels = histogram.flatMap((_, d) => d % every ? [] : [draw("text", { x: left + (d + 0.5) * step, y: height - 6, "text-anchor": "middle" }, String(d))]);
  const nearest = histogram.findIndex((n) => n > 0);
  const most = histogram.indexOf(Math.max(...histogram));
  const words = `Number of images at each distance: the nearest at ${nearest} bits, most (${number(histogram[most])}) at ${most}` +
    (ties ? `; the results end at ${ties.distance} bits` : "");
  const drawing = draw("svg", { width, height, role: "img", "aria-label": words },
    draw("line", { class: "axis", x1: left, x2: width - left, y1: height - bottom, y2: height - bottom }), ...bars, ...labels);
  if (ties) {
    const x = left + (ties.distance + 1) * step;
    const late = x > width * 0.7;
    drawing.append(draw("line", { x1: x, x2: x, y1: 4, y2: height - bottom }),
      draw("text", { x: late ? x - 6 : x + 6, y: 14, "text-anchor": late ? "end" : "start" }, `results end at ${plural(ties.distance, "bit", "bits")}`));
  }
  $("histogram").replaceChildren(drawing);
  let soFar = 0;
  $("counts").replaceChildren(...histogram.flatMap((n, d) => {
    soFar += n;
    return n ? [make("tr", {}, make("th", { scope: "row", textContent: d }), make("td", { textContent: number(n) }), make("td", { textContent: number(soFar) }))] : [];
  }));
  const times = Object.entries(timing).filter(([name, value]) => value > 0 || name === "search");
  const sum = times.reduce((all, [, value]) => all + value, 0);
  $("timing").textContent = `${times.map(([name, value]) => `${name} ${value.toFixed(1)}`).join(" · ")} · total ${sum.toFixed(1)} ms` +
    (total < found.index.n ? ` · among ${plural(total, "image", "images")} with this label` : "");
}

function showDetails(rank) {
  const { query, hits } = answer;
  const hit = hits[rank];
  $("details-title").textContent = `Rank ${rank + 1}: ${hit.path.split("/").pop()}`;
  $("details-image").src = `${hit.thumb}?size=large`;
  $("details-image").alt = [hit.labels?.join(", "), hit.path.split("/").pop()].filter(Boolean).join(", ");
  const code = answer.by === "second" ? "second" : "code";
  $("details-code").replaceChildren(barcode(query[code], answer.n_bits), barcode(hit[code], answer.n_bits, query[code]));
  const facts = { distance: `${hit.distance} of ${answer.n_bits} bits differ`, labels: hit.labels?.join(", ") || "none", path: hit.path, id: hit.id, code: hit.code };
  $("details-facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  const { k, radius, label, by } = readState();
  const body = Object.fromEntries(Object.entries({ code: bothCodes(query), k, radius, label, by }).filter(([, value]) => value !== null));
  $("details-curl").textContent = `curl --json '${JSON.stringify(body).replaceAll("'", "'\\''")}' ${location.origin}/v1/search`;
  const text = (value) => (typeof value === "string" ? JSON.stringify(value) : value);
  const given = Object.entries(body).slice(1).map(([name, value]) => `, ${name}=${text(value)}`).join("");
  $("details-python").textContent = `from hashlens.search import open_searcher\n\nanswer = open_searcher("INDEX").search("${bothCodes(query)}"${given})`;
  $("details-json").textContent = JSON.stringify(answer, null, 1);
  $("details-search").onclick = () => { $("details").close(); searchFor(hit.id); };
  $("details-copy").onclick = () => copy(hit.path, $("details-copy"));
  open($("details"));
}

/** Show a dialog; when it is closed, the focus goes back where it was. */
function open(dialog) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => before?.isConnected && before.focus(), { once: true });
  dialog.showModal();
}

async function copy(text, button) {
  const before = button.textContent;
  await navigator.clipboard?.writeText(text).then(() => (button.textContent = "Copied"), () => (button.textContent = "Not permitted"));
  setTimeout(() => (button.textContent = before), 1500);
}

// ---- the grid: one stop for Tab, arrows within

const buttons = () => [...document.activeElement.closest("ol")?.querySelectorAll(".hit") ?? []];

function choose(rank) {
  const all = [...document.querySelectorAll("#hits .hit")];
  if (all[chosen]) all[chosen].tabIndex = -1;
  chosen = rank;
  if (all[chosen]) all[chosen].tabIndex = 0;
}

function move(event) {
  const all = buttons();
  const here = all.indexOf(document.activeElement);
  if (here < 0) return;
  const inHits = document.activeElement.closest("#hits");
  if (event.key === " " && inHits) {
    event.preventDefault();
    if (event.type === "keydown") showDetails(here);
    return;
  }
  if (event.type !== "keydown") return;
  if (inHits && $("single-keys").checked && markByKey(event.key, answer.hits[here])) return event.preventDefault();
  const firstRow = all[0].offsetParent ? all.filter((button) => button.parentElement.offsetTop === all[0].parentElement.offsetTop).length : 1;
  const next = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + firstRow, ArrowUp: here - firstRow, Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  if (all[next]) all[next].focus();
}

function oneKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input:not([type=checkbox]):not([type=file]), select, textarea") || !$("single-keys").checked) return;
  const sizes = [...$("k").options].map((option) => Number(option.value)).sort((a, b) => a - b);
  const { k } = readState();
  const actions = {
    "/": () => $("file").click(),
    o: () => $("file").click(),
    "?": () => open($("keys")),
    h: () => { $("distances").scrollIntoView({ block: "nearest" }); $("logarithmic").focus(); },
    "[": () => go({ k: sizes.filter((n) => n < k).at(-1) ?? k }),
    "]": () => go({ k: sizes.find((n) => n > k) ?? k }),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

// ---- giving an image: choose, drop, paste

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

function listen() {
  $("file").addEventListener("change", () => { searchWithFile([...$("file").files]); $("file").value = ""; });
  for (const name of ["dragenter", "dragover"])
    addEventListener(name, (event) => { if (hasFiles(event)) { event.preventDefault(); $("drop-hint").hidden = false; } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop-hint").hidden = true; });
  addEventListener("drop", (event) => {
    $("drop-hint").hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    searchWithFile([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => { if (event.clipboardData?.files.length) searchWithFile([...event.clipboardData.files]); });
  $("paste").addEventListener("click", pasteByButton);
  $("again").addEventListener("click", () => retry?.());
  $("cropped").addEventListener("change", crop);
  $("logarithmic").addEventListener("change", () => answer && showDistances(answer));
  addEventListener("resize", () => answer && showDistances(answer));
  $("k").addEventListener("change", () => go({ k: Number($("k").value) }));
  $("radius").addEventListener("change", () => go({ radius: $("radius").value === "" ? null : Number($("radius").value) }));
  $("by").addEventListener("change", () => go({ by: $("by").value === "both" ? null : $("by").value }));
  $("label").addEventListener("change", () => go({ label: $("label").value.trim() || null }));
  $("controls").addEventListener("submit", (event) => { event.preventDefault(); $("label").blur(); });
  $("share").addEventListener("click", () => copy(location.href, $("share")));
  $("keys-button").addEventListener("click", () => open($("keys")));
  for (const name of ["keydown", "keyup"]) for (const id of ["hits", "folder", "whole"]) $(id).addEventListener(name, move);
  for (const link of document.querySelectorAll("#views a"))
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in another window
      event.preventDefault();
      history.pushState(null, "", link.dataset.view ? `?view=${link.dataset.view}` : location.pathname);
      void run();
    });
  $("keep").addEventListener("click", () => keepMarks(showError));
  $("forget").addEventListener("click", () => beginMarks(answer?.query ?? null, info?.clicks));
  addEventListener("keydown", oneKey);
  addEventListener("popstate", run);
  $("single-keys").checked = localStorage.getItem("single-keys") !== "no";
  $("single-keys").addEventListener("change", () => localStorage.setItem("single-keys", $("single-keys").checked ? "yes" : "no"));
}

async function pasteByButton() {
  try {
    for (const item of await navigator.clipboard.read()) {
      const type = item.types.find((name) => name.startsWith("image/"));
      if (type) return searchWithFile([new File([await item.getType(type)], "pasted image", { type })]);
    }
    showError("There is no image in the clipboard.");
  } catch {
    showError("The browser does not let this button read the clipboard; press Ctrl+V (⌘V) instead.");
  }
}

const crop = () => $("query-image").classList.toggle("cropped", $("cropped").checked);

// ---- start

async function begin() {
  listen();
  crop();
  for (const place of document.querySelectorAll("#legend li")) place.querySelector(".sign").append(sign(place.className));
  const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("privacy").textContent = local ? "It stays on this machine." : "It is sent to this server and not kept.";
  await load();
}

async function load() {
  clearError();
  try {
    info = await ask("v1/info");
  } catch (error) {
    $("facts").textContent = "";
    return showError(error.message, load);
  }
  $("facts").textContent = `${plural(info.n, "image", "images")} · ${info.n_bits} bits · ${info.exact ? "exact" : "approximate"} · model ${info.model.name}`;
  $("by-label").hidden = !info.second_bits;
  $("radius").replaceChildren(make("option", { textContent: "any", value: "" }));
  const step = Math.max(1, Math.floor(info.n_bits / 64)); // long codes differ in many bits even among copies
  for (let radius = 0; radius <= Math.min(info.n_bits, 12 * step); radius += step) $("radius").add(make("option", { textContent: radius, value: radius }));
  $("label").parentElement.hidden = !info.labels.length;
  $("labels").replaceChildren(...info.labels.map((value) => make("option", { value })));
  $("examples").hidden = !info.examples.length;
  $("examples").querySelector("ul").replaceChildren(...info.examples.map((id, place) => {
    const button = make("button", { type: "button" }, make("img", { src: `v1/items/${id}/thumb`, alt: `Example ${place + 1}`, loading: "lazy" }));
    button.addEventListener("click", () => searchFor(id));
    return make("li", {}, button);
  }));
  return run();
}

begin();
