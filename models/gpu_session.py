#!/usr/bin/env python3
"""Trains, evaluates and exports the family on one GPU, unattended,
in commands of a few minutes each.

    python models/gpu_session.py --work runs/gpu --out OUT --minutes 9.2  # first command
    python models/gpu_session.py --work runs/gpu --out OUT --minutes 9.2  # the same again goes on
    python models/gpu_session.py --work runs/gpu --out OUT --minutes 9.2 \\
        --restore PACKED  # on another machine

Needs Python 3.10 with torch and CUDA, numpy, safetensors and sentencepiece; says at once what is
missing, and needs no network. In order: a timing run that fixes the number of tokens for the
planned minutes (written to WORK/plan.json: from then on the schedule is tied to tokens), the
target, its evaluation, the draft (imitating the target), the retrieval head, the draft's
evaluation. Each resumes from its checkpoint; when the minutes are over it stops cleanly. Every
command ends by packing the exported folders, logs, curves and tables into OUT/models.tar.NNN (at
most 15 MB each; `cat models.tar.* | tar x`) and writes OUT/report.md. --restore takes the folder
where such an archive was unpacked; there training goes on from the exported weights (bf16, momentum
starts afresh). Exit status: 0 all done, 3 more to do (run again), 2 cannot run here.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PART_BYTES = 15_000_000
UNFINISHED, CANNOT = 3, 2
RESERVE_SECONDS = 30  # for exporting and packing
START_SECONDS = 25  # until a child that imports torch gets to work


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--work", required=True, help="folder of checkpoints, kept between commands")
    p.add_argument("--out", required=True, help="folder for what leaves the machine")
    p.add_argument("--minutes", type=float, default=9.2, help="of this command")
    p.add_argument(
        "--target-minutes",
        type=float,
        default=14.0,
        help="of training the target, over all commands",
    )
    p.add_argument("--draft-minutes", type=float, default=3.0)
    p.add_argument("--target-tokens", type=int, help="instead of the timing run")
    p.add_argument("--draft-tokens", type=int)
    p.add_argument("--head-steps", type=int, default=600)
    p.add_argument("--contexts", type=int, default=60, help="of the evaluation, for each length")
    p.add_argument("--lengths", default="2048,8192,16384")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--restore", help="unpacked archive of an earlier session")
    p.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to try this script out"
    )
    p.add_argument(
        "--tiny", action="store_true", help="tiny shapes and lengths: only to try this script out"
    )
    return p.parse_args()


def check_machine(device):
    missing = [
        m
        for m in ("torch", "numpy", "safetensors", "sentencepiece")
        if importlib.util.find_spec(m) is None
    ]
    if missing:
        print(
            f"cannot run: {sys.executable} (Python {sys.version.split()[0]}) lacks "
            f"{', '.join(missing)}",
            flush=True,
        )
        sys.exit(CANNOT)
    import torch

    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    if device == "cuda" and not torch.cuda.is_available():
        print("cannot run: torch sees no CUDA device", flush=True)
        sys.exit(CANNOT)
    if device == "cuda":
        print(torch.cuda.get_device_name(0), flush=True)


class Session:
    def __init__(self, args):
        self.args, self.work, self.started = args, Path(args.work), time.monotonic()
        self.work.mkdir(parents=True, exist_ok=True)
        self.plan_file = self.work / "plan.json"
        self.plan = json.loads(self.plan_file.read_text()) if self.plan_file.exists() else {}

    def seconds_left(self):
        return 60 * self.args.minutes - RESERVE_SECONDS - (time.monotonic() - self.started)

    def save_plan(self, **values):
        self.plan |= values
        self.plan_file.write_text(json.dumps(self.plan, indent=2) + "\n")

    def call(self, script, *arguments):
        """Exit status; output goes to the terminal.
        A child that outlives the session is told to stop, then killed."""
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        print("+ " + " ".join(command[1:]), flush=True)
        child = subprocess.Popen(command)
        try:
            return child.wait(max(1.0, self.seconds_left()))
        except subprocess.TimeoutExpired:
            child.terminate()
        try:
            return child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            return UNFINISHED

    # Training

    def preset(self, name):
        return "tiny" if self.args.tiny else name

    def train(self, name, folder, tokens, stop_minutes, *more):
        a = self.args
        common = [
            "--preset",
            self.preset(name),
            "--device",
            a.device,
            "--tokens",
            tokens,
            "--out",
            folder,
            "--seed",
            a.seed,
            "--workers",
            a.workers,
            "--stop-minutes",
            round(stop_minutes, 2),
        ]
        if a.tiny:
            common += [
                "--step-tokens",
                1024,
                "--max-length",
                256,
                "--log-steps",
                2,
                "--probe-tokens",
                4096,
                "--probe-rows",
                1,
            ]
        return self.call("train.py", *common, *more)

    def tokens_for(self, name, minutes, given, *more):
        """The number of tokens of the schedule:
        given, planned before, or what a timing run says fits into `minutes`."""
        key = f"{name}_tokens"
        if key not in self.plan:
            tokens = given
            if tokens is None:
                folder = self.work / f"timing-{name}"
                shutil.rmtree(folder, ignore_errors=True)
                # Entered in the middle, where lengths are those of most of the schedule.
                self.train(name, folder, 10**9, 0.8, "--start-tokens", 6 * 10**8, *more)
                lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
                lines = [x for x in lines if "tokens_per_second" in x]
                first, last = lines[len(lines) // 3], lines[-1]
                seconds = 60 * (last["minutes"] - first["minutes"])
                speed = (
                    (last["tokens"] - first["tokens"]) / seconds
                    if seconds > 0
                    else last["tokens_per_second"]
                )
                tokens = int(0.9 * speed * 60 * minutes)  # the longest lengths are slower
                print(
                    f"{name}: {speed:.0f} tokens a second, schedule of {tokens} tokens", flush=True
                )
                self.save_plan(**{f"{name}_tokens_per_second": round(speed)})
            self.save_plan(**{key: tokens})
        return self.plan[key]

    def train_model(self, name, minutes, given, *more):
        """Goes on with a model; True when its schedule is complete."""
        if self.plan.get(f"{name}_done"):
            return True
        if self.seconds_left() < 20:
            return False
        tokens = self.tokens_for(name, minutes, given, *more)
        restored = self.plan.get(f"{name}_restored")
        start = (
            ["--init", restored, "--start-tokens", self.plan[f"{name}_trained"]] if restored else []
        )
        status = self.train(
            name,
            self.work / name,
            tokens,
            max(0.1, (self.seconds_left() - START_SECONDS) / 60),
            *more,
            *start,
        )
        if status == 0:
            self.save_plan(**{f"{name}_done": True})
        elif status != UNFINISHED:
            print(f"{name}: train.py ended with status {status}", flush=True)
        return status == 0

    def export(self, name):
        checkpoint, folder = self.work / name / "checkpoint.pt", self.work / f"{name}-folder"
        if not checkpoint.exists():
            return
        import torch

        self.save_plan(
            **{
                f"{name}_trained": torch.load(checkpoint, weights_only=True, map_location="cpu")[
                    "tokens"
                ]
            }
        )
        self.call(
            "export.py",
            "--checkpoint",
            checkpoint,
            "--out",
            folder,
            "--context-tokens",
            256 if self.args.tiny else 16384,
            "--shard-megabytes",
            15,
        )

    # What follows training

    def head(self):
        if self.plan.get("head_done"):
            return True
        if self.seconds_left() < 20:
            return False
        length = 256 if self.args.tiny else 2048
        status = self.call(
            "train_head.py",
            "--model",
            self.work / "target-folder",
            "--out",
            self.work / "head",
            "--steps",
            self.args.head_steps,
            "--length",
            length,
            "--rows",
            2 if self.args.tiny else 8,
            "--device",
            self.args.device,
            "--workers",
            self.args.workers,
            "--seed",
            self.args.seed,
        )
        if status == 0:
            self.save_plan(head_done=True)
        return status == 0

    def evaluate(self, name):
        """One table for each length, so that an interrupted evaluation loses little."""
        for length in self.args.lengths.split(","):
            result = self.work / f"{name}-{length}"
            if result.with_suffix(".json").exists():
                continue
            if self.seconds_left() < 15:
                return False
            status = self.call(
                "evaluate.py",
                "--model",
                self.work / f"{name}-folder",
                "--device",
                self.args.device,
                "--lengths",
                length,
                "--contexts",
                self.args.contexts,
                "--json",
                result.with_suffix(".json"),
                "--markdown",
                result.with_suffix(".md"),
            )
            if status != 0:
                return False
        return True

    def run(self):
        """True when everything is done."""
        a = self.args
        if a.restore and not self.plan:
            self.restore(Path(a.restore))
        if not self.train_model("target", a.target_minutes, a.target_tokens):
            self.export("target")
            return False
        if (
            not (self.work / "target-folder").exists()
            or self.plan.get("target_exported") != self.plan["target_tokens"]
        ):
            self.export("target")
            self.save_plan(target_exported=self.plan["target_tokens"])
        if not self.evaluate("target"):
            return False
        teacher = ("--teacher", self.work / "target-folder")
        done = self.train_model("draft", a.draft_minutes, a.draft_tokens, *teacher)
        self.export("draft")
        return done and self.head() and self.evaluate("draft")

    def restore(self, folder):
        plan = json.loads((folder / "plan.json").read_text())
        for name in ("target", "draft"):
            if (folder / f"{name}-folder").exists():
                shutil.copytree(
                    folder / f"{name}-folder", self.work / f"{name}-folder", dirs_exist_ok=True
                )
                if not plan.get(f"{name}_done"):
                    kept = self.work / f"{name}-restored"
                    shutil.copytree(folder / f"{name}-folder", kept, dirs_exist_ok=True)
                    plan[f"{name}_restored"] = str(kept)
        for file in list(folder.glob("*.json")) + list(folder.glob("*.md")):
            shutil.copyfile(file, self.work / file.name)
        if (folder / "head").exists():
            shutil.copytree(folder / "head", self.work / "head", dirs_exist_ok=True)
        self.save_plan(**plan)

    def pack(self, done):
        out = Path(self.args.out)
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("models.tar.*"):
            old.unlink()
        archive = self.work / "models.tar"
        with tarfile.open(archive, "w") as tar:
            for file in sorted(self.work.rglob("*")):
                inside = file.relative_to(self.work)
                wanted = (
                    inside.parts[0] in ("target-folder", "draft-folder")
                    or file.suffix in (".json", ".jsonl", ".md", ".txt")
                    or inside.parts[0] == "head"
                    and file.suffix == ".safetensors"
                )
                if file.is_file() and wanted and not inside.parts[0].endswith("-restored"):
                    tar.add(file, arcname=str(inside))
        data = archive.read_bytes()
        for i in range(0, len(data), PART_BYTES):
            (out / f"models.tar.{i // PART_BYTES:03d}").write_bytes(data[i : i + PART_BYTES])
        archive.unlink()
        lines = [
            "# Training session: "
            f"{'complete' if done else 'unfinished, run the same command again'}",
            "",
            "```",
            json.dumps(self.plan, indent=2),
            "```",
            "",
        ]
        for file in sorted(self.work.glob("*.md")):
            lines += [f"## {file.stem}", "", file.read_text(), ""]
        for file in sorted(self.work.glob("*/curve.txt")):
            lines += [
                f"## {file.parent.name}: validation curve",
                "",
                "```",
                file.read_text(),
                "```",
                "",
            ]
        (out / "report.md").write_text("\n".join(lines))
        print(f"packed {len(data) / 1e6:.1f} MB into {out}", flush=True)


def main():
    args = parse()
    check_machine(args.device)
    session = Session(args)
    done = False
    try:
        done = session.run()
    finally:
        session.pack(done)
    print("all done" if done else "unfinished: run the same command again", flush=True)
    sys.exit(0 if done else UNFINISHED)


if __name__ == "__main__":
    main()
