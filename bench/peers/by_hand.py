"""A minimal and fast loop for one GPU: data and shuffle on the GPU, steps in a CUDA graph, no tally.

by_hand FOLDER EPOCHS    the median of so many epochs of Fashion-MNIST after a warm-up epoch
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from bench.peers import common


def main() -> None:
    device = common.device()
    folder, epochs = sys.argv[1:]
    dataset = common.Images(Path(folder, "fashion-mnist"), None)
    pixels, labels = (each.to(device) for each in dataset.tensors)
    model = common.model("fashion-mnist").to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE, fused=True)
    chosen = torch.zeros(common.BATCH, dtype=torch.int64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(pixels[chosen].float() / 255), labels[chosen]).backward()
        optimizer.step()

    def epoch() -> float:
        began = time.perf_counter()
        for batch in torch.randperm(len(labels), device=device).split(common.BATCH):  # 60,000 is a multiple
            chosen.copy_(batch)
            replay()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    replay = step
    if device.type == "cuda":
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay = graph.replay
    epoch()
    seconds = median(epoch() for _ in range(int(epochs)))
    print(json.dumps({"samples": len(labels), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
