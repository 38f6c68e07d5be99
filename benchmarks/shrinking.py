"""Any architecture of transformers, made small by rules on its configuration's names.

Three levels, the smallest one first; a model is taken at the first level at which eager runs:
- "small": depth, width, heads, experts, vocabulary, images, and special tokens' numbers.
- "shallow": depth, vocabulary, images and special tokens' numbers; widths are the default's.
- "default": the default configuration.

Inputs are made from the names in the signature of forward: first all that we know, then only the
model's main input (and the decoder's).
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

LEVELS = ("small", "shallow", "default")
PARAMETERS = 120_000_000
"""A model of more is too large for this test at that level."""
VOCABULARY = 256
LAYERS = 2

_DEPTH = re.compile(
    r"(num_|n_)?(hidden_|encoder_|decoder_|encoder_hidden_|decoder_hidden_)?(layers?|depth)"
    r"|(encoder|decoder|text|vision|audio)_(num_)?(hidden_)?layers"
)
_DEPTHS = re.compile(r"depths|stage_num_blocks|stage_numb_of_layers|num_blocks|layers|num_layers")
_EXACT = {
    # The width and what must agree with it.
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim"), 64),
    **dict.fromkeys(("out_hidden_size", "text_hidden_size", "encoder_hidden_size"), 64),
    **dict.fromkeys(("decoder_hidden_size", "embedding_size", "output_hidden_size"), 64),
    **dict.fromkeys(("word_embed_proj_dim", "projection_dim"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_size", "v_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "swa_head_dim"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("qk_head_dim", "kv_lora_rank", "q_lora_rank"), 32),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    # Mixtures of experts.
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    "moe_num_experts": 4,
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "num_dense_layers"), 1),
    "num_kv_shared_layers": 0,
    "max_source_positions": 50,
    "num_queries": 20,
}
_HEADS = re.compile(r"(.*_)?(attention_heads|num_heads|n_heads?)")
_FEED = re.compile(r".*(intermediate_size|ffn_dim|d_ff|dff|mlp_dim|ffn_hidden_size|n_inner)")
_VOCABULARY = re.compile(r"(.*_)?vocab_size(_.*)?")
_TOKEN = re.compile(r".*_(token_id|token_index|id)")
_LAYER_LISTS = re.compile(r".*layer_types|indexer_types|no_rope_layers")
_LAYER_INDICES = re.compile(r"deepstack_visual_indexes|global_attn_indexes|fullatt_block_indexes")
_DERIVED = ("out_features", "out_indices", "stage_names", "transformers_version")
_DERIVED += ("model_type", "id2label", "label2id")


def shrunk(config: Any, level: str) -> Any:
    """Return a configuration like `config`, a default one, at one of LEVELS.

    Example: `shrunk(BertConfig(), "small").num_hidden_layers` is 2.
    """
    if level == "default":
        return config
    tokens: dict[int, int] = {}
    values = {k: v for k, v in config.to_dict().items() if k not in _DERIVED}
    return type(config)(**_shrink(values, level, tokens))


def _shrink(values: dict[str, Any], level: str, tokens: dict[int, int]) -> dict[str, Any]:
    depth = next((v for k, v in values.items() if _DEPTH.fullmatch(k) and isinstance(v, int)), None)
    return {key: _value(key, old, values, depth, level, tokens) for key, old in values.items()}


def _value(
    key: str,
    old: Any,
    values: dict[str, Any],
    depth: int | None,
    level: str,
    tokens: dict[int, int],
) -> Any:
    """Return the shrunken value of one entry."""
    if not isinstance(key, str):  # a table of numbers
        return old
    if key == "per_layer_config" and isinstance(old, dict):
        old = {k: v for k, v in old.items() if int(k) < LAYERS}
    if isinstance(old, dict):
        part = {k: v for k, v in old.items() if k not in _DERIVED or k == "model_type"}
        return _shrink(part, level, tokens)
    if isinstance(old, list | tuple):
        return _list(key, list(old), depth, level, _side(values))
    if not isinstance(old, int) or isinstance(old, bool):
        return old
    if _VOCABULARY.fullmatch(key):
        return min(old, VOCABULARY)
    if _TOKEN.fullmatch(key) and old >= VOCABULARY:
        return tokens.setdefault(old, VOCABULARY - 1 - len(tokens))
    if _DEPTH.fullmatch(key):
        return min(old, LAYERS)
    if key == "image_size":
        return min(old, _side(values))
    if level != "small":
        return old
    if "key_value_heads" in key or key == "kv_n_heads":
        heads = values.get(key.replace("key_value", "attention"), old)
        return min(old, 4 if old == heads else 2)
    if key in _EXACT:
        return min(old, _EXACT[key])
    if _HEADS.fullmatch(key):
        return min(old, 4)
    return min(old, 128) if _FEED.fullmatch(key) else old


def _list(key: str, old: list[Any], depth: int | None, level: str, side: int) -> Any:
    if key == "image_size":
        return [side] * len(old)
    if _DEPTHS.fullmatch(key):
        return [min(v, LAYERS) if isinstance(v, int) else v for v in old]
    if _LAYER_LISTS.fullmatch(key) and len(old) == depth:
        return (list(dict.fromkeys(old)) * LAYERS)[:LAYERS]  # as many kinds as there is room for
    if _LAYER_INDICES.fullmatch(key):
        return list(range(LAYERS))[: len(old)]
    if key == "mrope_section" and level == "small":
        return [2, 3, 3]
    return old


def _side(values: dict[str, Any]) -> int:
    patch = values.get("patch_size")
    return 4 * patch if isinstance(patch, int) and 8 <= patch <= 32 else 64


def names() -> list[str]:
    """Return all model types of transformers, every fifth of the alphabet first.

    So that the first so many are a sample of all, and the order does not depend on how many.
    """
    alphabet = sorted(MODEL_MAPPING_NAMES)
    return [name for start in range(5) for name in alphabet[start::5]]


def build(name: str, level: str) -> torch.nn.Module:
    """Return a model type's base model in eval mode.

    Raises:
        ValueError: it has more than PARAMETERS.
    """
    kind = MODEL_MAPPING_NAMES[name]
    model_class = getattr(transformers, kind if isinstance(kind, str) else kind[0])
    config = shrunk(CONFIG_MAPPING[name](), level)
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(config).parameters())
    if count > PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    return _lively(model_class(shrunk(CONFIG_MAPPING[name](), level))).eval()


def _lively(model: torch.nn.Module) -> torch.nn.Module:
    """Add noise to parameters that are all one number, such as biases of 0.

    A router of zeros gives every expert the same score, and which one topk takes is undefined.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter += 0.02 * torch.randn_like(parameter)
    return model


