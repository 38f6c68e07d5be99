"""The models that we measure and test: random weights, nothing downloaded.

`FULL[name]()` and `SMALL[name]()` give a model in eval mode and its inputs by name; the small ones
have the same operators in fewer and smaller layers. `TRAINED[name](small)` gives what is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import nn

# Without it Dynamo leaves nn.LSTM to eager, and says nothing.
torch._dynamo.config.allow_rnn = True

Inputs = dict[str, Any]
Built = tuple[nn.Module, Inputs]

_NO_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


class Lstm(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(input_ids))[0])


def _double_conv(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """A small UNet: `depth` times down by max pooling, up by transposed convolution."""

    def __init__(self, width: int, depth: int, classes: int = 2):
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = _double_conv(3, width)
        self.down = nn.ModuleList(_double_conv(a, b) for a, b in pairs)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.up = nn.ModuleList(_double_conv(b, a) for a, b in pairs[::-1])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        levels = [self.first(pixel_values)]
        for block in self.down:
            levels.append(block(self.pool(levels[-1])))
        x = levels.pop()
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([levels.pop(), rise(x)], 1))
        return self.head(x)


def _lively(model: nn.Module) -> nn.Module:
    """Give convolutions and batch norms values that let a signal through many layers.

    With transformers' own first values MobileNetV2's results are 1e-20 and compare to nothing.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return model


def _ids(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))  # 0 to 2 are special to most


def _image(model: Callable[[], nn.Module], batch: int, size: int, channels: int = 3) -> Built:
    torch.manual_seed(0)
    made = _lively(model()).eval()
    return made, {"pixel_values": torch.randn(batch, channels, size, size)}


def _text(
    model: Callable[[], nn.Module], vocabulary: int, batch: int, length: int, decoder: int = 0
) -> Built:
    torch.manual_seed(0)
    made = model().eval()
    inputs = {"input_ids": _ids(vocabulary, batch, length)}
    if decoder:
        inputs["decoder_input_ids"] = _ids(vocabulary, batch, decoder)
    return made, inputs


def _bert(**size: Any) -> nn.Module:
    return hf.BertModel(hf.BertConfig(**size))


def _gpt2(**size: Any) -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, **size))


def _llama(width: int, layers: int, heads: int, intermediate: int, vocabulary: int) -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            intermediate_size=intermediate,
            vocab_size=vocabulary,
            use_cache=False,
        )
    )


def _t5(**size: Any) -> nn.Module:
    return hf.T5ForConditionalGeneration(hf.T5Config(use_cache=False, **size))


def _resnet(**size: Any) -> nn.Module:
    return hf.ResNetForImageClassification(hf.ResNetConfig(**size))


def _mobilenet(**size: Any) -> nn.Module:
    return hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(**size))


def _convnext(**size: Any) -> nn.Module:
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(**size))


def _vit(**size: Any) -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**size))


def _whisper(batch: int, length: int, **size: Any) -> Built:
    torch.manual_seed(0)
    config = hf.WhisperConfig(use_cache=False, **size)
    model = hf.WhisperForConditionalGeneration(config).eval()
    frames = 2 * config.max_source_positions
    return model, {
        "input_features": torch.randn(batch, config.num_mel_bins, frames),
        "decoder_input_ids": _ids(config.vocab_size, batch, length),
    }


def _clip(batch: int, length: int, text: dict[str, Any], vision: dict[str, Any]) -> Built:
    torch.manual_seed(0)
    config = hf.CLIPConfig(text_config=text, vision_config=vision)
    size = config.vision_config.image_size
    vocabulary = config.text_config.vocab_size
    return hf.CLIPModel(config).eval(), {
        "input_ids": _ids(vocabulary, batch, length),
        "pixel_values": torch.randn(batch, 3, size, size),
    }


FULL: dict[str, Callable[[], Built]] = {
    "ResNet-50": partial(_image, _resnet, 4, 224),
    "MobileNetV2": partial(_image, _mobilenet, 4, 224),
    "ConvNeXt-T": partial(_image, _convnext, 4, 224),
    "ViT-B/16": partial(_image, _vit, 4, 224),
    "BERT-base": partial(_text, _bert, 30522, 4, 128),
    "GPT-2": partial(_text, _gpt2, 50257, 4, 128),
    "Llama 8x768": partial(_text, partial(_llama, 768, 8, 12, 2048, 32000), 32000, 4, 128),
    "T5-small": partial(_text, _t5, 32128, 4, 128, 32),
    "Whisper-tiny": partial(_whisper, 1, 32),
    "CLIP": partial(_clip, 4, 32, {}, {}),
    "LSTM": partial(_text, partial(Lstm, 8000, 256), 8000, 8, 64),
    "UNet": partial(_image, partial(UNet, 32, 3), 2, 128),
}
"""The models as people use them, in eval mode."""

_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_TINY |= {"intermediate_size": 64}
_TINY_T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2}
_TINY_T5 |= {"num_decoder_layers": 2, "num_heads": 2}
_TINY_WHISPER = {"vocab_size": 96, "num_mel_bins": 16, "encoder_layers": 1, "decoder_layers": 1}
_TINY_WHISPER |= {"d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
_TINY_WHISPER |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 20}
_TINY_WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TINY_WHISPER |= {"decoder_start_token_id": 1, "begin_suppress_tokens": None}
_TINY_CNN = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
_TINY_TEXT = {"vocab_size": 96, "projection_dim": 16, "max_position_embeddings": 32}
_TINY_TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

