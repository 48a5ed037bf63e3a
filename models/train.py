#!/usr/bin/env python3
"""Trains a model of the family. Run it again with the same arguments to resume.

    python train.py --preset target --device cuda --tokens 300000000 --out runs/target
    python train.py --preset draft --device cuda --tokens 100000000 --out runs/draft --teacher demo
    python train.py --preset demo --device cpu --init demo --curriculum continue \\
        --tokens 20000000 --out runs/demo

Ends with exit status 3 when --stop-minutes came before the end of the schedule.
"""

import argparse
import dataclasses
import socket
import sys
from pathlib import Path

import torch.multiprocessing as mp

from quire_model.mixture import CURRICULA
from quire_model.network import PRESETS
from quire_model.trainer import TrainOptions, worker

HERE = Path(__file__).resolve().parent
UNFINISHED = 3
# What a device changes, unless said otherwise on the command line.
CUDA = {
    "step_tokens": 65536,
    "max_length": 16384,
    "workers": 14,
    "compile": True,
    "early_boost": 2.0,
    "boost_tokens": 30_000_000,
    "log_steps": 50,
    "save_seconds": 60.0,
    "probe_tokens": 25_000_000,
    "probe_rows": 32,
}


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", required=True, help="folder for checkpoint.pt, log.jsonl and curve.txt")
    p.add_argument(
        "--preset", choices=sorted(PRESETS), default="demo", help="shape, for random weights only"
    )
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--tokenizer", default=str(HERE / "demo" / "tokenizer.model"))
    p.add_argument("--curriculum", choices=sorted(CURRICULA), default="full")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    for field in dataclasses.fields(TrainOptions):
        if field.name not in ("out", "tokenizer", "config", "compile", "device", "curriculum"):
            help_text = {
                "init": "model folder to continue from",
                "teacher": "model folder to imitate on answers",
                "stop_minutes": "stop early, checkpointed",
            }.get(field.name)
            p.add_argument(
                "--" + field.name.replace("_", "-"),
                type=type(field.default),
                default=None,
                help=help_text,
            )
    return p.parse_args()


def options_of(args):
    given = {k: v for k, v in vars(args).items() if v is not None and k != "preset"}
    for name in ("init", "teacher"):
        if given.get(name) and not (Path(given[name]) / "config.json").exists():
            sys.exit(f"--{name} {given[name]}: no config.json there")
    device = CUDA if args.device == "cuda" else {}
    return TrainOptions(**{"config": PRESETS[args.preset], **device, **given})


def main():
    options = options_of(parse())
    if options.device == "cuda" and options.processes != 1:
        sys.exit("--processes: one with --device cuda")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.processes == 1:
        sys.exit(0 if worker(0, options, 0) else UNFINISHED)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (options, port), nprocs=options.processes)


if __name__ == "__main__":
    main()
