"""timm's program: its ViT in the plain loop of PyTorch."""

import timm
from torch.nn import functional

from peers.torch_loop import Training


def create(case, settings):
    """The program of a case."""
    sizes = case["sizes"]
    name = f"vit_base_patch{sizes['patch_size']}_{sizes['image_size']}"
    model = timm.create_model(name, num_classes=sizes["num_classes"], drop_rate=case["dropout"])

    def loss(model, batch):
        images = batch["images"].permute(0, 3, 1, 2)  # (B, 3, H, W)
        return functional.cross_entropy(model(images), batch["labels"])

    return Training(model, case, loss)
