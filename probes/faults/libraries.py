"""Jobs of other libraries with one known cause each: ``python -m probes.faults.libraries NAME [--device cpu]``.

Owns: these jobs. Refuses: recording and judging (``libraries_run.py``).

``train.py`` is one neutral loop, whose frames are its own; here the loop, the model or the slow part is transformers',
Lightning's, JAX's, pandas', scikit-learn's. A job imports what it needs, says ``ready``, waits for a line on its stdin
and then trains for ever; the line ``fix`` repairs it while it runs. It says how many steps it has done, at most four
times a second.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import multiprocessing
import os
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPORT_S = 0.25


class Talk:
    """The job's end of the pipes."""

    def __init__(self, device: str) -> None:
        self.device, self.steps, self.fixed = device, 0, False
        self.small = device == "cpu"
        self._said_s = 0.0

    def listen(self) -> None:
        """Wait for the first line, then for ``fix`` in a thread; the job ends with its stdin."""
        print(json.dumps({"ready": True}), flush=True)
        if not os.read(0, 64):
            os._exit(0)
        threading.Thread(target=self._hear, name="commands", daemon=True).start()

    def _hear(self) -> None:
        # Not by sys.stdin: a process that is forked meanwhile closes it, and would wait for its lock for ever.
        while said := os.read(0, 64):
            self.fixed = self.fixed or b"fix" in said
        os._exit(0)

    def step(self) -> None:
        """One more step is done."""
        self.steps += 1
        now = time.monotonic()
        if now - self._said_s >= REPORT_S:
            self._said_s = now
            print(json.dumps({"t": now, "steps": self.steps, "fixed": self.fixed}), flush=True)


class Job(NamedTuple):
    """One job. ``needs`` are imported before it says ``ready``."""

    run: Callable[[Talk], None]
    needs: tuple[str, ...]
    causes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Names that cannot be told from the cause from outside."""
    fix: str = ""
    """What ``fix`` does; "" where nothing can be repaired while it runs."""
    env: tuple[tuple[str, str], ...] = ()


def words(count: int, rng: random.Random) -> list[str]:
    """Invented words."""
    return ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(count)]


def texts(count: int, length: int) -> list[str]:
    """Invented texts of so many words."""
    rng = random.Random(5)  # noqa: S311
    known = words(2000, rng)
    return [" ".join(rng.choice(known) for _ in range(length)) for _ in range(count)]


def tokenizer(corpus: Sequence[str]) -> Any:
    """A fast tokenizer of transformers, trained here: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    unknown, padding = "[UNK]", "[PAD]"
    bare = Tokenizer(models.BPE(unk_token=unknown))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    bare.train_from_iterator(corpus[:50], trainers.BpeTrainer(vocab_size=800, special_tokens=[unknown, padding]))
    return PreTrainedTokenizerFast(tokenizer_object=bare, unk_token=unknown, pad_token=padding)


def bert(talk: Talk, layers: int = 6) -> Any:
    """A masked language model of transformers with random weights."""
    from transformers import BertConfig, BertForMaskedLM

    width = 64 if talk.small else 768
    config = BertConfig(
        vocab_size=1000, hidden_size=width, num_hidden_layers=2 if talk.small else layers,
        num_attention_heads=width // 32, intermediate_size=4 * width, max_position_embeddings=256,
    )  # fmt: skip
    return BertForMaskedLM(config).to(talk.device)


def train_on(model: Any, optimizer: Any, ids: Any) -> Any:
    """One step in bf16."""
    import torch

    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def tokenizes(talk: Talk) -> None:
    """The training loop calls the tokenizer on each batch."""
    import torch

    corpus = texts(64, 40 if talk.small else 400)
    encode, model = tokenizer(corpus), bert(talk)
    optimizer = torch.optim.AdamW(model.parameters(), fused=not talk.small)
    options = {"truncation": True, "max_length": 128, "padding": "max_length", "return_tensors": "pt"}
    known = encode(corpus, **options)["input_ids"]
    while True:
        ids = known if talk.fixed else encode(corpus, **options)["input_ids"]
        train_on(model, optimizer, ids.pin_memory().to(talk.device) if not talk.small else ids)
        talk.step()


