// The folder as a grid, marks on results, and what is found in the whole index: duplicates and groups.

import { $, ask, make, number, plural } from "./dom.js";

const PAGE = 120; // images
const POLL = 700; // milliseconds
const KINDS = {
  identical: ["Identical files", "the same file"],
  copies: ["Copies", "the same photo, resized, recompressed, cropped, turned or framed"],
  "look-alikes": ["Look-alikes", "a different photo that looks alike"],
};
const JOBS = {
  duplicates: { title: "Duplicates", start: "Find duplicates", none: "No duplicates found.", group: ["group", "groups"] },
  groups: { title: "Groups", start: "Find groups", none: "There is nothing to group.", group: ["group", "groups"] },
};
const FIRST = 12; // images of a group that are shown at first
let asked = 0; // the last page that was asked for
let job = null; // the one that is shown
let timer = null;

const name = (path) => path.split("/").pop();

/** An image that is searched for when it is clicked. */
function card(item, search, ...words) {
  const button = make("button", { type: "button", className: "hit" },
    make("span", { className: "frame" }, make("img", { src: `v1/items/${item.id}/thumb`, alt: "", loading: "lazy", decoding: "async" })),
    ...words.filter(Boolean).map((text) => make("span", { className: "words", textContent: text })),
    make("span", { className: "path", textContent: name(item.path) }));
  button.title = item.path;
  button.addEventListener("click", () => search(item.id));
  return make("li", {}, button);
}

/** One stop for Tab, arrows within. */
function oneStop(list) {
  const all = [...list.querySelectorAll(".hit")];
  const stop = (button) => all.forEach((one) => (one.tabIndex = one === button ? 0 : -1));
  stop(all[0]);
  all.forEach((button) => button.addEventListener("focus", () => stop(button)));
  return list;
}

// ---- all images

export async function showFolder(page, { search, turn, error }) {
  const own = ++asked;
  $("folder").hidden = false;
  let found;
  try {
    found = await ask(`v1/items?start=${(page - 1) * PAGE}&n=${PAGE}`);
  } catch (problem) {
    return error(problem.message, () => showFolder(page, { search, turn, error }));
  }
  if (own !== asked || $("folder").hidden) return;
  const last = Math.max(1, Math.ceil(found.n / PAGE));
  if (page > last) return turn(last);
  $("all").replaceChildren(...found.items.map((item) => card(item, search, item.labels?.join(", "))));
  oneStop($("all"));
  const first = (page - 1) * PAGE + 1;
  for (const place of document.querySelectorAll(".pages")) {
    const bottom = place.classList.contains("bottom");
    const step = (text, next, usable) => {
      const button = make("button", { type: "button", textContent: text, disabled: !usable });
      button.addEventListener("click", () => { void turn(next); if (bottom) $("folder").scrollIntoView(); });
      return button;
    };
    place.replaceChildren(
      step("Previous", page - 1, page > 1),
      make("span", { textContent: `${number(first)}–${number(first + found.items.length - 1)} of ${number(found.n)}` }),
      step("Next", page + 1, page < last));
    place.hidden = last === 1;
  }
}

// ---- marks: what is more and less like the query

let marks = null; // { query, clicks, more: Set, less: Set } while results can be marked

export function beginMarks(query, clicks = null) {
  const usable = Boolean(clicks && query && query.id !== undefined);
  marks = usable ? { query: query.id, clicks, more: new Set(), less: new Set() } : null;
  $("mark-note").hidden = !clicks || !query || usable;
  for (const button of document.querySelectorAll(".marks button")) button.setAttribute("aria-pressed", "false");
  $("learned").textContent = "";
  showMarks();
}

export function markButtons(hit, rank) {
  if (!marks || hit.id === marks.query) return null;
  const one = (kind, text) => {
    const button = make("button", { type: "button", className: `mark-${kind}`, tabIndex: -1, textContent: text });
    button.setAttribute("aria-label", `${kind === "more" ? "More" : "Less"} like this: rank ${rank + 1}`);
    button.setAttribute("aria-pressed", "false");
    button.dataset.mark = `${kind} ${hit.id}`;
    button.addEventListener("click", () => mark(kind, hit.id));
    return button;
  };
  return make("span", { className: "marks" }, one("more", "+ more"), one("less", "− less"));
}

function mark(kind, id) {
  const other = kind === "more" ? "less" : "more";
  if (!marks[kind].delete(id)) marks[kind].add(id);
  marks[other].delete(id);
  for (const each of ["more", "less"])
    document.querySelector(`[data-mark="${each} ${id}"]`)?.setAttribute("aria-pressed", String(marks[each].has(id)));
  $("learned").textContent = "";
  showMarks();
}

