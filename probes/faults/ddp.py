"""One rank of a data-parallel job: ``torchrun --nproc-per-node 2 -m probes.faults.ddp FOLDER``.

Owns: joining the process group, the wrapper around the network, and the rank's step log. Refuses: knowing which rank
is slow, or why. What each rank does stands in ``FOLDER/plan.json`` (``{"ranks": [PLAN, …]}``, the fields of
``plan.Plan``), so that no argument and no variable tells a diagnosis. Whatever starts it sets RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT: torchrun, srun with a line of shell, or two shells.

The log, ``FOLDER/steps-RANK.jsonl``, has the ``pid`` first, then one object a step: ``t`` (CLOCK_MONOTONIC, seconds),
``steps``, ``fetch_s`` (the batch and what the host does to it), ``train_s`` (forward, backward with its all-reduce,
update).
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import distributed
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from . import data, nets
from .plan import Plan, plan_of


class Rank:
    """This process's share of the job."""

    def __init__(self, plan: Plan, folder: Path, log: TextIO, local: int) -> None:
        self.plan, self.log = plan, log
        self.files = [data.jpeg(seed) for seed in range(data.FILES)]
        data.load_libraries()
        net = nets.build(plan)
        cuda = plan.device != "cpu"
        self.net = DistributedDataParallel(net, [local] if cuda else None, gradient_as_bucket_view=True)
        self.update = nets.optimizer(plan, net)
        self.batches = data.batches(plan, folder, self.files)

    def go(self) -> None:
        """Train until somebody ends the process: ranks stay in step, so none may stop by itself."""
        steps = 0
        while True:
            begin = time.monotonic()
            x, y = next(self.batches)
            for number in range(self.plan.host_filters):
                data.picture(self.files[number % len(self.files)], 1)
            fetched = time.monotonic()
            loss = self.learn(x, y)
            if self.plan.read_loss and not float(loss) >= 0.0:
                raise FloatingPointError("the loss diverged")
            now = time.monotonic()
            steps += 1
            self.log.write(
                json.dumps({"t": now, "steps": steps, "fetch_s": fetched - begin, "train_s": now - fetched}) + "\n"
            )

    def learn(self, x: Any, y: Any) -> Any:
        """Forward, backward with the all-reduce of the gradients, update."""
        with nets.autocast(self.plan):
            loss = F.cross_entropy(self.net(x).flatten(0, -2).float(), y.flatten())
        self.update.zero_grad(set_to_none=True)
        loss.backward()
        self.update.step()
        return loss


def main(folder: Path) -> None:
    """Be the rank that the environment says."""
    # Threads of a pool do not survive the fork of the loader's workers, and a rank has a share of the cores only.
    torch.set_num_threads(1)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    plan = plan_of(json.loads((folder / "plan.json").read_text())["ranks"][rank])
    if plan.device != "cpu":
        torch.cuda.set_device(local)
    distributed.init_process_group("gloo" if plan.device == "cpu" else "nccl")
    with (folder / f"steps-{rank}.jsonl").open("w", buffering=1) as log:
        log.write(json.dumps({"pid": os.getpid()}) + "\n")
        Rank(plan, folder, log, local).go()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main(Path(sys.argv[1]))