def trainer_collates(talk: Talk) -> None:
    """transformers' Trainer without loader workers, with a collator that tokenizes."""
    _hf_trainer(talk, slow=True)


def trainer(talk: Talk) -> None:
    """transformers' Trainer with nothing wrong."""
    _hf_trainer(talk, slow=False)


def _hf_trainer(talk: Talk, *, slow: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    corpus = texts(256, 40 if talk.small else 400)
    encode = tokenizer(corpus)
    options = {"truncation": True, "max_length": 128, "padding": "max_length", "return_tensors": "pt"}
    batch = 4 if talk.small else 128
    known = encode(corpus[:batch], **options)["input_ids"]

    def collate(samples: list[str]) -> dict[str, Any]:
        ids = encode(samples, **options)["input_ids"] if slow and not talk.fixed else known
        return {"input_ids": ids, "labels": ids}

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_args: Any, **_named: Any) -> None:
            talk.step()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=batch, max_steps=10**6, bf16=not talk.small, report_to=[],
            save_strategy="no", logging_steps=500, dataloader_num_workers=0, remove_unused_columns=False,
            disable_tqdm=True, use_cpu=talk.small,
        )  # fmt: skip
        Trainer(
            model=bert(talk), args=arguments, train_dataset=corpus * 400, data_collator=collate, callbacks=[Steps()]
        ).train()


def generates(talk: Talk) -> None:
    """``generate`` of a small causal model, four sequences at a time: a kernel ends before the next is launched."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 64 if talk.small else 512
    config = LlamaConfig(
        vocab_size=1000, hidden_size=width, num_hidden_layers=2 if talk.small else 16, num_attention_heads=4,
        num_key_value_heads=4, intermediate_size=4 * width,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(talk.device).eval()
    prompt = torch.randint(5, 900, (4, 16), device=talk.device)
    while True:
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0)
        talk.step()


def saves_pretrained(talk: Talk) -> None:
    """``save_pretrained`` every dozen steps."""
    import torch

    model = bert(talk, layers=12)
    optimizer = torch.optim.AdamW(model.parameters(), fused=not talk.small)
    ids = torch.randint(5, 900, (4 if talk.small else 64, 128), device=talk.device)
    with tempfile.TemporaryDirectory() as folder:
        while True:
            train_on(model, optimizer, ids)
            if talk.steps % 12 == 0 and not talk.fixed:
                model.save_pretrained(folder)
            talk.step()


def _network(talk: Talk) -> Any:
    import torch
    from torch import nn

    width, depth = (64, 2) if talk.small else (4096, 6)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).to(talk.device)
    return model, torch.optim.AdamW(model.parameters(), fused=not talk.small), width


def _plain_step(talk: Talk, model: Any, optimizer: Any, rows: Any) -> Any:
    import torch

    with torch.autocast(rows.device.type, dtype=torch.bfloat16):
        out = model(rows)
        loss = out.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    talk.step()
    return out.detach()


def pandas_features(talk: Talk) -> None:
    """Features by pandas before each step."""
    import numpy as np
    import pandas as pd
    import torch

    model, optimizer, width = _network(talk)
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"key": rng.integers(0, 3000, 200_000), "value": rng.random(200_000)})

    def features() -> Any:
        grouped = table.sort_values("value").groupby("key")["value"].rolling(5).mean()
        return torch.from_numpy(np.resize(grouped.to_numpy("float32", na_value=0.0), (2048, width)))

    known = features()
    while True:
        rows = known if talk.fixed else features()
        _plain_step(talk, model, optimizer, rows.to(talk.device))


def sklearn_metric(talk: Talk) -> None:
    """A metric of scikit-learn after each step."""
    import torch
    from sklearn.metrics import roc_auc_score

    model, optimizer, width = _network(talk)
    rows = torch.randn(2048, width, device=talk.device)
    truth = torch.randint(0, 2, (2048, 64)).numpy()
    while True:
        out = _plain_step(talk, model, optimizer, rows)
        if not talk.fixed:
            roc_auc_score(truth, out[:, :64].float().cpu().numpy(), average="macro")


def resizes_on_the_cpu(talk: Talk) -> None:
    """Pictures are resized by torch on the CPU before they are copied."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    model, optimizer, width = _network(talk)
    pictures = torch.rand(64, 3, 512, 512) if not talk.small else torch.rand(2, 3, 64, 64)
    while True:
        given = pictures.to(talk.device) if talk.fixed else pictures
        small = F.interpolate(given, size=224, mode="bicubic", antialias=True)
        rows = small.flatten()[: 64 * width].reshape(64, width)
        _plain_step(talk, model, optimizer, rows.to(talk.device))


