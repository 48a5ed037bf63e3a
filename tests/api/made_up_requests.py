"""Made-up requests to every route of a real `quire serve`: no reply is a 5xx, and each is as the
description of the API says.

    made_up_requests.py <schemathesis> [options of `schemathesis run`]
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "clients"))

from service import Service  # noqa: E402

# A long answer to a made-up question shows no more than a short one.
FLAGS = ("--model.max_model_len=512",)
# Those that schemathesis.toml leaves out.
LEFT_OUT = 3
# Operations that must have taken a request as right: a run of refusals alone shows little.
FEWEST_ACCEPTED = 60


def make_names(service):
    """Makes one of everything that requests can name."""
    text = "The lighthouse of Varo was built in 1911. It is made of red brick. "
    documents = [{"id": f"tower-{i}", "title": "Towers", "text": text * (i + 1)} for i in range(3)]
    job = service.post("/v1/documents?wait=true", {"documents": documents})
    ids = [d["id"] for d in documents]
    store = service.post("/v1/vector_stores", {"name": "towers", "file_ids": ids[:2]})
    batches = f"/v1/vector_stores/{store['id']}/file_batches"
    batch = service.post(batches, {"file_ids": ids})
    query = service.post("/v1/query", {"query": "When?", "document_ids": ids, "max_tokens": 4})
    model = service.get("/v1/models")["data"][0]["id"]
    return {
        "documents": ids,
        "stores": [store["id"]],
        "paths": {
            "/v1/documents/": {"id": ids},
            "/v1/files/": {"id": ids},
            "/v1/jobs/": {"id": [job["job_id"]]},
            "/v1/queries/": {"id": [query["id"]]},
            "/v1/models/": {"id": [model]},
            "/ui/": {"file": ["app.js", "base.css"]},
            "/v1/vector_stores/": {"id": [store["id"]], "file": ids, "batch": [batch["id"]]},
        },
    }


def check_report(path):
    """Returns what is wrong with the run itself, which its exit status would not show."""
    with open(path) as file:
        report = json.load(file)
    operations = report["operations"] or {"total": 0, "tested": 0}
    accepted = [
        name
        for name, phases in report["valid_rates"].items()
        if any(rate["accepted"] for rate in phases.values())
    ]
    print(f"{len(accepted)} of {operations['tested']} operations took a made-up request")
    problems = []
    if operations["tested"] != operations["total"] - LEFT_OUT:
        problems.append(f"{operations['tested']} of {operations['total']} operations were tested")
    if len(accepted) < FEWEST_ACCEPTED:
        problems.append(f"no request was taken by most operations, only by {sorted(accepted)}")
    return problems


def main():
    schemathesis, more = os.path.abspath(sys.argv[1]), sys.argv[2:]
    with (
        tempfile.TemporaryDirectory(prefix="quire-api-") as folder,
        Service(*FLAGS, f"--backup.path={folder}/backups", "--backup.every_hours=0") as service,
    ):
        report = os.path.join(folder, "report.json")
        done = subprocess.run(
            [
                schemathesis,
                "--config-file",
                os.path.join(HERE, "schemathesis.toml"),
                "run",
                service.url + "/openapi.json",
                "--no-color",
                "--report-json-path",
                report,
                *more,
            ],
            cwd=folder,  # it leaves files where it runs
            env=os.environ
            | {
                "SCHEMATHESIS_HOOKS": os.path.join(HERE, "hooks.py"),
                "QUIRE_API_NAMES": json.dumps(make_names(service)),
            },
        )
        problems = check_report(report)
    for problem in problems:
        print("made_up_requests:", problem, file=sys.stderr)
    return done.returncode or bool(problems)


if __name__ == "__main__":
    sys.exit(main())
