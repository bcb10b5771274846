"""The page's own files, and how they are put into one that needs nothing from elsewhere. No torch in here."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

WEB = Path(__file__).parent / "web" / "look"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r'(from|import\()(\s*)"((?:\.\.?/)+)([^"]+)"')
_VIEW = re.compile(r"views/(\w+)\.js")


def assembled(data: dict[str, Any], views: Collection[str], theme: str | None = None) -> str:
    """The page as one HTML file, with some of its views and the data that they ask for.

    No request can leave it: its policy forbids them all.
    """
    imports = {f"look/{name}": _address(name) for name in modules_of(views)}
    script = (
        f'<script type="importmap">{safe({"imports": imports})}</script>\n'
        f'<script type="application/json" id="inlined">{safe(data)}</script>\n'
        '<script type="module">import "look/main.js";</script>'
    )
    icon = base64.b64encode((WEB / "icon.svg").read_bytes()).decode()
    changes = {
        '<html lang="en">': f'<html lang="en" data-theme="{theme}">' if theme else '<html lang="en">',
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        'href="icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="style.css">': f"<style>\n{_read('style.css')}</style>",
        '<script type="module" src="main.js"></script>': script,
    }
    page = _read("index.html")
    for old, new in changes.items():
        page = page.replace(old, new)
    return page


def modules_of(views: Iterable[str]) -> list[str]:
    """The modules that a page with these views imports, by their paths."""
    wanted, found, open_ = set(views), {"main.js"}, ["main.js"]
    while open_:
        place = Path(open_.pop())
        for _, _, up, name in _IMPORT.findall(_read(place.as_posix())):
            other = (place.parent.parent if up == "../" else place.parent) / name
            view = _VIEW.fullmatch(other.as_posix())
            # Views are loaded when they are opened; those that import one another are wanted all the same.
            left = view is not None and place.name == "main.js" and view[1] not in wanted
            if not left and other.as_posix() not in found:
                found.add(other.as_posix())
                open_.append(other.as_posix())
    return sorted(found)


def safe(data: dict[str, Any]) -> str:
    """JSON that no text in it can end, or turn into markup."""
    written = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _address(name: str) -> str:
    """A module as an address of its own; what it imports is found by name, since such an address has no neighbours."""
    folder = Path(name).parent

    def named(found: re.Match[str]) -> str:
        other = (folder.parent if found[3] == "../" else folder) / found[4]
        return f'{found[1]}{found[2]}"look/{other.as_posix()}"'

    code = _IMPORT.sub(named, _read(name))
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")
