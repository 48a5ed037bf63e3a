#!/usr/bin/env python3
"""Trains the target's retrieval head by distillation (the loss: quire_model/retrieval_head.py).
Run again to resume.

    python train_head.py --model demo --out runs/head --steps 1000
    python train_head.py --model runs/target-folder --out runs/head --length 4096 --steps 1000 \\
        --rows 8 --device cuda --workers 14

Writes --out/model.safetensors and config.json, and log.jsonl.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from quire_model import mixture, retrieval_head
from quire_model.hf_folder import load_model
from quire_model.prefetch import Prefetcher
from quire_model.prompt import Codec


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", required=True, help="folder of the target")
    p.add_argument("--out", required=True)
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--rows", type=int, default=2, help="contexts for each step")
    p.add_argument("--length", type=int, default=1024, help="tokens of a context")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--workers", type=int, default=0, help="processes that make contexts ahead")
    return p.parse_args()


def main():
    args = parse()
    if not (Path(args.model) / "config.json").exists():
        sys.exit(f"--model {args.model}: no config.json there")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    codec = Codec(Path(args.model) / "tokenizer.model")
    checkpoint, part = out / "checkpoint.pt", mixture.part_at("continue", 0.5)
    state = (
        torch.load(checkpoint, weights_only=True, map_location="cpu")
        if checkpoint.exists()
        else None
    )
    first = state["step"] if state else 0

    def example(number):
        return retrieval_head.make_example(
            f"{args.seed}/{number // args.rows}/{number % args.rows}", args.length, codec, part
        )

    examples = Prefetcher(example, first * args.rows, args.workers)
    torch.manual_seed(args.seed)
    target = load_model(args.model).to(args.device)
    config = retrieval_head.HeadConfig.for_target(target.config, args.length)
    head = retrieval_head.RetrievalHead(target.config, config)
    if state:
        head.load_state_dict(state["head"])
    head.to(args.device)
    optimiser = torch.optim.AdamW(
        head.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0
    )
    if state:
        optimiser.load_state_dict(state["optimiser"])

    def log(line):
        print(json.dumps(line), flush=True)
        with open(out / "log.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def save(step, optimiser):
        part_file = checkpoint.with_suffix(".part")
        torch.save(
            {"step": step, "head": head.state_dict(), "optimiser": optimiser.state_dict()},
            part_file,
        )
        os.replace(part_file, checkpoint)

    retrieval_head.train(
        target,
        head,
        codec,
        args.steps,
        args.length,
        part,
        args.seed,
        args.lr,
        args.rows,
        log,
        first,
        optimiser,
        save,
        make=lambda step, row: examples.next(),
    )
    examples.close()
    retrieval_head.write_folder(out, head)
    print(f"{out}: {sum(p.numel() for p in head.parameters()) / 1e6:.2f} M parameters")


if __name__ == "__main__":
    main()
