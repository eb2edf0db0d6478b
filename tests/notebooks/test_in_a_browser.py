"""The notebooks' HTML in headless Chromium: every picture and table appears, and nothing is cut off."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from notebook_script import load

script = load()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; Debian's package is `chromium`")

# Run by the page itself when it has loaded; the answer is read from the page's source.
ASK = """
<script>
window.addEventListener("load", () => {
  const all = (kind) => Array.from(document.querySelectorAll(kind));
  const answer = document.createElement("pre");
  answer.id = "seen";
  answer.textContent = JSON.stringify({
    title: document.title,
    headings: all("h1, h2").map((each) => each.firstChild.textContent),
    pictures: all("img").map((each) => [each.complete, each.naturalWidth, each.naturalHeight]),
    tables: all("table").map((each) => each.getBoundingClientRect().right),
    code: all("pre").map((each) => each.scrollWidth - each.clientWidth),
    width: document.documentElement.clientWidth,
  });
  document.body.append(answer);
});
</script>
"""


def seen(html: str, folder: Path) -> dict[str, Any]:
    """What a browser window of 1,000 pixels' width makes of a page."""
    page = folder / "page.html"
    page.write_text(html.replace("</body>", ASK + "</body>"), encoding="utf-8")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options = [f"--user-data-dir={folder / 'profile'}", "--window-size=1000,1000", "--dump-dom"]
    # Pages have no errand outside: scripts that the template names are not fetched.
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, *options, *offline, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.mark.parametrize("name", script.names())
def test_the_page_shows_everything(name: str, tmp_path: Path) -> None:
    from nbconvert import HTMLExporter

    notebook = script.stored(name)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    page = seen(HTMLExporter().from_notebook_node(notebook)[0], tmp_path)
    assert page["headings"][-1] == "Decision"
    assert len(page["pictures"]) == sum("image/png" in each.get("data", {}) for each in outputs) > 0
    for complete, width, height in page["pictures"]:
        assert complete
        assert 600 < width < 1000
        assert height > 100
    tables = sum(each.get("data", {}).get("text/html", "").count("<table") for each in outputs)
    assert len(page["tables"]) == tables > 0
    assert max(page["tables"]) <= page["width"]
    assert max(page["code"]) <= 0, "a line of code is wider than the page"
