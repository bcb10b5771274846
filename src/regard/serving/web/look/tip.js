// The number under the pointer, next to it. It never leaves the window.

import { TURNS, bound, h } from "./dom.js";

export class Tip {
  constructor(root) {
    this.element = h("div", { class: "tip", id: "readout", role: "status", "aria-live": "polite", hidden: true });
    root.append(this.element);
  }

  at(x, y, ...parts) {
    const { element } = this;
    element.replaceChildren(...parts);
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect(), gap = 14;
    const left = x + gap + width < innerWidth - 4 ? x + gap : Math.max(4, x - gap - width);
    const top = y + gap + height < innerHeight - 4 ? y + gap : Math.max(4, y - gap - height);
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  }

  // Next to a cell of a picture, given in the picture's own pixels.
  near(picture, x, y, ...parts) {
    const box = picture.getBoundingClientRect(), stretch = picture.offsetWidth ? box.width / picture.offsetWidth : 1;
    this.at(box.left + x * stretch, box.top + y * stretch, ...parts);
  }

  hide() { this.element.hidden = true; }
}

// Finds the cell of a picture at the pointer, and moves it with the arrow keys.
// grid(): { left, top, wide, high, rows, columns }; read(cell, x, y) gets the cell and its middle, leave() its end.
// last(): the cell at which the arrow keys begin, if the pointer was elsewhere.
export function follow(picture, grid, read, leave = () => {}, last = () => null) {
  let at = null;
  const to = (cell) => {
    const { left, top, wide, high, rows, columns } = grid();
    at = [bound(cell[0], rows), bound(cell[1], columns)];
    read(at, left + (at[1] + 0.5) * wide, top + (at[0] + 0.5) * high);
  };
  const under = (event) => {
    const box = picture.getBoundingClientRect(), stretch = picture.offsetWidth ? box.width / picture.offsetWidth : 1;
    const { left, top, wide, high, rows, columns } = grid();
    const column = Math.floor(((event.clientX - box.left) / stretch - left) / wide), row = Math.floor(((event.clientY - box.top) / stretch - top) / high);
    return row >= 0 && column >= 0 && row < rows && column < columns ? [row, column] : null;
  };
  picture.addEventListener("pointermove", (event) => {
    const cell = under(event);
    if (!cell) { if (at) { at = null; leave(); } } else if (cell[0] !== at?.[0] || cell[1] !== at?.[1]) to(cell);
  });
  picture.addEventListener("pointerdown", (event) => { const cell = under(event); if (cell) to(cell); });
  picture.addEventListener("pointerleave", () => { if (document.activeElement !== picture) { at = null; leave(); } });
  picture.addEventListener("blur", () => { at = null; leave(); });
  picture.addEventListener("keydown", (event) => {
    const turn = TURNS[event.key], by = event.shiftKey ? 10 : 1;
    if (!turn) return;
    event.preventDefault();
    event.stopPropagation();
    const from = at ?? last();
    to(from ? [from[0] + by * turn[0], from[1] + by * turn[1]] : [0, 0]);
  });
  return { to, at: () => at };
}
