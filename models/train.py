#!/usr/bin/env python3
"""Trains the embedded model. Run it again with the same --out to resume.

    python train.py --out runs/demo --init demo --tokens 40000000 --processes 2
"""
import argparse
import dataclasses
import socket
import sys
from pathlib import Path

import torch.multiprocessing as mp

from quire_model.network import ModelConfig
from quire_model.trainer import TrainOptions, worker

HERE = Path(__file__).resolve().parent


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder for checkpoint.pt and log.jsonl")
    p.add_argument("--tokenizer", default=str(HERE / "demo" / "tokenizer.model"))
    p.add_argument("--init", default="", help="model folder to continue from (default: random weights)")
    for field in dataclasses.fields(TrainOptions):
        if field.name not in ("out", "tokenizer", "init", "config", "compile"):
            p.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    for field in dataclasses.fields(ModelConfig):
        p.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default,
                       help="model shape, for random weights only")
    p.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    return vars(p.parse_args())


def main():
    args = parse()
    config = ModelConfig(**{f.name: args.pop(f.name) for f in dataclasses.fields(ModelConfig)})
    options = TrainOptions(config=config, compile=not args.pop("no_compile"), **args)
    if options.init and not (Path(options.init) / "config.json").exists():
        sys.exit(f"--init {options.init}: no config.json there")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.processes == 1:
        worker(0, options, 0)
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (options, port), nprocs=options.processes)


if __name__ == "__main__":
    main()
