"""The training loop: data-parallel over processes, resumable from a checkpoint, one log line every few steps."""
import dataclasses
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import hf_folder, mixture
from .muon import Muon
from .network import LanguageModel, ModelConfig, rope_table
from .prompt import Codec


@dataclasses.dataclass
class TrainOptions:
    out: str                     # folder of the checkpoint
    tokenizer: str
    init: str = ""               # model folder to start from; empty: random weights of `config`
    config: ModelConfig = ModelConfig()
    tokens: int = 40_000_000     # length of the schedule
    minutes: float = 0.0         # if set, the schedule also ends by this time (then a run is not exactly repeatable)
    step_tokens: int = 8192      # tokens of one optimiser step, over all processes
    max_length: int = 2048
    matrix_lr: float = 0.01
    other_lr: float = 0.003
    cooldown: float = 0.4        # the learning rate falls linearly to nothing over this last share
    seed: int = 0
    processes: int = 1
    compile: bool = True
    save_seconds: float = 180.0


class Trainer:
    """One process of a run. `rank` 0 logs and writes the checkpoint."""

    def __init__(self, options, rank):
        self.o, self.rank = options, rank
        torch.manual_seed(options.seed)
        device_dtype = torch.bfloat16
        self.model = (hf_folder.load_model(options.init, device_dtype) if options.init
                      else LanguageModel(options.config, device_dtype))
        self.optimiser = Muon(self.model, options.matrix_lr, options.other_lr)
        self.codec = Codec(options.tokenizer)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.checkpoint = Path(options.out) / "checkpoint.pt"
        if self.checkpoint.exists():
            self._resume()
        self.cos, self.sin = rope_table(self.model.config, options.max_length)
        self.forward = torch.compile(self.model, dynamic=False) if options.compile else self.model
        self._recent = {}

    def run(self):
        started = last_save = time.monotonic()
        before = self.seconds
        while True:
            progress = self._agreed_progress()
            if progress >= 1.0:
                break
            self._train_step(progress)
            self.seconds = before + time.monotonic() - started
            if self.rank == 0 and self.step % 20 == 0:
                self._log(progress)
            if self.rank == 0 and time.monotonic() - last_save > self.o.save_seconds:
                self.save()
                last_save = time.monotonic()
        if self.rank == 0:
            self.save()

    def _agreed_progress(self):
        progress = self.tokens / self.o.tokens
        if self.o.minutes:
            progress = max(progress, self.seconds / (60 * self.o.minutes))
        if self.o.processes > 1:
            shared = torch.tensor([progress])
            dist.broadcast(shared, 0)
            progress = float(shared)
        return progress

    def _train_step(self, progress):
        o = self.o
        length = mixture.length_at(progress, random.Random(f"length/{o.seed}/{self.step}"), o.max_length)
        sequences = max(1, o.step_tokens // o.processes // length)
        batch = mixture.make_batch(f"data/{o.seed}/{self.step}/{self.rank}", sequences, length, self.codec)
        ids, wanted, targets, weights = (torch.from_numpy(x) for x in (batch.ids, batch.wanted, batch.targets, batch.weights))
        logits = self.forward(ids, wanted, self.cos[:length], self.sin[:length])
        losses = F.cross_entropy(logits, targets, reduction="none")
        (losses * weights).sum().backward()
        self._average_gradients()
        scale = min(1.0, (self.step + 1) / 50) * min(1.0, max(0.01, (1 - progress) / o.cooldown))
        self.optimiser.step(scale)
        for p in self.model.parameters():
            p.grad = None
        self.step += 1
        self.tokens += sequences * length * o.processes
        self._remember(length, batch, logits.detach().argmax(-1) == targets, losses.detach())

    def _average_gradients(self):
        if self.o.processes == 1:
            return
        parameters = list(self.model.parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in parameters])
        dist.all_reduce(flat)
        flat /= self.o.processes
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad.copy_(part.view_as(p))

    def _remember(self, length, batch, hits, losses):
        whole = [bool(hits[s:e].all()) for s, e in batch.answers]
        entry = self._recent.setdefault(length, [[], []])
        entry[0] += whole
        entry[1].append(float(losses[:batch.num_answer].mean()))

    def _log(self, progress):
        line = {"step": self.step, "tokens": self.tokens, "minutes": round(self.seconds / 60, 1),
                "progress": round(progress, 4)}
        for length, (whole, losses) in sorted(self._recent.items()):
            line[f"exact@{length}"] = round(sum(whole) / len(whole), 3)
            line[f"loss@{length}"] = round(sum(losses) / len(losses), 3)
        self._recent = {}
        text = json.dumps(line)
        print(text, flush=True)
        with open(Path(self.o.out) / "log.jsonl", "a") as log:
            log.write(text + "\n")

    def save(self):
        """Atomic: a crash leaves the old or the new checkpoint."""
        state = {"model": self.model.state_dict(), "config": dataclasses.asdict(self.model.config),
                 "optimiser": self.optimiser.state(), "step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, self.checkpoint)

    def _resume(self):
        state = torch.load(self.checkpoint, weights_only=True)
        if ModelConfig(**state["config"]) != self.model.config:
            raise SystemExit(f"{self.checkpoint} holds another model shape; choose another --out")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state(state["optimiser"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]


def worker(rank, options, port):
    """Entry of one process."""
    torch.set_num_threads(1 if options.processes > 1 else torch.get_num_threads())
    torch._dynamo.config.recompile_limit = 64
    if options.processes > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.processes)
    Trainer(options, rank).run()
    if options.processes > 1:
        dist.destroy_process_group()
