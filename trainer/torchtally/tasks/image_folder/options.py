"""The options of the task image-folder."""

from dataclasses import dataclass
from typing import Literal

from torchtally.options import Training, not_offered, option, override_default, whole_number


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """Any classification model of torchvision on a folder of images, or on tar files of WebDataset."""

    model: str = option("resnet18", "name of a classification model of torchvision", metavar="NAME", of_model=True)
    size: int = option(
        32, "height and width of the model's input in pixels", type=whole_number(1, 1 << 14), metavar="N", of_model=True
    )
    weights: str | None = option(
        None, "file with the first weights: safetensors, or a state_dict written by torch.save", metavar="FILE"
    )
    precision: Literal["bfloat16", "float32"] = option(
        "bfloat16",
        "type of the model's arithmetic where autocast permits it; weights are float32",
        choices=("bfloat16", "float32"),
        of_model=True,
    )
    epochs: int = override_default("epochs", 5)
    mlflow: str | None = not_offered("mlflow")
