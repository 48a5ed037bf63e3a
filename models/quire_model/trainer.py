"""The training loop: CPU (data-parallel over processes) or one GPU; resumable;
the schedule depends on tokens alone."""

import dataclasses
import json
import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import hf_folder, mixture, probes
from .muon import Muon
from .network import LanguageModel, ModelConfig, rope_table
from .prefetch import Prefetcher
from .prompt import Codec


@dataclasses.dataclass
class TrainOptions:
    out: str  # folder of the checkpoint
    tokenizer: str
    init: str = ""  # model folder to start from; empty: random weights of `config`
    teacher: str = (
        ""  # model folder whose logits over answers are imitated besides the answers themselves
    )
    config: ModelConfig = ModelConfig()
    rope_theta: float = 0.0  # if set, another RoPE base for the weights of `init`
    device: str = "cpu"
    curriculum: str = "full"  # a key of mixture.CURRICULA
    tokens: int = 40_000_000  # length of the schedule
    start_tokens: int = (
        0  # enter the schedule here: for weights (`init`) that had so many tokens of it
    )
    stop_minutes: float = (
        0.0  # if set, stops early (checkpointed, the schedule unchanged): run again to go on
    )
    step_tokens: int = 8192  # tokens of one optimiser step, over all processes
    max_length: int = 2048
    matrix_lr: float = 0.01
    other_lr: float = 0.003
    early_boost: float = 1.0  # factor on the learning rate over the first `boost_tokens`
    boost_tokens: int = 4_000_000
    cooldown: float = 0.4  # the learning rate falls linearly to nothing over this last share
    teacher_weight: float = 1.0  # of the KL term, in answers' units
    seed: int = 0
    processes: int = 1
    workers: int = 0  # processes that make batches ahead, for each training process
    compile: bool = False
    save_seconds: float = 180.0
    log_steps: int = 20
    probe_tokens: int = 2_000_000  # distance between probes
    probe_rows: int = 8


