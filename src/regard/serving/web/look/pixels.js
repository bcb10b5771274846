// Reads an image file as training does: grey by the weights of ITU-R 601, and resized by a triangle
// filter over all pixels, both as in Pillow. The browser's own functions differ by several shades.

export async function pixelsOf(file, [channels, height, width]) {
  const found = await decoded(file), area = found.width * found.height;
  const planes = Array.from({ length: channels }, () => new Uint8ClampedArray(area));
  for (let i = 0; i < area; i++) {
    const r = found.data[4 * i], g = found.data[4 * i + 1], b = found.data[4 * i + 2];
    if (channels === 3) { planes[0][i] = r; planes[1][i] = g; planes[2][i] = b; }
    else for (const plane of planes) plane[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
  }
  const bytes = new Uint8Array(channels * height * width);
  planes.forEach((plane, c) => bytes.set(resized(plane, found, height, width), c * height * width));
  return bytes;
}

async function decoded(file) {
  const bitmap = await createImageBitmap(file, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height), pencil = canvas.getContext("2d");
  pencil.drawImage(bitmap, 0, 0);
  return pencil.getImageData(0, 0, bitmap.width, bitmap.height);
}

function resized(plane, from, height, width) {
  if (from.height === height && from.width === width) return plane;
  const across = weights(from.width, width), down = weights(from.height, height);
  const narrow = new Uint8ClampedArray(from.height * width), found = new Uint8ClampedArray(height * width);
  for (let y = 0; y < from.height; y++)
    for (let x = 0; x < width; x++) narrow[y * width + x] = summed(across[x], (i) => plane[y * from.width + i]);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) found[y * width + x] = summed(down[y], (i) => narrow[i * width + x]);
  return found;
}

function summed({ first, shares }, at) {
  let sum = 0;
  for (let i = 0; i < shares.length; i++) sum += shares[i] * at(first + i);
  return Math.floor(sum + 0.5);
}

// For each new pixel, the old pixels that it covers, with their shares.
function weights(from, to) {
  const scale = from / to, reach = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - reach + 0.5), 0), last = Math.min(Math.trunc(centre + reach + 0.5), from);
    const shares = Array.from({ length: last - first }, (_, i) => Math.max(1 - Math.abs((first + i - centre + 0.5) / reach), 0));
    const whole = shares.reduce((sum, share) => sum + share, 0);
    return { first, shares: shares.map((share) => share / whole) };
  });
}
