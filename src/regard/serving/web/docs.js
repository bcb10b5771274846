// The docs page: all content comes from /openapi.json and /languages and is inserted as text, never as HTML.

const at = (id) => document.getElementById(id);

function made(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

const typeOf = (schema) =>
  schema.enum?.join(" | ") ?? schema.const ?? schema.anyOf?.map(typeOf).join(" | ")
  ?? (schema.type === "array" ? `list of ${typeOf(schema.items)}` : schema.type ?? "");

function fieldsOf(operation) {
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  if (!schema) return null;
  const table = made("table");
  for (const [name, field] of Object.entries(schema.properties)) {
    const row = made("tr");
    const required = schema.required?.includes(name) ? "required" : `default ${JSON.stringify(field.default)}`;
    row.append(made("td"), made("td", typeOf(field)), made("td", required), made("td", field.description ?? ""));
    row.firstChild.append(made("code", name));
    table.append(row);
  }
  return table;
}

function answersOf(operation) {
  const list = made("ul");
  for (const [status, answer] of Object.entries(operation.responses)) {
    list.append(made("li", `${status}: ${answer.description}`));
  }
  return list;
}

function showPaths(description) {
  at("title").textContent = `${description.info.title} ${description.info.version}`;
  at("description").textContent = description.info.description;
  for (const [path, operations] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const article = made("article");
      const heading = made("h3");
      heading.append(made("span", method.toUpperCase(), "method"), made("code", path));
      article.append(heading, made("p", operation.summary ?? ""));
      if (operation.description) article.append(made("p", operation.description));
      const fields = fieldsOf(operation);
      if (fields) article.append(fields);
      article.append(answersOf(operation));
      at("paths").append(article);
    }
  }
}

function showLanguages(languages, settings) {
  const option = (code, name) => Object.assign(made("option", name), { value: code });
  const named = new Map(languages.map(({ code, name }) => [code, name]));
  const sources = languages.filter(({ code, targets }) => targets.some((target) => target !== code));
  at("source").append(option("auto", "any language"), ...sources.map(({ code, name }) => option(code, name)));
  const targets = new Set(languages.flatMap(({ code, targets }) => targets.filter((target) => target !== code)));
  at("target").append(...[...targets].map((code) => option(code, named.get(code) ?? code)));
  at("key-label").hidden = !settings.keyRequired;
}

async function translate(event) {
  event.preventDefault();
  const output = at("output");
  output.classList.remove("error");
  output.textContent = "…";
  const body = { q: at("text").value, source: at("source").value, target: at("target").value, api_key: at("key").value };
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await (await fetch("/translate", { method: "POST", headers, body: JSON.stringify(body) })).json();
    output.classList.toggle("error", "error" in answer);
    output.textContent = answer.error ?? answer.translatedText;
  } catch (error) {
    output.classList.add("error");
    output.textContent = `The server did not answer: ${error.message}`;
  }
}

const read = async (path) => (await fetch(path)).json();
const description = await read("/openapi.json");
showPaths(description);
if ("/translate" in description.paths) {
  showLanguages(...await Promise.all(["/languages", "/frontend/settings"].map(read)));
  at("form").addEventListener("submit", translate);
  at("try-it").hidden = false;
}
