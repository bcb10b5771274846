// Saves what a view shows as one SVG, or as a PNG drawn from it.

import { isDark } from "./heat.js";

const SVG = "http://www.w3.org/2000/svg", HTML = "http://www.w3.org/1999/xhtml";
const SCALE = 2; // pixels of a PNG for each pixel of the page

export async function save(element, name, format) {
  const { width, height } = element.getBoundingClientRect();
  const svg = new Blob([picture(element, width, height)], { type: "image/svg+xml" });
  download(format === "svg" ? svg : await png(svg, width, height), `${name}.${format}`);
}

// The element and the styles of the page inside an SVG. Canvases become images.
function picture(element, width, height) {
  const copy = element.cloneNode(true), canvases = element.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = document.createElementNS(HTML, "img"), { offsetWidth, offsetHeight } = canvases[i];
    for (const { name, value } of canvas.attributes) if (name !== "style") image.setAttribute(name, value);
    image.setAttribute("src", canvases[i].toDataURL());
    image.setAttribute("width", offsetWidth);
    image.setAttribute("height", offsetHeight);
    canvas.replaceWith(image);
  });
  copy.querySelectorAll(".tip").forEach((tip) => tip.remove());
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).map((rule) => rule.cssText).join("\n");
  const root = document.createElementNS(SVG, "svg"), style = document.createElementNS(SVG, "style"), holder = document.createElementNS(SVG, "foreignObject");
  const size = { width: Math.ceil(width), height: Math.ceil(height) };
  for (const [key,
    value] of Object.entries({ ...size, viewBox: `0 0 ${size.width} ${size.height}`,
      "data-theme": isDark() ? "dark" : "light" })) root.setAttribute(key,
    value);
  for (const [key, value] of Object.entries(size)) holder.setAttribute(key, value);
  style.textContent = `${rules.replaceAll("canvas", "img")}\n:root { scrollbar-gutter: auto; overflow: hidden; }`;
  holder.append(copy);
  root.append(style, holder);
  return new XMLSerializer().serializeToString(root);
}

async function png(svg, width, height) {
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = await new Promise((done) => { const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(svg); });
  await image.decode();
  canvas.width = SCALE * width;
  canvas.height = SCALE * height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
