"""The network of Keras' guide "Multi-GPU distributed training with PyTorch", as in torchtally's task."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
from keras import layers
from torch import Tensor, nn


class AsModule(nn.Module):
    """The network in the mode set by `train()`, which Keras ignores: the guide's loop runs in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = _network()

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.network(pixels, training=self.training)
        return logits


def _network() -> Any:
    outputs = pixels = keras.Input((28, 28, 1))
    outputs = layers.Rescaling(1 / 255)(outputs)
    outputs = layers.Conv2D(12, 3, padding="same", use_bias=False)(outputs)
    outputs = layers.ReLU()(layers.BatchNormalization(momentum=0.9, scale=False)(outputs))
    outputs = layers.Conv2D(24, 6, strides=2, use_bias=False)(outputs)
    outputs = layers.ReLU()(layers.BatchNormalization(momentum=0.9, scale=False)(outputs))
    outputs = layers.Conv2D(32, 6, strides=2, padding="same")(outputs)
    outputs = layers.ReLU()(layers.BatchNormalization(momentum=0.9, scale=False)(outputs))
    outputs = layers.GlobalAveragePooling2D()(outputs)
    outputs = layers.Dropout(0.5)(layers.Dense(256, activation="relu")(outputs))
    return keras.Model(pixels, layers.Dense(10)(outputs))