def lightning_one_worker(talk: Talk) -> None:
    """Lightning with one loader worker that decodes, beside a validation loader whose workers stay and have no work."""
    _lightning(talk, workers=1, norms=False)


def lightning_norms(talk: Talk) -> None:
    """A Lightning module that reads the norm of each gradient in every step."""
    _lightning(talk, workers=12, norms=True)


def _lightning(talk: Talk, *, workers: int, norms: bool) -> None:
    import lightning
    import torch
    from torch.utils.data import DataLoader, Dataset

    net, optimizer, width = _network(talk)
    encoded = _picture(64 if talk.small else 512)

    class Pictures(Dataset[Any]):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10**7

        def __getitem__(self, index: int) -> Any:
            from PIL import Image

            if norms:
                return torch.zeros(width)
            with Image.open(io.BytesIO(encoded)) as picture:
                small = picture.convert("RGB").resize((224, 224))
            return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)[:width].float()

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.net(batch).float().square().mean()

        def validation_step(self, batch: Any, _index: int) -> None:
            self.net(batch)

        def on_after_backward(self) -> None:
            if norms and not talk.fixed:
                for parameter in self.net.parameters():
                    parameter.grad.norm().item()

        def on_train_batch_end(self, *_args: Any) -> None:
            talk.step()
            if talk.fixed and not norms and workers == 1 and not again:
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            return optimizer

    def loader(count: int, batch: int = 128) -> Any:
        size = 2 if talk.small else batch
        return DataLoader(Pictures(), batch_size=size, num_workers=count, pin_memory=not talk.small,
                          persistent_workers=True)  # fmt: skip

    again = False
    for count in (workers, 12):
        again = count != workers
        lightning.Trainer(
            max_steps=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False, min_steps=1,
            precision="32-true" if talk.small else "bf16-mixed", accelerator="cpu" if talk.small else "gpu", devices=1,
            limit_val_batches=8, check_val_every_n_epoch=10**6, enable_model_summary=False,
        ).fit(Module(), loader(2 if talk.small else count), loader(2 if talk.small else 4))  # fmt: skip


def _picture(size: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("RGB", (size, size), os.urandom(size * size * 3)).save(out, "JPEG", quality=90)
    return out.getvalue()


def jax_op_by_op(talk: Talk) -> None:
    """Small operations of JAX without ``jit``."""
    _jax(talk, op_by_op=True)


def jax_new_shapes(talk: Talk) -> None:
    """``jit`` of JAX with another shape in every step."""
    _jax(talk, op_by_op=False)


def _jax(talk: Talk, *, op_by_op: bool) -> None:
    import jax
    from jax import numpy as jnp

    def layers(x: Any) -> Any:
        for _ in range(40):
            x = jnp.tanh(x * 1.01 + 0.1) - x.mean()
        return x

    compiled = jax.jit(layers)
    width = 256 if op_by_op else 2048
    while True:
        rows = 64 if op_by_op or talk.fixed else 64 + talk.steps % 4000
        x = jnp.ones((rows, width))
        (layers if op_by_op and not talk.fixed else compiled)(x)
        talk.step()
        if talk.steps % 50 == 0:
            x.block_until_ready()


def waits_for_a_simulator(talk: Talk) -> None:
    """A policy that is small beside the simulator in another process."""
    import torch

    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=_simulate, args=(theirs,), daemon=True).start()
    model, optimizer, width = _network(talk)
    rows = torch.randn(512, width, device=talk.device)
    while True:
        ours.send(talk.fixed)
        ours.recv()
        _plain_step(talk, model, optimizer, rows)