class Trainer:
    """One process of a run. `rank` 0 logs, probes and writes the checkpoint."""

    def __init__(self, options, rank):
        self.o, self.rank = options, rank
        self.codec = Codec(options.tokenizer)
        self.step = options.start_tokens // options.step_tokens
        self.tokens = self.probed = self.step * options.step_tokens
        self.seconds = 0.0
        self.checkpoint = Path(options.out) / "checkpoint.pt"
        state = (
            torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            if self.checkpoint.exists()
            else None
        )
        if state:
            self.step, self.tokens = state["step"], state["tokens"]
            self.seconds, self.probed = state["seconds"], state["probed"]
        self.batches = Prefetcher(self.make_batch, self.step, options.workers)
        torch.manual_seed(options.seed)
        self.device = torch.device(options.device)
        self.model = (
            hf_folder.load_model(options.init, torch.bfloat16)
            if options.init and not state
            else LanguageModel(
                ModelConfig(**state["config"]) if state else options.config, torch.bfloat16
            )
        )
        if options.rope_theta and not state:
            self.model.config = dataclasses.replace(
                self.model.config, rope_theta=options.rope_theta
            )
        self.model.to(self.device)
        self.optimiser = Muon(self.model, options.matrix_lr, options.other_lr)
        if state:
            self._resume(state)
        self.teacher = None
        if options.teacher:
            self.teacher = (
                hf_folder.load_model(options.teacher, torch.bfloat16)
                .to(self.device)
                .requires_grad_(False)
            )
        table = options.max_length + 256
        self.rope = tuple(t.to(self.device) for t in rope_table(self.model.config, table))
        self.teacher_rope = self.teacher and tuple(
            t.to(self.device) for t in rope_table(self.teacher.config, table)
        )
        if options.compile:
            self.model.compile()
        self._recent = {}
        self._told_to_stop = False

    # The schedule: functions of the step alone, so that data workers can run ahead.

    def make_batch(self, step):
        """Runs in data workers too."""
        o = self.o
        progress = step * o.step_tokens / o.tokens
        part = mixture.part_at(o.curriculum, progress)
        length = mixture.length_at(part, random.Random(f"length/{o.seed}/{step}"), o.max_length)
        rows = max(1, o.step_tokens // o.processes // length)
        return mixture.make_batch(
            f"data/{o.seed}/{step}/{self.rank}", rows, length, self.codec, part
        )

    def _scale(self):
        o, progress = self.o, self.step * self.o.step_tokens / self.o.tokens
        boost = o.early_boost if self.tokens < o.boost_tokens else 1.0
        return (
            boost
            * min(1.0, (self.step + 1) / 50)
            * min(1.0, max(0.01, (1 - progress) / o.cooldown))
        )

    def run(self):
        """True when the schedule is complete.
        SIGTERM stops after the present step, checkpointed."""
        started = last_save = time.monotonic()
        before, total = self.seconds, self.o.tokens // self.o.step_tokens
        if self.o.processes == 1:
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_told_to_stop", True))
        while self.step < total:
            self._train_step()
            self.seconds = before + time.monotonic() - started
            if self.rank == 0:
                if self.step % self.o.log_steps == 0:
                    self._log()
                if self.tokens - self.probed >= self.o.probe_tokens or self.step == total:
                    self._probe()
                if time.monotonic() - last_save > self.o.save_seconds:
                    self.save()
                    last_save = time.monotonic()
            if self._agreed_to_stop(started):
                break
        if self.rank == 0:
            self.save()
        self.batches.close()
        return self.step >= total

    def _agreed_to_stop(self, started):
        if self._told_to_stop:
            return True
        if not self.o.stop_minutes:
            return False
        stop = torch.tensor([float(time.monotonic() - started > 60 * self.o.stop_minutes)])
        if self.o.processes > 1:
            dist.broadcast(stop, 0)
        return bool(stop)

    def tensors(self, batch):
        """The arguments of LanguageModel.forward (without the RoPE table) and of the loss,
        on the device."""

        def move(array, kind):
            t = torch.from_numpy(array).to(kind)
            return (
                t.pin_memory().to(self.device, non_blocking=True)
                if self.device.type == "cuda"
                else t
            )

        arrays = [
            move(x, torch.int64)
            for x in (batch.ids, batch.positions, batch.segments, batch.documents, batch.wanted)
        ]
        return arrays, move(batch.targets, torch.int64), move(batch.weights, torch.float32)

    def _train_step(self):
        batch = self.batches.next()
        inputs, targets, weights = self.tensors(batch)
        logits = self.model(*inputs, *self.rope)
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum()
        if self.teacher:
            loss = loss + self.o.teacher_weight * self._imitation(
                inputs, logits[: batch.num_answer], batch.num_answer
            )
        loss.backward()
        self._average_gradients()
        self.optimiser.step(self._scale())
        for p in self.model.parameters():
            p.grad = None
        self.step += 1
        self.tokens += batch.ids.size * self.o.processes
        if (
            self.step % self.o.log_steps == 0 or self.device.type == "cpu"
        ):  # reading results waits for the device
            self._remember(batch, logits.detach().argmax(-1) == targets, losses.detach())

    def _imitation(self, inputs, logits, num_answer):
        """Mean KL(teacher || model) over the tokens of answers."""
        with torch.no_grad():
            wanted = self.teacher(*inputs[:-1], inputs[-1][:num_answer], *self.teacher_rope)
        return F.kl_div(
            logits.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True
        )

    def _average_gradients(self):
        if self.o.processes == 1:
            return
        parameters = list(self.model.parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in parameters])
        dist.all_reduce(flat)
        flat /= self.o.processes
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad.copy_(part.view_as(p))

    def _remember(self, batch, hits, losses):
        hits = hits.cpu()
        entry = self._recent.setdefault(batch.ids.shape[1], [[], []])
        entry[0] += [bool(hits[start:end].all()) for start, end, _ in batch.answers]
        entry[1].append(float(losses[: batch.num_answer].mean()))

    def _log(self):
        line = {
            "step": self.step,
            "tokens": self.tokens,
            "minutes": round(self.seconds / 60, 2),
            "tokens_per_second": round(
                (self.tokens - self.o.start_tokens) / max(self.seconds, 1e-9)
            ),
            "progress": round(self.step * self.o.step_tokens / self.o.tokens, 4),
        }
        for length, (whole, losses) in sorted(self._recent.items()):
            if whole:
                line[f"exact@{length}"] = round(sum(whole) / len(whole), 3)
                line[f"loss@{length}"] = round(sum(losses) / len(losses), 3)
        self._recent = {}
        self._write(line)

    def _probe(self):
        """Exact match on validation data: binding against chance,
        and every kind at the lengths of the present part."""
        self.probed = self.tokens
        part = mixture.part_at(
            self.o.curriculum, min(1.0, (self.step - 1) * self.o.step_tokens / self.o.tokens)
        )
        found = probes.run(self, part)
        self._write(
            {"probe": True, "step": self.step, "tokens": self.tokens, "part": part.start, **found}
        )
        with open(Path(self.o.out) / "curve.txt", "a") as curve:
            curve.write(probes.text_line(self.tokens, found))

    def _write(self, line):
        text = json.dumps(line)
        print(text, flush=True)
        with open(Path(self.o.out) / "log.jsonl", "a") as log:
            log.write(text + "\n")

    def save(self):
        """Atomic: a crash leaves the old or the new checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "config": dataclasses.asdict(self.model.config),
            "optimiser": self.optimiser.state(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "probed": self.probed,
            "schedule": [self.o.tokens, self.o.step_tokens, self.o.seed, self.o.curriculum],
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, self.checkpoint)

    def _resume(self, state):
        o = self.o
        if ModelConfig(**state["config"]) != o.config and not o.init:
            raise SystemExit(f"{self.checkpoint} holds another model shape; choose another --out")
        if state["schedule"] != [o.tokens, o.step_tokens, o.seed, o.curriculum]:
            raise SystemExit(
                f"{self.checkpoint} was made with --tokens, --step-tokens, --seed, "
                f"--curriculum {state['schedule']}; resume with the same or choose another --out"
            )
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state(state["optimiser"])


def worker(rank, options, port):
    """Entry of one process. True when the schedule is complete."""
    if options.device == "cpu":
        torch.set_num_threads(1 if options.processes > 1 else torch.get_num_threads())
    else:
        torch.set_float32_matmul_precision("high")
    if options.processes > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.processes
        )
    done = Trainer(options, rank).run()
    if options.processes > 1:
        dist.destroy_process_group()
    return done
