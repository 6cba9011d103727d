// What all parts of the page share: elements, numbers as text, and questions to the server.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);
export const number = (n) => n.toLocaleString("en-US");
export const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
export const megabytes = (n) => `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)} MB`;

export function make(name, facts = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function draw(name, facts = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(facts)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`Cannot reach the server at ${location.host}. Is hashlens serve still running?`);
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(sentence(body.detail || `the server answered ${response.status}`));
  return body;
}

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.?$/, ".");