def candidates(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield sets of inputs that the model may take, the fullest first."""
    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    known = _shapes(model.config)
    full = [name for name in known if name in accepted]
    least = [n for n in full if n == main or n == "decoder_input_ids" or n == "bbox"]
    seen = []
    for chosen in (full, least, [n for n in least if n == main]):
        if not chosen or chosen in seen:
            continue
        seen.append(chosen)
        for shapes in itertools.product(*(known[name] for name in chosen)):
            torch.manual_seed(1)
            yield {n: _input(n, s, model.config) for n, s in zip(chosen, shapes, strict=True)}


def _shapes(config: Any) -> dict[str, list[tuple[int, ...]]]:
    """Return for each input that we can make the shapes to try."""
    size = _find(config, "image_size", 64)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    channels = _find(config, "num_channels", 3)
    mels = _find(config, "num_mel_bins", 80)
    frames = 2 * _find(config, "max_source_positions", 32)
    feature = _find(config, "input_feat_per_channel", _find(config, "feature_size", mels))
    return {
        "input_ids": [(2, 16)],
        "bbox": [(2, 16, 4)],
        "pixel_values": [
            (2, channels, *size),
            (2, channels, 64, 64),
            (2, _find(config, "num_frames", 2), channels, *size),
        ],
        "input_features": [(1, mels, frames), (1, 64, feature)],
        "input_values": [(1, 4000), (1, 1, 4000), (1, _find(config, "max_length", 64), mels)],
        "decoder_input_ids": [(2, 8)],
    }


def _input(name: str, shape: tuple[int, ...], config: Any) -> torch.Tensor:
    if name.endswith("input_ids"):
        # 0 to 2 are special to most; so are the highest, see _shrink.
        return torch.randint(3, min(_find(config, "vocab_size", 100), VOCABULARY - 60), shape)
    if name == "bbox":
        return torch.tensor([1, 2, 3, 4]).expand(shape)
    return torch.randn(shape)


def _find(config: Any, key: str, otherwise: Any) -> Any:
    """Return a configuration's entry, its own or that of a part."""
    values = config.to_dict()
    for part in (values, *(v for v in values.values() if isinstance(v, dict))):
        if part.get(key) is not None:
            return part[key]
    return otherwise
