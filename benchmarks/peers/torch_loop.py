"""The plain training loop of PyTorch, for every contestant that is a torch module."""

import torch

from peers import data

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Training:
    """Forward, loss, backward, AdamW, over and over.

    Args:
        model: A module.
        case: The case; on a GPU the model is compiled. `mixed_bfloat16` is autocast here.
        loss: `loss(model, batch)`, where the batch is the arrays of the case as tensors by name.
    """

    def __init__(self, model, case, loss):
        self.case, self.loss = case, loss
        self.model = model.to(DEVICE).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.called = self.model
        if case["gpu"]:
            torch.set_float32_matmul_precision("high")
            self.called = torch.compile(self.model)
        self.feeds = {}

    def build_optimizer(self):
        """Makes the optimizer's tensors, which otherwise the first step does: a step without a gradient."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, steps):
        """So many steps; returns when they are finished."""
        if steps not in self.feeds:
            found = {name: torch.from_numpy(a) for name, a in data.arrays(self.case, steps).items()}
            found = {name: t if t.is_floating_point() else t.long() for name, t in found.items()}
            self.feeds[steps] = {name: t.pin_memory() if DEVICE == "cuda" else t for name, t in found.items()}
        size = self.case["batch"]
        for start in range(0, steps * size, size):
            parts = {name: t[start : start + size] for name, t in self.feeds[steps].items()}
            batch = {name: t.to(DEVICE, non_blocking=True) for name, t in parts.items()}
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self.case["dtype"] == "mixed_bfloat16"):
                loss = self.loss(self.called, batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        finish()


def finish():
    """Waits for a GPU to have done what it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