SMALL: dict[str, Callable[[], Built]] = {
    "ResNet-50": partial(_image, partial(_resnet, **_TINY_CNN), 2, 32),
    "MobileNetV2": partial(_image, partial(_mobilenet, depth_multiplier=0.25), 2, 32),
    "ConvNeXt-T": partial(
        _image, partial(_convnext, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1]), 2, 64
    ),
    "ViT-B/16": partial(_image, partial(_vit, **_TINY, image_size=32, patch_size=8), 2, 32),
    "BERT-base": partial(_text, partial(_bert, **_TINY, vocab_size=96), 96, 2, 16),
    "GPT-2": partial(
        _text, partial(_gpt2, n_embd=32, n_layer=2, n_head=2, vocab_size=96), 96, 2, 16
    ),
    "Llama 8x768": partial(_text, partial(_llama, 32, 2, 4, 64, 96), 96, 2, 16),
    "T5-small": partial(_text, partial(_t5, **_TINY_T5), 96, 2, 16, 8),
    "Whisper-tiny": partial(_whisper, 1, 8, **_TINY_WHISPER),
    "CLIP": partial(
        _clip,
        2,
        8,
        _TINY | _TINY_TEXT,
        _TINY | {"image_size": 32, "patch_size": 8, "projection_dim": 16},
    ),
    "LSTM": partial(_text, partial(Lstm, 96, 16), 96, 2, 8),
    "UNet": partial(_image, partial(UNet, 4, 2), 2, 16),
}
"""The same models, small enough for tests."""

Training = tuple[nn.Module, Inputs, Callable[[Any], torch.Tensor]]
"""A model in train mode, inputs, and the loss of its output."""


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, labels.to(logits.device))


def _language(model: nn.Module, vocabulary: int, batch: int, length: int) -> Training:
    ids = _ids(vocabulary, batch, length)

    def loss(output: Any) -> torch.Tensor:
        return _cross_entropy(output.logits.flatten(0, 1), ids.flatten())

    return model.train(), {"input_ids": ids}, loss


def _train_gpt2(small: bool) -> Training:
    size = {"n_layer": 4} | ({"n_embd": 32, "n_head": 2, "vocab_size": 96} if small else {})
    model = _gpt2(**size, **_NO_DROPOUT["gpt2"])
    return _language(model, model.config.vocab_size, 2, 16 if small else 64)


def _train_bert(small: bool) -> Training:
    size: dict[str, Any] = _TINY | {"vocab_size": 96} if small else {"num_hidden_layers": 4}
    model = hf.BertForMaskedLM(hf.BertConfig(**size, **_NO_DROPOUT["bert"]))
    return _language(model, model.config.vocab_size, 2, 16 if small else 64)


def _train_resnet(small: bool) -> Training:
    size: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    config = hf.ResNetConfig(**(_TINY_CNN if small else size), layer_type="basic", num_labels=10)
    model = hf.ResNetForImageClassification(config).train()
    side, batch = (32, 4) if small else (96, 8)
    inputs = {"pixel_values": torch.randn(batch, 3, side, side)}
    labels = torch.randint(10, (batch,))
    return model, inputs, lambda output: _cross_entropy(output.logits, labels)


def _train_lstm(small: bool) -> Training:
    vocabulary, width, length = (96, 16, 4) if small else (4000, 256, 16)
    ids = _ids(vocabulary, 4, length)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return _cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return Lstm(vocabulary, width).train(), {"input_ids": ids}, loss


def _train_unet(small: bool) -> Training:
    width, depth, side = (4, 2, 16) if small else (16, 2, 48)
    images = torch.randn(2, 3, side, side)
    labels = torch.randint(2, (2, side, side))
    model = UNet(width, depth).train()
    inputs = {"pixel_values": images}
    return model, inputs, lambda output: _cross_entropy(output, labels)


_TRAINED: dict[str, Callable[[bool], Training]] = {
    "GPT-2, 4 layers": _train_gpt2,
    "BERT, 4 layers": _train_bert,
    "ResNet-18": _train_resnet,
    "LSTM": _train_lstm,
    "UNet": _train_unet,
}
TRAINED = tuple(_TRAINED)
"""The names of what is trained; dropout is 0 in all of them."""


def training(name: str, small: bool = False) -> Training:
    """Build one of TRAINED with a fixed seed: called twice, it gives equal weights and data."""
    torch.manual_seed(0)
    return _TRAINED[name](small)


def losses(
    name: str,
    steps: int,
    compile: Callable[[nn.Module], Callable[..., Any]],
    small: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    lr: float = 2e-5,
) -> list[float]:
    """Return the loss before each of so many AdamW steps, the model run by `compile(model)`.

    Example: `losses("UNet", 3, lambda model: model)` trains in eager.
    """
    model, inputs, loss_of = training(name, small)
    model = model.to(device, dtype)
    inputs = {
        k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()
    }
    call = compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    found = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = loss_of(call(**inputs))
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found
