"""Saves a model for the programs next to this file: `python demos/cpp/save.py model.jmc`."""

from __future__ import annotations

import sys

import torch

import jitmagic


def main(path: str) -> None:
    """Compile an MLP for batches of 1 and 32, and save it with its weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    ).eval()
    jitmagic.save(model, path, (torch.zeros(1, 64),), (torch.zeros(32, 64),), cxx=True)
    print("sum over ones:", float(model(torch.ones(32, 64)).sum().detach()))


if __name__ == "__main__":
    main(sys.argv[1])