def _simulate(link: Any) -> None:
    while True:
        fixed = link.recv()
        time.sleep(0.0 if fixed else 0.08)
        link.send(0.0)


def waits_for_requests(talk: Talk) -> None:
    """An inference server with few requests: a thread puts them into a queue."""
    import torch

    asked: queue.Queue[int] = queue.Queue()
    model, _optimizer, width = _network(talk)

    def clients() -> Iterator[None]:
        for number in range(10**9):
            time.sleep(0.002 if talk.fixed else 0.1)
            asked.put(number)
            yield

    threading.Thread(target=lambda: [None for _ in clients()], name="clients", daemon=True).start()
    rows = torch.randn(512, width, device=talk.device)
    while True:
        asked.get()
        with torch.inference_mode():
            model(rows).sum().item()
        talk.step()


HF, ONE_THREAD = ("torch", "transformers", "tokenizers"), (("TOKENIZERS_PARALLELISM", "false"),)
NO_PREALLOCATION = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)
JOBS: dict[str, Job] = {
    "tokenizes": Job(tokenizes, HF, ("host_preprocessing",), (), "tokenized before", ONE_THREAD),
    "trainer_collates": Job(trainer_collates, HF, ("loader_in_main_process",), (), "tokenized before", ONE_THREAD),
    "trainer": Job(trainer, HF),
    "generates": Job(generates, HF, ("launch_bound",), ("python_bound", "batch_too_small")),
    "saves_pretrained": Job(saves_pretrained, HF, ("checkpoint_stall",), (), "never saved"),
    "pandas_features": Job(pandas_features, ("torch", "pandas"), ("host_preprocessing",), (), "computed before"),
    "sklearn_metric": Job(sklearn_metric, ("torch", "sklearn.metrics"), ("host_preprocessing",),
                          ("logging_or_eval_stall",), "no metric"),
    "resizes_on_the_cpu": Job(resizes_on_the_cpu, ("torch",), ("host_preprocessing",), (), "resized on the GPU"),
    "lightning_one_worker": Job(lightning_one_worker, ("torch", "lightning", "PIL.Image"), ("loader_too_few_workers",),
                                (), "twelve workers"),
    "lightning_norms": Job(lightning_norms, ("torch", "lightning"), ("host_sync",), ("launch_bound",), "no norms"),
    "jax_op_by_op": Job(jax_op_by_op, ("jax",), ("launch_bound",), ("python_bound",), "jit", NO_PREALLOCATION),
    "jax_new_shapes": Job(jax_new_shapes, ("jax",), ("recompilation",), (), "one shape", NO_PREALLOCATION),
    "waits_for_a_simulator": Job(waits_for_a_simulator, ("torch",), ("unattributed",), (), "a quick simulator"),
    "waits_for_requests": Job(waits_for_requests, ("torch",), ("unattributed",), (), "more requests"),
}  # fmt: skip


def main() -> None:
    """Command line of one job."""
    parser = argparse.ArgumentParser(prog="libraries", description="one job of another library")
    parser.add_argument("name", choices=tuple(JOBS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    job = JOBS[options.name]
    os.environ.update(job.env)
    for module in job.needs:
        importlib.import_module(module)
    talk = Talk(options.device)
    os.chdir(tempfile.gettempdir())
    talk.listen()
    job.run(talk)


if __name__ == "__main__":
    sys.path[0:0] = [str(Path(__file__).resolve().parents[2])]
    main()
