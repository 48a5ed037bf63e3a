"""Runs every ```bash block of a page that begins with curl against a real service, in order.

Usage: docs_check.py <page>
"""

import os
import re
import subprocess
import sys
import tempfile

from service import Service


def main(page):
    with open(page, encoding="utf-8") as text:
        blocks = [
            b
            for b in re.findall(r"^```bash\n(.*?)^```", text.read(), flags=re.M | re.S)
            if b.startswith("curl")
        ]
    if not blocks:
        sys.exit(f"{page} has no block that begins with curl")
    failures = 0
    with Service() as service, tempfile.TemporaryDirectory() as home:
        with open(os.path.join(home, ".curlrc"), "w") as settings:
            settings.write("fail-with-body\nsilent\nshow-error\nmax-time = 120\n")
        for block in blocks:
            run = subprocess.run(
                ["bash", "-c", block.replace("http://127.0.0.1:8080", service.url)],
                env=os.environ | {"CURL_HOME": home},
                capture_output=True,
                text=True,
            )
            good = run.returncode == 0 and run.stdout.strip() and '"error":{' not in run.stdout
            print(f"{'ok  ' if good else 'FAIL'} {block.splitlines()[0]}")
            if not good:
                failures += 1
                print(block, run.stdout, run.stderr, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(sys.argv[1])
