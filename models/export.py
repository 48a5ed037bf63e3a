#!/usr/bin/env python3
"""Writes a checkpoint of train.py as a Hugging Face Llama folder with bf16 weights,
ready to be served.

python export.py --checkpoint runs/demo/checkpoint.pt --out demo --context-tokens 2048
"""

import argparse
import sys
from pathlib import Path

import torch

from quire_model.hf_folder import write_folder
from quire_model.network import ModelConfig

HERE = Path(__file__).resolve().parent


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--out", required=True, help="folder to write")
    p.add_argument("--tokenizer", default=str(HERE / "demo" / "tokenizer.model"))
    p.add_argument(
        "--context-tokens",
        type=int,
        required=True,
        help="longest length the model was trained on: max_position_embeddings",
    )
    p.add_argument(
        "--shard-megabytes", type=float, help="split the weights into files of about this size"
    )
    args = p.parse_args()
    if not Path(args.checkpoint).exists():
        sys.exit(f"--checkpoint {args.checkpoint}: no such file")
    state = torch.load(args.checkpoint, weights_only=True, map_location="cpu")
    config = ModelConfig(**state["config"])
    write_folder(
        args.out,
        config,
        state["model"],
        args.tokenizer,
        args.context_tokens,
        args.shard_megabytes and int(args.shard_megabytes * 1e6),
    )
    parameters = sum(t.numel() for t in state["model"].values())
    print(
        f"{args.out}: {parameters / 1e6:.1f} M parameters after "
        f"{state['tokens'] / 1e6:.1f} M training tokens"
    )


if __name__ == "__main__":
    main()