/** m and l mark the result that has the focus. */
export function markByKey(key, hit) {
  const kind = { m: "more", l: "less" }[key];
  if (!kind || !marks || !hit || hit.id === marks.query) return false;
  mark(kind, hit.id);
  return true;
}

function showMarks() {
  const { more, less } = marks ?? { more: new Set(), less: new Set() };
  const n = more.size + less.size;
  $("marks").hidden = !n && !$("learned").textContent;
  $("keep").hidden = $("forget").hidden = !n;
  $("keep").disabled = !more.size || !less.size;
  $("marked").textContent = !n ? "" : !more.size ? "Also mark one that is more like the query." : !less.size
    ? "Also mark one that is less like the query." : `${number(more.size)} more like the query, ${number(less.size)} less.`;
}

export async function keepMarks(error) {
  const { query, clicks, more, less } = marks;
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ query, more: [...more], less: [...less] }) };
  try {
    const { total } = await ask("v1/clicks", options);
    beginMarks({ id: query }, clicks);
    clicks.n = total;
    $("learned").replaceChildren(`Kept; ${plural(total, "click", "clicks")} in all. Learn from them with: `, make("code", { textContent: clicks.command }));
    showMarks();
  } catch (problem) {
    error(problem.message);
  }
}

// ---- duplicates and groups

export function stopJob() {
  clearTimeout(timer);
  job = null;
}

export async function showJob(view, search) {
  stopJob();
  job = view;
  document.title = `${JOBS[view].title} · hashlens`;
  $("whole-title").textContent = JOBS[view].title;
  $("found").replaceChildren();
  $("whole-status").textContent = "";
  await look(view, search);
}

async function look(view, search, options = {}) {
  let state;
  try {
    state = await ask(`v1/${view}`, options);
  } catch (problem) {
    state = { state: "failed", error: problem.message };
  }
  if (job !== view) return;
  const running = state.state === "running";
  $("whole-progress").hidden = !running;
  $("start").hidden = running || (state.state === "done" && !state.stale);
  $("start").textContent = state.state === "done" ? "The images have changed: find again" : JOBS[view].start;
  $("start").onclick = () => { $("whole-status").focus(); void look(view, search, { method: "POST" }); };
  $("whole-status").classList.toggle("failed", state.state === "failed");
  if (running) {
    const counted = state.total ? `: ${number(state.done)} of ${number(state.total)}` : "";
    $("whole-status").textContent = `Looking at the images${counted} …`;
    if (state.total) $("whole-progress").value = state.done / state.total;
    else $("whole-progress").removeAttribute("value");
    timer = setTimeout(() => look(view, search), POLL);
  } else if (state.state === "failed") $("whole-status").textContent = state.error;
  else if (state.state === "none") $("whole-status").textContent = { duplicates: "Identical files, copies and look-alikes among all images. Nothing is deleted.", groups: "Sorts all images into groups that look alike." }[view];
  else showFound(view, state, search);
}

function showFound(view, state, search) {
  const { groups, n_groups: total } = state;
  const shown = groups.length < total ? ` The first ${number(groups.length)} are shown.` : "";
  $("whole-status").textContent = total ? `${plural(total, ...JOBS[view].group)} in ${plural(state.n_images, "image", "images")}.${shown}` : JOBS[view].none;
  if (view === "groups") {
    $("found").replaceChildren(...groups.map((group) => showGroup(`${group.name} · ${plural(group.n, "image", "images")}`, group, search)));
    return;
  }
  $("found").replaceChildren(...Object.entries(KINDS).flatMap(([kind, [title, what]]) => {
    const own = groups.filter((group) => group.kind === kind);
    const parts = own.map((group) => showGroup(`${group.name} · keep ${name(group.images[0].path)} (${group.why})`, group, search, (image, place) => [`${place ? "" : "keep · "}${image.width} × ${image.height}`]));
    return [make("h3", { textContent: `${title}: ${plural(own.length, "group", "groups")}` }), make("p", { className: "note", textContent: what }), ...parts];
  }));
}

function showGroup(title, group, search, words = () => []) {
  const list = make("ol", { className: "grid" });
  const fill = (images) => { list.replaceChildren(...images.map((image, place) => card(image, search, ...words(image, place)))); oneStop(list); };
  fill(group.images.slice(0, FIRST));
  const section = make("section", { className: "group" }, make("h4", { textContent: title }), list);
  if (group.images.length > FIRST) {
    const limited = group.n > group.images.length ? `the first ${number(group.images.length)}` : `all ${number(group.n)}`;
    const all = make("button", { type: "button", className: "link", textContent: `Show ${limited}` });
    all.addEventListener("click", () => { fill(group.images); all.remove(); list.querySelector(".hit").focus(); });
    section.append(all);
  }
  return section;
}
