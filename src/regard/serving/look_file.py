"""One input of one model as a single HTML file: the page's own modules, the data, and nothing from elsewhere."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from regard.errors import InputError
from regard.look.estimate import estimate
from regard.look.study import Run, Study
from regard.serving.look_app import WEB
from regard.serving.look_service import LookService, outputs, told

MOST = 64 * 2**20
"""Bytes of tensors in a file: browsers take long over more."""
MODULES = ("dom.js", "source.js", "heat.js", "effect.js", "views/heads.js", "main.js")
"""What the file needs, each after those that it imports."""
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
_IMPORT = re.compile(r'(from|import\()(\s*)"(?:\.\.?/)+([^"]+)"')


def page_file(study: Study, run: Run) -> str:
    """The Heads view of a run, as HTML."""
    _require_small(study, run)
    about = LookService(study).about() | {"views": ["heads"]}
    tensors = {name: _packed(study, run, name) for name in study.names if name.endswith(".weights")}
    data = {"about": about, "run": told(run), "output": outputs(run), "tensors": tensors}
    imports = {f"look/{name}": _module(name) for name in MODULES}
    given = run.given
    state = {"text": given.text, "target": given.target, "to": given.to, "off": ",".join(given.ablated)}
    parts = {
        "script": f'<script type="importmap">{_safe({"imports": imports})}</script>\n'
        f'<script type="application/json" id="inlined">{_safe(data | {"state": state})}</script>\n'
        '<script type="module">import "look/main.js";</script>',
        "style": f"<style>\n{(WEB / 'style.css').read_text(encoding='utf-8')}</style>",
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
    }
    icon = base64.b64encode((WEB / "icon.svg").read_bytes()).decode()
    page = (WEB / "index.html").read_text(encoding="utf-8")
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{parts["policy"]}')
    page = page.replace('href="icon.svg"', f'href="data:image/svg+xml;base64,{icon}"')
    page = page.replace('<link rel="stylesheet" href="style.css">', parts["style"])
    return page.replace('<script type="module" src="main.js"></script>', parts["script"])


def _require_small(study: Study, run: Run) -> None:
    lengths = [len(side.tokens) for side in run.sides.values()]
    needed = estimate(study.network, "*.weights", length=lengths[-1], source=lengths[0])
    if needed > MOST:
        raise InputError(
            f"the attention of this input takes {needed / 2**20:,.0f} MiB, and a file holds at most "
            f"{MOST // 2**20} MiB; give a shorter text, or look at it with the server"
        )


def _packed(study: Study, run: Run, name: str) -> dict[str, Any]:
    content, shape = LookService(study).tensor(run.key, name)
    return {"shape": shape, "data": base64.b64encode(content).decode()}


def _module(name: str) -> str:
    """A module as an address of its own; what it imports is found by name, since such an address has no neighbours."""
    code = _IMPORT.sub(r'\1\2"look/\3"', (WEB / name).read_text(encoding="utf-8"))
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _safe(data: dict[str, Any]) -> str:
    """JSON that no text in it can end, or turn into markup."""
    written = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
